from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from harness import check_op, normal, of_cpus, single_node

from clnn.codegen.render import render
from clnn.errors import ShapeError
from clnn.graph.passes.store import store_as
from clnn.ops.conv import direct, streaming, winograd_cpu
from clnn.ops.conv.problem import ConvProblem
from clnn.ops.conv.spec import Conv2d
from clnn.ops.conv.streaming import Stream, streams
from clnn.ops.conv.tiles import Extents, Tile
from clnn.ops.conv.winograd import extent, matrices
from clnn.ops.conv.winograd_cpu import WinogradPlan
from clnn.ops.shared.cycles import block_slots, loop_slots
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.plan.open_extents import opened
from clnn.plan.schedule import make_plan
from clnn.target import Target
from clnn.types import STORAGE, TensorType

pytestmark = pytest.mark.dealt  # kernels that are slow to build


def window(kernel, strides=(1, 1), dilations=(1, 1), before=(0, 0), after=(0, 0)):
    return Window(kernel, strides, dilations, before, after)


SAME = window((3, 3), before=(1, 1), after=(1, 1))
HALVED = window((3, 3), (2, 2), before=(1, 1), after=(1, 1))


def case(n, ic, oc, h, w, win, group=1, post_ops=(), bias=True, seed=0):
    x = normal((n, ic, h, w), seed)
    weights = normal((oc, ic // group, *win.kernel), seed + 1)
    inputs = [x, weights, normal((oc,), seed + 2) if bias else None]
    return Conv2d(win, group, post_ops), inputs


def test_every_variant_of_a_padded_3x3(device):
    spec, inputs = case(2, 5, 35, 9, 14, window((3, 3), before=(1, 1), after=(1, 1)))
    ran = check_op(device, spec, inputs, consts=(1, 2), border=1)
    assert any("direct" in name for name in ran) and any("reference" in name for name in ran)


@pytest.mark.parametrize("channels", [1, 2, 3, 7, 8, 12, 16, 17, 24, 31, 32, 33, 48, 64])
def test_channel_tails(device, channels):
    spec, inputs = case(1, 6, channels, 5, 7, window((1, 1)))
    check_op(device, spec, inputs, consts=(1, 2), only="direct")


GEOMETRIES = [
    ((3, 3), (2, 2), (1, 1), (0, 0), (1, 1)),
    ((5, 3), (1, 2), (2, 1), (3, 0), (4, 2)),
    ((7, 7), (2, 2), (1, 1), (3, 3), (3, 3)),
    ((1, 5), (3, 1), (1, 3), (0, 6), (0, 6)),
    ((2, 2), (2, 3), (1, 1), (0, 0), (0, 0)),
]


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("group", [1, 2, 4])
def test_geometries(device, geometry, group):
    spec, inputs = case(2, 4, 20, 11, 13, window(*geometry), group)
    check_op(device, spec, inputs, consts=(1, 2))


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("channels", [2, 3, 16, 40])
def test_depthwise(device, geometry, channels):
    spec, inputs = case(2, channels, channels, 11, 13, window(*geometry), channels)
    check_op(device, spec, inputs, consts=(1, 2), border=2, only="depthwise")


NEAR = [
    window((7, 7), before=(3, 3), after=(3, 3)),
    window((5, 3), (2, 1), (1, 2), (2, 2), (1, 2)),
    window((4, 5), (3, 4), (1, 1), (0, 2), (2, 2)),
    window(
        (2, 5), (4, 2), (1, 1), (1, 2), (0, 2)
    ),  # rows that no tap reads between those that are read
]


@pytest.mark.parametrize("win", NEAR)
@pytest.mark.parametrize("channels,width", [(16, 29), (19, 32), (32, 14), (3, 5)])
def test_rows_of_depthwise_in_private_memory(device, win, channels, width):
    spec, inputs = case(2, channels, channels, 12, width, win, channels, (PostOp("relu"),))
    ran = check_op(device, spec, inputs, consts=(1, 2), border=1, only="_near", every=True)
    assert ran


@pytest.mark.parametrize(
    "channels,width,near", [(768, 32, 1), (1024, 28, 1), (768, 14, 0), (96, 56, 0)]
)
def test_rows_are_copied_where_pixels_lie_in_many_pages(channels, width, near):
    """7 rows of 38 pixels of 3 KB lie in 199 pages, of 20 pixels in 105."""
    win = window((7, 7), before=(3, 3), after=(3, 3))
    spec, inputs = case(1, channels, channels, 14, width, win, channels)
    plan = make_plan(single_node(spec, inputs, consts=(1, 2)), Target("cpu"))
    names = [str(launch.launch.params["name"]) for launch in plan.launches]
    (name,) = [name for name in names if "depthwise" in name]
    assert name.endswith("_near") == bool(near)


@pytest.mark.parametrize(
    "channels,rows,units,bands,features",
    [
        (768, 32, 2, 1, ""),
        (768, 14, 2, 1, "x86_amx"),
        (384, 14, 2, 2, ""),
        (960, 7, 2, 1, ""),
        (960, 7, 2, 7, "x86_amx"),
        (96, 56, 2, 10, "x86_amx"),
        (32, 7, 8, 7, ""),
    ],
)
def test_bands_of_depthwise_are_alike(channels, rows, units, bands, features):
    """As cores take work-items, not rows, and a band's filters and borders are read once for each.

    Processors with AMX take the rows of the smallest maps one by one.
    """
    win = window((5, 5), before=(2, 2), after=(2, 2))
    spec, inputs = case(1, channels, channels, rows, rows, win, channels)
    target = Target("cpu", compute_units=units, features=frozenset(features.split()))
    (launch,) = (
        step.launch
        for step in make_plan(single_node(spec, inputs, consts=(1, 2)), target).launches
        if "depthwise" in str(step.launch.params["name"])
    )
    assert launch.global_size[1] == bands and launch.params["band"] == -(-rows // bands)


def test_the_rows_behind_those_in_private_memory_are_asked_for():
    """Of each tile of columns a part, all columns together; and the lines of its results."""
    win = window((5, 5), (2, 1), before=(2, 2), after=(2, 2))
    spec, inputs = case(1, 1024, 1024, 16, 30, win, 1024)
    graph = single_node(spec, inputs, consts=(1, 2))
    texts = {}
    for features in ((), ("prefetch",)):
        plan = make_plan(graph, Target("cpu", features=frozenset(features)))
        (texts[features],) = (
            render(step.launch.template, step.launch.params)
            for step in plan.launches
            if str(step.launch.params["name"]).endswith("_near")
        )
    assert "prefetch" not in texts[()]
    rows = re.findall(r"k < (\d+).*prefetch.*image \+ \(y \* 2 \+ (\d)\)", texts["prefetch",])
    lines = re.findall(r"k < (\d+).*prefetch.*dst \+ .*, 1, 2\)", texts["prefetch",])
    assert [int(row) for _, row in rows] == [6, 5] * len(lines)
    tiles = -(-30 // int(lines[0]))
    assert lines and all(tiles * int(columns) >= 34 for columns, _ in rows)


@pytest.mark.parametrize("width,tile", [(28, "v16x14"), (32, "v16x8"), (21, "v16x7"), (9, "v16x6")])
def test_large_filters_have_tiles_of_many_columns(width, tile):
    spec, inputs = case(1, 32, 32, 7, width, window((5, 5), before=(2, 2), after=(2, 2)), 32)
    plan = make_plan(single_node(spec, inputs, consts=(1, 2)), Target("cpu"))
    assert any(tile in str(launch.launch.params["name"]) for launch in plan.launches)


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("channels,each", [(8, 2), (24, 2), (12, 4), (2, 2), (6, 4)])
def test_several_filters_per_channel(device, geometry, channels, each):
    win = window(*geometry)
    spec, inputs = case(2, channels, channels * each, 11, 13, win, channels, (PostOp("relu"),))
    check_op(device, spec, inputs, consts=(1, 2), border=2, only="depthwise")


@pytest.mark.parametrize("channels,each", [(3, 2), (8, 3)])
def test_filters_that_fill_no_vectors(device, channels, each):
    win = window((3, 3), before=(1, 1), after=(1, 1))
    spec, inputs = case(2, channels, channels * each, 5, 6, win, channels)
    ran = check_op(device, spec, inputs, consts=(1, 2), border=2)
    assert not any("depthwise" in name for name in ran)


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("channels,each", [(8, 2), (16, 4), (24, 4), (16, 8), (48, 8)])
def test_groups_of_few_channels(device, geometry, channels, each, monkeypatch):
    if each == 8:  # one group a vector, which the direct kernel has, where vectors are of 8
        monkeypatch.setenv("CLNN_CPU_VECTOR", "16")
    win, group = window(*geometry), channels // each
    spec, inputs = case(2, channels, channels, 11, 19, win, group, (PostOp("relu"),))
    check_op(device, spec, inputs, consts=(1, 2), border=2, only="depthwise")


@pytest.mark.parametrize("channels,outputs,group", [(12, 12, 3), (24, 24, 8), (16, 32, 4)])
def test_groups_that_fill_no_vectors(device, channels, outputs, group):
    win = window((3, 3), before=(1, 1), after=(1, 1))
    spec, inputs = case(2, channels, outputs, 5, 6, win, group)
    ran = check_op(device, spec, inputs, consts=(1, 2), border=2)
    assert not any("depthwise" in name for name in ran)


@pytest.mark.parametrize(
    "size,pads",
    [
        ((4, 4), (1, 1, 1, 1)),
        ((5, 9), (0, 0, 0, 0)),
        ((1, 17), (2, 0, 1, 2)),
        ((13, 6), (1, 1, 1, 1)),
    ],
)
@pytest.mark.parametrize("stride", [1, 2])
def test_winograd(device, size, pads, stride):
    win = window((3, 3), (stride, stride), before=pads[:2], after=pads[2:])
    height, width = size[0] + 2, size[1] + 2
    spec, inputs = case(2, 32, 48, height, width, win)
    (name,) = check_op(device, spec, inputs, consts=(1, 2), border=2, only="winograd_f32")
    assert "_f4_" in name or "_f2_" in name


@pytest.mark.parametrize(
    "m,mr,nv,sets,shared,stride",
    [
        (4, 5, 1, 1, False, 1),
        (2, 6, 4, 2, False, 1),
        (4, 9, 3, 1, False, 1),
        (2, 14, 2, 1, False, 1),
        (6, 4, 2, 1, False, 1),
        (2, 5, 2, 3, False, 1),
        (4, 2, 1, 4, False, 1),
        (4, 4, 2, 2, True, 1),
        (2, 6, 3, 2, True, 1),
        (6, 4, 1, 1, True, 1),
        (2, 5, 2, 2, False, 2),
        (3, 4, 1, 1, False, 2),
        (4, 3, 3, 1, False, 2),
    ],
)
@pytest.mark.parametrize("near", [0, 2**17])
def test_tiles_of_winograd(device, monkeypatch, m, mr, nv, sets, shared, stride, near):
    """Shared: tiles are transformed before, with a gap between them and copies of the last one.

    near: elements above which images are read and written ahead.
    """
    monkeypatch.setenv("CLNN_CPU_VECTOR", "16")
    monkeypatch.setattr(winograd_cpu, "NEAR_ELEMENTS", near)
    parts, gap = 2 if nv < 3 else 1, 16 * shared
    monkeypatch.setattr(
        winograd_cpu,
        "plan",
        lambda shape, ic, target, vw, step, _: WinogradPlan(
            m, mr, nv, vw, parts, ic + gap, 0.0, sets, shared, step
        ),
    )
    post_ops = (PostOp("add", operand=3), PostOp("relu"), PostOp("mul", operand=4))
    win = SAME if stride == 1 else HALVED
    size = (7, 10) if stride == 1 else (13, 20)
    spec, inputs = case(1, 16, 64, *size, win, post_ops=post_ops, bias=nv != 1)
    inputs += [normal((1, 64, 7, 10), 7), normal((64, 1, 1), 8)]
    orders = {"i3": (0, 2, 3, 1)}
    (name,) = check_op(device, spec, inputs, consts=(1, 2), orders=orders, only="winograd_f32")
    assert f"_s{stride}x{stride}_f{m}_t{mr}x{16 * nv}" in name and ("_shared" in name) == shared


@pytest.mark.parametrize(
    ("m", "mr", "nv", "sets", "stride", "ic", "oc"),
    [
        (4, 4, 2, 1, 1, 26, 52),  # the last block has a whole vector and a part of one
        (2, 5, 2, 2, 1, 17, 67),  # a part of one alone
        (4, 6, 1, 1, 1, 18, 18),
        (4, 4, 3, 1, 1, 30, 33),
        (2, 5, 2, 2, 2, 26, 40),
    ],
)
def test_winograd_of_channels_that_are_no_whole_vectors(
    device, monkeypatch, m, mr, nv, sets, stride, ic, oc
):
    monkeypatch.setenv("CLNN_CPU_VECTOR", "16")
    plan = WinogradPlan(m, mr, nv, 16, min(2, -(-oc // (16 * nv))), ic, 0.0, sets, False, stride)
    monkeypatch.setattr(winograd_cpu, "plan", lambda *_: plan)
    post_ops = (PostOp("add", operand=3), PostOp("relu"), PostOp("mul", operand=4))
    win, size = (SAME, (7, 10)) if stride == 1 else (HALVED, (13, 20))
    spec, inputs = case(2, ic, oc, *size, win, post_ops=post_ops)
    inputs += [normal((2, oc, 7, 10), 7), normal((oc, 1, 1), 8)]
    orders = {"i3": (0, 2, 3, 1)}
    (name,) = check_op(device, spec, inputs, consts=(1, 2), orders=orders, only="winograd_f32")
    assert f"_f{m}_t{mr}x{16 * nv}" in name


@pytest.mark.parametrize(
    ("m", "mr", "nv", "sets", "shared", "stride", "ic", "oc", "group"),
    [
        (4, 5, 1, 1, False, 1, 16, 16, 3),
        (2, 6, 2, 2, False, 1, 32, 48, 2),
        (4, 4, 2, 1, False, 1, 24, 24, 4),  # parts of vectors
        (2, 5, 1, 1, False, 1, 17, 19, 2),
        (4, 4, 2, 2, True, 1, 16, 64, 2),
        (2, 6, 1, 2, True, 1, 32, 16, 3),
        (2, 5, 2, 2, False, 2, 16, 40, 2),
        (4, 3, 1, 1, False, 2, 24, 16, 3),
    ],
)
def test_winograd_of_groups(device, monkeypatch, m, mr, nv, sets, shared, stride, ic, oc, group):
    monkeypatch.setenv("CLNN_CPU_VECTOR", "16")
    pitch, parts = (group * ic + 16) if shared else ic, min(2, -(-oc // (16 * nv)))
    plan = WinogradPlan(m, mr, nv, 16, parts, pitch, 0.0, sets, shared, stride)
    monkeypatch.setattr(winograd_cpu, "plan", lambda *_: plan)
    channels = group * oc
    post_ops = (PostOp("add", operand=3), PostOp("relu"), PostOp("mul", operand=4))
    win, size = (SAME, (7, 10)) if stride == 1 else (HALVED, (13, 20))
    spec, inputs = case(2, group * ic, channels, *size, win, group=group, post_ops=post_ops)
    inputs += [normal((2, channels, 7, 10), 7), normal((channels, 1, 1), 8)]
    orders = {"i3": (0, 2, 3, 1)}
    (name,) = check_op(device, spec, inputs, consts=(1, 2), orders=orders, only="winograd_f32")
    assert f"_f{m}_t{mr}x{16 * nv}" in name and ("_shared" in name) == shared


STEPS = {
    "relu": (PostOp("relu"),),
    "residual": (PostOp("add", operand=3), PostOp("relu")),
    "swapped": (PostOp("sub", operand=3, swapped=True),),
    "heavy": (PostOp("sigmoid"), PostOp("mul", operand=3)),
    "clip": (PostOp("clip", (0.0, 6.0)),),
}

TILES = [  # tile, height and width of the output
    (Tile(5, 2, 16, "row"), (3, 13)),  # a row's last tile lies over the one before
    (Tile(14, 2, 16, "row", 2), (5, 7)),  # and so do the image's last rows
    (Tile(9, 3, 16, "row", 3), (3, 3)),
    (Tile(11, 1, 16, "pointer"), (4, 5)),
    (Tile(13, 2, 16, "flat"), (5, 6)),
    (Tile(6, 4, 16, "flat"), (2, 3)),
]


@pytest.mark.parametrize("tile,size", TILES, ids=[f"{t.mode}{t.mr}x{t.rows}" for t, _ in TILES])
@pytest.mark.parametrize("post_ops,oc", [("residual", 55), ("heavy", 55), ("residual", 70)])
def test_tiles(device, monkeypatch, tile, size, post_ops, oc):
    monkeypatch.setattr(direct, "direct_tiles", lambda *_: [(0.0, tile)])
    win = window((1, 1)) if tile.mode == "flat" else window((3, 2), (1, 2), before=(1, 0))
    size = [
        (e - 1) * s + k - b
        for e, s, k, b in zip(size, win.strides, win.kernel, win.before, strict=True)
    ]
    spec, inputs = case(2, 9, oc, *size, win, post_ops=STEPS[post_ops])
    inputs.append(normal((2, oc, *win.output(size)), 7))
    orders = {"i3": (0, 2, 3, 1)}
    (name,) = check_op(device, spec, inputs, consts=(1, 2), orders=orders, only="direct")
    assert tile.mode in name


def test_a_last_block_of_fewer_vectors_costs_less():
    whole, five = loop_slots(9, 3), block_slots(9, 3, 5)
    assert block_slots(9, 3, 6) == 2 * whole and whole < five < 2 * whole


STREAMS = [  # tile, height and width of the output, window, input channels, chunk, bands
    (Tile(5, 2, 16, "row"), (3, 13), window((3, 2), (1, 2), before=(1, 0)), 24, 8, 2),
    (Tile(14, 2, 16, "row", 2), (5, 7), SAME, 16, 16, 1),
    (Tile(13, 2, 16, "flat"), (5, 6), window((1, 1)), 40, 40, 3),
    (Tile(6, 4, 16, "flat"), (2, 3), window((1, 1)), 48, 16, 1),
    (Tile(7, 3, 16, "flat"), (3, 7), window((1, 1)), 24, 12, 1),
    (Tile(3, 1, 16, "row"), (9, 3), window((2, 1), dilations=(3, 1)), 32, 8, 4),
    # Two steps for each line read ahead.
    (Tile(8, 2, 16, "flat"), (5, 9), window((1, 1)), 24, 8, 1),
]


@pytest.mark.parametrize("made", STREAMS, ids=[f"{s[0].mode}_c{s[4]}_b{s[5]}" for s in STREAMS])
@pytest.mark.parametrize("post_ops,oc", [("relu", 55), ("residual", 70), ("heavy", 55)])
def test_streamed_weights(device, monkeypatch, made, post_ops, oc):
    """Sums wait from chunk to chunk; a band may be short of tiles, or have none."""
    tile, size, win, ic, chunk, bands = made
    monkeypatch.setattr(ConvProblem, "weights_stay", False)
    for module in (direct, streaming):
        monkeypatch.setattr(module, "direct_tiles", lambda *_: [(0.0, tile)])
    monkeypatch.setattr(streaming, "streams", lambda *_: [Stream(chunk, bands, 0.9)])
    size = [
        (e - 1) * s + d * (k - 1) + 1 - b - a
        for e, s, d, k, b, a in zip(
            size, win.strides, win.dilations, win.kernel, win.before, win.after, strict=True
        )
    ]
    spec, inputs = case(2, ic, oc, *size, win, post_ops=STEPS[post_ops], bias=post_ops != "relu")
    inputs += [normal((2, oc, *win.output(size)), 7)] if post_ops != "relu" else []
    orders = {"i3": (0, 2, 3, 1)}
    names = check_op(device, spec, inputs, consts=(1, 2), orders=orders, only="direct")
    streamed = any(f"_{tile.mode}_c{chunk}_b{bands}" in name for name in names)
    assert streamed or not of_cpus(device)


@pytest.mark.parametrize("dtype,line", [("f32", 16), ("f16", 32)])
def test_streams_read_ahead_by_whole_lines(monkeypatch, dtype, line):
    """A band's tiles ask for each line of the next chunk, by lines, and for less than twice as much."""
    tile, chunk, width = Tile(7, 2, 16, "row"), 16, 64
    monkeypatch.setattr(ConvProblem, "weights_stay", False)
    monkeypatch.setattr(streaming, "direct_tiles", lambda *_: [(0.0, tile)])
    monkeypatch.setattr(streaming, "streams", lambda *_: [Stream(chunk, 1, 0.9)])
    spec, inputs = case(1, 32, width, 7, 7, SAME)
    graph = store_as(single_node(spec, inputs, (1, 2)), STORAGE[dtype])

    def streamed(node, problem, variants):
        return next((v for v in variants if f"_c{chunk}_" in v.name), variants[0])

    plan = make_plan(graph, Target("cpu", features=frozenset({"prefetch"})), streamed)
    launch = next(s for s in plan.scheduled if s.node.name == "node").launches[0].launch
    text = render(launch.template, launch.params)
    asked = [int(k) for k in re.findall(r"prefetch.*next_chunk \+ (\d+)", text)]
    (step,) = (int(k) for k in re.findall(r"next_chunk \+= (\d+);", text))
    (by,) = (int(k) for k in re.findall(rf"k < {chunk}; k \+= (\d+)", text))
    assert asked == list(range(0, step, line))
    tiles = 7  # of the band
    assert 1 <= tiles * chunk // by * step / (chunk * tile.channels) < 2


@pytest.mark.parametrize("size", [(41, 49), (64, 31), (9, 200), (7, 9)])
def test_room_for_sums_of_any_shape_is_for_whole_tiles(monkeypatch, size):
    """Tiles of two rows and three columns reach over the edge of an image, and their sums wait, too."""
    tile, chunk = Tile(6, 4, 16, "row", 2), 64
    monkeypatch.setattr(ConvProblem, "weights_stay", False)
    monkeypatch.setattr(streaming, "direct_tiles", lambda *_: [(0.0, tile)])
    monkeypatch.setattr(
        streaming, "streams", lambda *_: [Stream(chunk, bands, 0.9) for bands in (1, 4)]
    )
    at = [
        single_node(*case(1, 64, 64, *extents, SAME), (1, 2)) for extents in (size, (8, 12), (5, 6))
    ]

    def streamed(node, problem, variants):
        return next((v for v in variants if "bands" in v.launches[0].params), variants[0])

    target = Target("cpu", local_bytes=2 * streaming.MOST_SUMS_BYTES)
    plan = make_plan(opened(*at), target, streamed)
    launch = next(s for s in plan.scheduled if s.node.name == "node").launches[0].launch
    tiles = -(-size[0] // 2) * -(-size[1] // 3)
    if "bands" in launch.params:
        share = -(-tiles // launch.params["bands"])
        assert share * tile.mr * tile.channels <= launch.params["most_sums"]
    fits = -(-tiles // 4) * tile.mr * tile.channels * 4 <= target.local_bytes // 2
    assert ("bands" in launch.params) == fits


@pytest.mark.parametrize("units,oc,bands", [(2, 320, 2), (2, 384, 1), (7, 320, 1), (4, 144, 4)])
def test_bands_are_so_many_that_cores_end_together(monkeypatch, units, oc, bands):
    """Blocks of 48 channels of a map of 7 x 7, 7 tiles of pixels each."""
    monkeypatch.setattr(ConvProblem, "weights_stay", False)
    tile = Tile(7, 3, 16, "flat")
    monkeypatch.setattr(streaming, "direct_tiles", lambda *_: [(1.0, tile)])
    graph = single_node(*case(1, 256, oc, 7, 7, window((1, 1))), (1, 2))
    plan = make_plan(graph, Target("cpu", compute_units=units), _first_streamed)
    launch = next(s for s in plan.scheduled if s.node.name == "node").launches[0].launch
    assert launch.params["bands"] == bands


def _first_streamed(node, problem, variants):
    return next((v for v in variants if "_c128_b" in v.name), variants[0])


def test_weights_stream_where_they_do_not_stay_near():
    near = Extents(7, 7, 512, 16)
    tile = Tile(7, 3, 16, "row")
    best = streams(near, tile, 512, 9, 1 << 20)[0]
    assert best.chunk == 128 and best.bands == 1 and best.factor < 1
    assert all(s.factor > 1 for s in streams(Extents(56, 56, 512, 16), tile, 512, 9, 1 << 20))
    whole = streams(Extents(14, 14, 1024, 16, flat=True), Tile(14, 2, 16, "flat"), 256, 1, 1 << 20)
    assert whole[0].chunk == 256 and whole[0].factor < 1
    assert streams(Extents(7, 7, 1104, 16, flat=True), tile, 184, 1, 1 << 20)[0].chunk == 92
    halves = streams(Extents(14, 14, 288, 16, flat=True), Tile(14, 2, 16, "flat"), 288, 1, 1 << 20)
    assert (halves[0].chunk, halves[0].bands) == (144, 2) and halves[0].factor < 1
    assert not streams(near, Tile(7, 3, 16, "pointer"), 512, 9, 1 << 20)
    assert not streams(near, tile, 509, 9, 1 << 20)


@pytest.mark.parametrize("channels", [2, 3, 4])
def test_an_input_of_few_channels_stays_in_planes(device, channels):
    """The network's input keeps its order in memory, and every tile reads it there."""
    spec, inputs = case(2, channels, 21, 9, 8, SAME)
    order = {"i0": (0, 1, 2, 3)}
    for hints in ({}, {"orders": order}, {"orders": order, "border": 2}):
        names = check_op(device, spec, inputs, consts=(1, 2), **hints)
        assert any("direct" in name and "checked" not in name for name in names)


@pytest.mark.parametrize("post_ops", ["relu", "residual", "heavy"])
@pytest.mark.parametrize("channels", [1, 21, 48])
def test_results_go_to_any_place(device, post_ops, channels):
    """Rows of detections, say, are joined with the pixels innermost."""
    spec, inputs = case(2, 5, channels, 6, 7, SAME, post_ops=STEPS[post_ops])
    inputs += [normal((2, channels, 6, 7), 7)] if post_ops != "relu" else []
    orders = {"o0": (0, 1, 2, 3), "i3": (1, 0, 2, 3)}
    names = check_op(device, spec, inputs, consts=(1, 2), orders=orders)
    assert any("direct" in name for name in names)


def test_winograd_only_where_it_is_allowed_and_fits(device):
    from clnn.options import Options
    from clnn.runtime.device.device import select
    from clnn.runtime.run.session import Session

    def chosen(ic, oc, win, **options):
        spec, inputs = case(1, ic, oc, 56, 56, win)
        graph = single_node(spec, inputs, consts=(1, 2))
        with Session(graph, select(device), Options(**options)) as session:
            return next(r["variant"] for r in session.placement.nodes if r["op"] == "conv2d")

    assert chosen(64, 64, SAME).startswith("winograd")
    assert chosen(64, 64, HALVED).startswith("winograd")
    for win in (SAME, HALVED):
        assert chosen(64, 64, win, winograd=False).startswith("conv2d_direct")
    assert chosen(3, 64, SAME).startswith("winograd_rows")  # too few channels for both axes
    assert chosen(3, 64, SAME, winograd=False).startswith("conv2d_direct")
    for ic, oc, win in ((3, 64, HALVED), (64, 64, window((3, 3), (2, 1)))):
        assert chosen(ic, oc, win).startswith("conv2d_direct")
    # Too few outputs for both axes; with vectors of 8 those of one pay.
    assert chosen(64, 4, SAME).startswith(("conv2d_direct", "winograd_rows"))


@pytest.mark.parametrize(("m", "stride"), [(2, 1), (4, 1), (6, 1), (2, 2), (3, 2), (4, 2)])
def test_matrices_of_winograd(m, stride):
    made, n = matrices(m, stride), extent(m, stride)
    tile, taps = normal((n, n)).astype(np.float64), normal((3, 3)).astype(np.float64)
    at, bt = np.array(made.at), np.array(made.bt)
    got = at @ ((made.g @ taps @ made.g.T) * (bt @ tile @ bt.T)) @ at.T
    spec = Conv2d(window((3, 3), (stride, stride)))
    want = spec.reference(tile[None, None], taps[None, None])[0][0, 0]
    np.testing.assert_allclose(got, want, atol=1e-12)


def test_missing_border_is_checked_in_the_kernel(device):
    """A reversed view has no border to grant, so taps outside of it must read zeros."""
    win = window((3, 3), before=(1, 1), after=(1, 1))
    spec, inputs = case(1, 4, 16, 6, 6, win)
    orders = {"i0": (0, 2, 3, 1)}
    assert check_op(device, spec, inputs, consts=(1, 2), orders=orders)


def test_weights_as_inputs_use_the_reference_kernel(device):
    spec, inputs = case(1, 3, 4, 6, 5, window((3, 3), before=(1, 0), after=(0, 1)))
    assert all("reference" in name for name in check_op(device, spec, inputs))


def test_one_spatial_axis(device):
    win = Window((3,), (2,), (1,), (1,), (1,))
    x, w = normal((2, 4, 9)), normal((18, 4, 3), 1)
    check_op(device, Conv2d(win), [x, w, normal((18,), 2)], consts=(1, 2), border=1)


@pytest.mark.parametrize("post_ops", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("shape", [(2, 19, 5, 8), (1, 19, 1, 1), (1, 1, 5, 8), (1, 1, 1, 1)])
def test_fused_steps(device, post_ops, shape):
    spec, inputs = case(
        2, 3, 19, 5, 8, window((3, 3), before=(1, 1), after=(1, 1)), post_ops=post_ops
    )
    operand = [normal(shape, 7)] if any(s.operand for s in post_ops) else []
    check_op(device, spec, inputs + operand, consts=(1, 2), border=1)


def test_fused_steps_of_depthwise(device):
    win = window((3, 3), before=(1, 1), after=(1, 1))
    spec, inputs = case(2, 24, 24, 6, 9, win, 24, (PostOp("add", operand=3), PostOp("hard_swish")))
    check_op(device, spec, [*inputs, normal((2, 24, 6, 9), 5)], consts=(1, 2))


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 3, 1, 2), (3, 2, 1, 0)])
@pytest.mark.parametrize(
    "channels,outputs,group,kernel",
    [(24, 24, 24, 3), (19, 19, 19, 3), (16, 16, 16, 7), (8, 16, 8, 3), (16, 16, 4, 3)],
)
def test_operands_of_depthwise_in_any_order(device, channels, outputs, group, kernel, order, dtype):
    pad = (kernel // 2,) * 2
    win = window((kernel,) * 2, before=pad, after=pad)
    steps = (PostOp("add", operand=3), PostOp("relu"))
    spec, inputs = case(2, channels, outputs, 6, 9, win, group, steps)
    inputs.append(normal((2, outputs, 6, 9), 5))
    how = {"orders": {"i3": order, "o0": (0, 2, 3, 1)}, "only": "depthwise", "dtype": dtype}
    check_op(device, spec, inputs, consts=(1, 2), **how)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 3, 1, 2), (3, 2, 1, 0)])
@pytest.mark.parametrize("stride,channels,group", [(1, 32, 1), (2, 32, 1), (1, 26, 1), (1, 48, 2)])
def test_operands_of_winograd_in_any_order(
    device, monkeypatch, stride, channels, group, order, dtype
):
    monkeypatch.setenv("CLNN_CPU_VECTOR", "16")
    win = SAME if stride == 1 else HALVED
    steps = (PostOp("add", operand=3), PostOp("relu"))
    size = (7, 10) if stride == 1 else (13, 20)
    spec, inputs = case(2, channels, channels, *size, win, group, steps)
    inputs.append(normal((2, channels, 7, 10), 5))
    how = {"orders": {"i3": order, "o0": (0, 2, 3, 1)}, "only": "winograd_f", "dtype": dtype}
    check_op(device, spec, inputs, consts=(1, 2), **how)


def test_nan_reaches_the_output(device):
    spec, inputs = case(1, 3, 8, 4, 4, window((1, 1)), post_ops=(PostOp("relu"),))
    inputs[0][0, 1, 2, 2] = np.nan
    check_op(device, spec, inputs, consts=(1, 2))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "kernel,stride,dilation,pad",
    list(itertools.product((1, 2, 3, 5), (1, 2, 3), (1, 2), (0, 1, 3))),
)
def test_every_small_shape(device, kernel, stride, dilation, pad):
    reach = dilation * (kernel - 1) + 1
    for size, channels in itertools.product((reach, reach + 1, 9), (1, 3, 16, 33)):
        win = window((kernel,) * 2, (stride,) * 2, (dilation,) * 2, (pad,) * 2, (pad,) * 2)
        spec, inputs = case(1, 3, channels, size, size, win)
        check_op(device, spec, inputs, consts=(1, 2))


@pytest.mark.parametrize(
    "x,w,bias,group,words",
    [
        ((1, 3, 8, 8), (4, 2, 3, 3), None, 1, "input has 3"),
        ((1, 3, 8, 8), (4, 3, 3, 3), (5,), 1, "must be (4,)"),
        ((1, 3, 2, 2), (4, 3, 3, 3), None, 1, "does not fit"),
        ((1, 4, 8, 8), (3, 2, 3, 3), None, 2, "in 2 groups"),
        ((1, 3, 8), (4, 3, 3, 3), None, 1, "ranks must match"),
    ],
)
def test_bad_shapes_name_the_values(x, w, bias, group, words):
    types = [TensorType(x), TensorType(w), None if bias is None else TensorType(bias)]
    with pytest.raises(ShapeError, match="(?s).*" + words.replace("(", r"\(").replace(")", r"\)")):
        Conv2d(window((3, 3)), group).infer(types)

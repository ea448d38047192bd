"""Products by work-groups that share slices in local memory: code for GPUs, on any device."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from harness import check_op, compare, normal, single_node

from clnn.codegen.filters import group_size
from clnn.graph.ir import Graph, Node, check
from clnn.graph.passes.store import store_as
from clnn.ops.conv import workgroup as conv_workgroup
from clnn.ops.conv.spec import Conv2d
from clnn.ops.conv.winograd_fused import VALUES
from clnn.ops.gemm import workgroup as _gemm_groups
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.views import Slice
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.ops.shared.workgroup_tiles import (
    MAX_TILES,
    GemmShape,
    GroupTile,
    SplitK,
    even_slices,
    fits,
    group_tiles,
    has_room,
    holds,
    widest,
)
from clnn.options import Options
from clnn.plan.schedule import make_plan
from clnn.runtime.device.device import select
from clnn.runtime.run.session import Session
from clnn.target import LARGE_REGISTERS, UNASKED, RegisterMode, Target
from clnn.types import STORAGE, TensorType

pytestmark = [
    pytest.mark.dealt,  # kernels that are slow to build
    pytest.mark.usefixtures("as_gpu"),
]

SMALL = GroupTile(16, 16, 2, 2, 8, 2, 4)
TILES = {
    "two_stages": SMALL,
    "one_stage": GroupTile(32, 32, 4, 4, 16, 1, 0),
    "low": GroupTile(8, 64, 2, 4, 8, 2, 0),
    "large_sums": GroupTile(64, 64, 8, 8, 8, 1, 4),
}


@pytest.fixture
def with_tile(monkeypatch):
    """Return a function that lets one tile, with so many slices of its sums, be the only one."""

    def use(tile, slices=1):
        def only(sums, target):
            return [SplitK(0.0, tile, even_slices(-(-sums.terms // tile.bk), slices))]

        for module in (_gemm_groups, conv_workgroup):
            monkeypatch.setattr(module, "group_tiles", only)

    return use


def multiply(device, m, k, n, how="packed", batch=(), post_ops=(), extra=(), dtype="f32", **spec):
    """Check products of work-groups; how: where the operands lie."""
    turned_a, turned_b = "a" in how, "b" in how
    a = normal((*batch, k, m) if turned_a else (*batch, m, k))
    b = normal((*batch, n, k) if turned_b else (*batch, k, n), 1)
    inputs = [a, b, normal((n,), 2), *extra]
    op = Gemm(trans_a=turned_a, trans_b=turned_b, post_ops=post_ops, **spec)
    consts = (1, 2) if how == "packed" else ()
    names = check_op(device, op, inputs, consts=consts, only="gemm_workgroup", dtype=dtype)
    assert all(("packed" in name) == (how == "packed") for name in names)
    return names


SHAPES = [(16, 16, 16), (7, 33, 21), (33, 7, 40), (1, 1, 3), (70, 20, 66), (17, 24, 5)]


@pytest.mark.parametrize("m,k,n", SHAPES)
def test_products(device, with_tile, m, k, n):
    with_tile(SMALL)
    multiply(device, m, k, n)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("m,k,n", SHAPES[-2:])
def test_tiles_of_products(device, with_tile, tile, m, k, n):
    with_tile(TILES[tile])
    multiply(device, m, k, n)


@pytest.mark.parametrize("how", ["", "a", "b", "ab"], ids=lambda how: f"turned_{how}")
@pytest.mark.parametrize("m,k,n", [(18, 20, 24), (35, 9, 37), (5, 12, 6)])
def test_operands_lie_either_way(device, with_tile, how, m, k, n):
    with_tile(SMALL)
    multiply(device, m, k, n, how)


@pytest.mark.parametrize("how,slices", [("packed", 2), ("packed", 7), ("", 3)])
def test_sums_in_slices(device, with_tile, how, slices):
    with_tile(SMALL, slices)
    extra = [normal((3, 19, 22), 5)]
    post_ops = (PostOp("add", operand=3), PostOp("relu"))
    (name,) = multiply(device, 19, 61, 22, how, (3,), post_ops, extra, alpha=0.5, beta=-2.0)
    assert f"_p{even_slices(8, slices)}" in name


STEPS = {
    "residual": (PostOp("add", operand=3), PostOp("relu")),
    "swapped": (PostOp("sub", operand=3, swapped=True),),
    "heavy": (PostOp("gelu"), PostOp("mul", operand=3)),
}


FUSED = [
    ("residual", (2, 17, 35)),
    ("residual", (35,)),
    ("swapped", (17, 1)),
    ("heavy", (2, 17, 35)),
    ("heavy", ()),
]


@pytest.mark.parametrize("post_ops,shape", FUSED, ids=str)
@pytest.mark.parametrize("how", ["packed", ""])
def test_steps_of_products(device, with_tile, post_ops, shape, how):
    with_tile(SMALL)
    multiply(device, 17, 8, 35, how, (2,), STEPS[post_ops], [normal(shape, 7)])


@pytest.mark.parametrize(
    "a,b", [((3, 14, 20), (3, 20, 33)), ((2, 1, 14, 20), (3, 20, 33)), ((2, 3, 14, 20), (20, 33))]
)
def test_batches_broadcast(device, with_tile, a, b):
    with_tile(SMALL)
    for consts in ((), (1,)):
        inputs = [normal(a), normal(b, 1), None]
        check_op(device, Gemm(), inputs, consts=consts, only="gemm_workgroup")


@pytest.mark.parametrize("slices", [1, 2])
def test_results_lie_in_columns(device, with_tile, slices):
    with_tile(SMALL, slices)
    inputs = [normal((18, 23)), normal((23, 37), 1), None, normal((18, 37), 2)]
    spec = Gemm(post_ops=(PostOp("add", operand=3),))
    for order in ({"o0": (1, 0)}, {"i3": (1, 0)}, {"i0": (1, 0)}):
        check_op(device, spec, inputs, consts=(1,), orders=order, only="gemm_workgroup")


def test_views_with_gaps_and_negative_pitches(device, with_tile):
    with_tile(SMALL)
    cuts = [Slice((17, 1), (9, 11), (-2, 2)), Slice((1, 30), (11, 15), (2, -2))]
    arrays = [normal((20, 24)), normal((25, 40), 1)]
    types = {f"x{i}": TensorType(a.shape) for i, a in enumerate(arrays)}
    types |= {f"v{i}": TensorType(c.extents) for i, c in enumerate(cuts)}
    types["y"] = TensorType((9, 15))
    nodes = [Node(f"cut{i}", c, (f"x{i}",), (f"v{i}",)) for i, c in enumerate(cuts)]
    nodes.append(Node("node", Gemm(), ("v0", "v1", None), ("y",)))
    graph = check(Graph(tuple(nodes), types, {}, ("x0", "x1"), {"y": "y"}))
    parts = [c.reference(a.astype(np.float64))[0] for c, a in zip(cuts, arrays, strict=True)]

    def pick(node, problem, variants):
        return next((v for v in variants if "workgroup" in v.name), variants[0])

    with Session(graph, select(device), Options(fuse=False), pick) as session:
        assert any("workgroup" in row["variant"] for row in session.placement.nodes)
        got = session({f"x{i}": a for i, a in enumerate(arrays)})["y"]
    compare(got, parts[0] @ parts[1], 1e-5, device)


def test_nan_and_infinity_stay_in_their_rows(device, with_tile):
    """What lies behind the last term is no part of any sum."""
    with_tile(SMALL)
    inputs = [normal((21, 13)), normal((13, 21), 1), None]
    inputs[0][1:, 0] = np.nan
    inputs[1][0, 5:] = np.inf
    for consts in ((), (1,)):
        check_op(device, Gemm(), inputs, consts=consts, only="gemm_workgroup")


# Convolutions


def window(kernel, strides=(1, 1), dilations=(1, 1), before=(0, 0), after=(0, 0)):
    return Window(kernel, strides, dilations, before, after)


SAME = window((3, 3), before=(1, 1), after=(1, 1))


def convolve(device, shape, oc, win, group=1, post_ops=(), extra=(), bias=True, **how):
    """Check convolutions by work-groups."""
    weights = normal((oc, shape[1] // group, *win.kernel), 1)
    inputs = [normal(shape), weights, normal((oc,), 2) if bias else None, *extra]
    how = {"consts": (1, 2), "only": "conv2d_workgroup"} | how
    return check_op(device, Conv2d(win, group, post_ops), inputs, **how)


WINDOWS = {
    "point": window((1, 1)),
    "same": SAME,
    "stride": window((3, 3), (2, 2), (1, 1), (0, 0), (1, 1)),
    "uneven": window((5, 3), (1, 2), (2, 1), (3, 0), (4, 2)),
    "wide": window((7, 7), (2, 2), (1, 1), (3, 3), (3, 3)),
    "dilated": window((1, 5), (3, 1), (1, 3), (0, 6), (0, 6)),
    "even": window((2, 2), (2, 3)),
}


@pytest.mark.parametrize("geometry", WINDOWS)
@pytest.mark.parametrize("ic,oc,group", [(8, 20, 1), (6, 9, 3)])
def test_convolutions(device, with_tile, geometry, ic, oc, group):
    with_tile(SMALL)
    convolve(device, (2, ic, 8, 9), oc, WINDOWS[geometry], group, border=2)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("ic", [5, 16])
def test_tiles_of_convolutions(device, with_tile, tile, ic):
    with_tile(TILES[tile])
    convolve(device, (2, ic, 5, 7), 35, SAME, bias=ic == 5)


@pytest.mark.parametrize("slices,group", [(2, 1), (5, 1), (3, 2)])
def test_convolutions_in_slices(device, with_tile, slices, group):
    with_tile(SMALL, slices)
    post_ops, extra = (PostOp("add", operand=3), PostOp("relu")), [normal((2, 22, 5, 6), 5)]
    orders = {"i3": (0, 2, 3, 1)}
    convolve(device, (2, 16, 5, 6), 22, SAME, group, post_ops, extra, orders=orders)
    convolve(device, (1, 8, 3, 3), 6, SAME, group, bias=False)


@pytest.mark.parametrize(
    "post_ops,shape",
    [
        ("residual", (2, 19, 5, 8)),
        ("heavy", (1, 19, 1, 1)),
        ("swapped", (1, 1, 5, 8)),
        ("residual", (1, 1, 1, 1)),
        ("heavy", (2, 19, 5, 8)),
    ],
)
def test_steps_of_convolutions(device, with_tile, post_ops, shape):
    with_tile(SMALL)
    convolve(device, (2, 8, 5, 8), 19, SAME, post_ops=STEPS[post_ops], extra=[normal(shape, 7)])


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_an_input_of_few_channels_stays_in_planes(device, with_tile, channels):
    with_tile(SMALL)
    order = {"i0": (0, 1, 2, 3)}
    convolve(device, (2, channels, 9, 8), 21, SAME, orders=order, border=2)


@pytest.mark.parametrize("slices", [1, 2])
def test_results_go_to_any_place(device, with_tile, slices):
    with_tile(SMALL, slices)
    orders = {"o0": (0, 1, 2, 3), "i3": (1, 0, 2, 3)}
    extra, post_ops = [normal((2, 21, 6, 7), 7)], STEPS["residual"]
    convolve(device, (2, 8, 6, 7), 21, SAME, post_ops=post_ops, extra=extra, orders=orders)


def test_one_spatial_axis(device, with_tile):
    with_tile(SMALL)
    convolve(device, (2, 4, 9), 18, Window((3,), (2,), (1,), (1,), (1,)), border=1)


DEPTHWISE = [
    ("same", 8, (9, 13)),
    ("stride", 5, (8, 9)),
    ("uneven", 12, (9, 9)),
    ("wide", 2, (7, 7)),
]


def depthwise(device, geometry, channels, size, **how):
    """Check tiles of columns that are spread over work-items; the last lies over its neighbour."""
    shape, post_ops = (2, channels, *size), (PostOp("add", operand=3), PostOp("relu"))
    win = WINDOWS[geometry]
    extra = [normal((2, channels, *win.output(size)), 5)]
    how = {"only": "depthwise", "border": 2} | how
    orders = {"i3": (0, 2, 3, 1)}
    names = convolve(device, shape, channels, win, channels, post_ops, extra, orders=orders, **how)
    assert all("spread" in name for name in names)


@pytest.mark.parametrize("geometry,channels,size", DEPTHWISE)
def test_depthwise(device, geometry, channels, size):
    depthwise(device, geometry, channels, size)


@pytest.mark.exhaustive
@pytest.mark.parametrize("geometry,channels,size", DEPTHWISE)
def test_every_tile_of_depthwise(device, geometry, channels, size):
    depthwise(device, geometry, channels, size, every=True)


# What is chosen


def offered(spec, inputs, consts, target):
    """Return (variants, candidates) of a problem."""
    found = {}

    def note(node, problem, variants):
        if node.name == "node":
            found["all"] = (variants, node.spec.candidates(problem))
        return variants[0]

    make_plan(single_node(spec, inputs, consts), target, note)
    return found["all"]


PROBLEMS = {
    "square": (Gemm(), [normal((512, 512)), normal((512, 512)), None], (1,)),
    "moving": (Gemm(), [normal((200, 96)), normal((96, 120)), None], ()),
    "row": (Gemm(), [normal((1, 600)), normal((600, 500)), None], (1,)),
    "image": (Conv2d(SAME), [normal((1, 64, 28, 28)), normal((64, 64, 3, 3)), None], (1,)),
    "small_map": (Conv2d(SAME), [normal((1, 256, 7, 7)), normal((256, 256, 3, 3)), None], (1,)),
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_candidates_are_many_and_varied(problem):
    target = Target("gpu", 4, 32, 256, 49152)
    variants, candidates = offered(*PROBLEMS[problem], target)
    names, costs = [v.name for v in candidates], [v.cost for v in candidates]
    groups = [v for v in candidates if "_workgroup_f32" in v.name]
    assert 10 <= len(names) <= 56 and len(set(names)) == len(names) and costs == sorted(costs)
    assert len({v.launches[0].params["tile"].label for v in groups}) >= 6
    assert variants[0].name in names and "reference" in variants[-1].name
    assert ("workgroup" in variants[0].name) == (problem != "row"), variants[0].name
    for v in groups:
        assert v.launches[0].params["tile"].local_bytes <= target.local_bytes


def test_small_maps_are_divided_between_more_groups():
    variants, _ = offered(*PROBLEMS["small_map"], Target("gpu", 4, 32, 256, 49152, winograd=False))
    assert variants[0].launches[0].params["k_slices"] > 1 and len(variants[0].launches) == 2
    variants, _ = offered(*PROBLEMS["small_map"], Target("gpu", 4, 1, 256, 49152, winograd=False))
    assert variants[0].launches[0].params["k_slices"] == 1


@pytest.mark.parametrize("problem", PROBLEMS)
def test_cpus_have_none(problem):
    variants, candidates = offered(*PROBLEMS[problem], Target())
    assert not [v for v in (*variants, *candidates) if "workgroup" in v.name]


def test_tiles_fit_the_device():
    for threads, nbytes in ((64, 16384), (256, 32768), (1024, 65536)):
        target = Target("gpu", 4, 8, threads, nbytes)
        for m, n, k in itertools.product((1, 40, 3000), (3, 64, 3000), (8, 500)):
            splits = group_tiles(GemmShape(m, n, k), target)
            assert len(splits) <= MAX_TILES and all(fits(s.tile, target) for s in splits)
            assert (m, n) == (1, 3) or splits, (m, n, k, target)


@pytest.mark.parametrize("chunks,most", list(itertools.product((1, 5, 8, 13), (1, 2, 5, 9))))
def test_no_slice_is_empty(chunks, most):
    slices = even_slices(chunks, most)
    share = -(-chunks // slices)
    assert 1 <= slices <= most and (slices - 1) * share < chunks <= slices * share


def test_vectors_divide_all_numbers():
    assert [widest(x) for x in ([8, 12], [8, -6], [0, 3], [0])] == [4, 2, 1, 4]


@pytest.mark.exhaustive
@pytest.mark.parametrize("m,n", list(itertools.product((1, 2, 13, 31, 65), (1, 3, 16, 17, 33, 64))))
def test_every_small_product(device, m, n):
    for k in (1, 8, 15, 33, 130):
        for how in ("packed", "", "a", "b"):
            a = normal((2, k, m) if how == "a" else (2, m, k))
            b = normal((2, n, k) if how == "b" else (2, k, n), 1)
            spec = Gemm(trans_a=how == "a", trans_b=how == "b")
            consts = (1,) if how == "packed" else ()
            check_op(device, spec, [a, b, None], consts=consts, every=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "kernel,stride,dilation,pad", list(itertools.product((1, 2, 3), (1, 2), (1, 2), (0, 1)))
)
def test_every_small_convolution(device, kernel, stride, dilation, pad):
    reach = dilation * (kernel - 1) + 1
    for size, (ic, oc, group) in itertools.product(
        (reach, 9), ((3, 5, 1), (16, 33, 1), (8, 8, 2), (12, 6, 3))
    ):
        win = window((kernel,) * 2, (stride,) * 2, (dilation,) * 2, (pad,) * 2, (pad,) * 2)
        convolve(device, (2, ic, size, size), oc, win, group, only=None, every=True)


MODES = {"_w16": RegisterMode(128, 16), "_w16_large": RegisterMode(256, 16, True)}


@pytest.mark.parametrize("label", MODES)
def test_kernels_ask_for_registers(device, with_tile, label):
    """Devices that know nothing of it build and run them all the same; one that does may refuse."""
    info = select(device)
    lists = "cl_intel_required_subgroup_size" in info.extensions
    if lists and not info.caps.required_subgroups:
        pytest.skip(info.caps.required_subgroups.reason)
    with_tile(replace(SMALL, mode=MODES[label]))
    (name,) = multiply(device, 7, 33, 21)
    assert f"{label}_" in name
    (name,) = convolve(device, (1, 8, 3, 3), 6, SAME)
    assert f"{label}_" in name


def test_what_kernels_ask_for_is_in_their_text():
    fixed = "__attribute__((reqd_work_group_size(64, 1, 1)))"
    assert group_size((64,)) == group_size((64,), UNASKED) == fixed
    wave = '__attribute__((target("wavefrontsize64")))'
    assert group_size((64,), RegisterMode(0, 64)) == f"{wave}\n{fixed}"
    lines = group_size((64,), RegisterMode(256, 16, True)).splitlines()
    assert lines == [LARGE_REGISTERS, "__attribute__((intel_reqd_sub_group_size(16)))", fixed]


INTEL = frozenset({"required_subgroups", "large_registers"})
REGISTERS = {  # of a work-item and capabilities -> the modes of products of 1024 rows, the best first
    "all": (0, frozenset(), {UNASKED}),
    "amd": (0, frozenset({"wave64"}), {UNASKED, RegisterMode(0, 64)}),
    "of 8": (128, frozenset({"required_subgroups"}), {RegisterMode(128)}),
    "of 8, large": (128, INTEL, {RegisterMode(128), RegisterMode(256, 0, True)}),
    "of 32": (64, frozenset(), {RegisterMode(64)}),
    "of 32 or 16": (
        64,
        frozenset({"required_subgroups"}),
        {RegisterMode(128, 16)},
    ),
    "of 32 or 16, large": (
        64,
        INTEL,
        {RegisterMode(n, *m) for n, *m in ((128, 16), (256, 16, True))},
    ),
}


@pytest.mark.parametrize("device_has", REGISTERS)
def test_tiles_have_the_registers_that_they_need(device_has):
    has, features, modes = REGISTERS[device_has]
    target = Target("gpu", 4, 32, 256, 65536, features, item_registers=has)
    for computed in (0, 3):
        splits = group_tiles(GemmShape(1024, 1024, 1024, computed=computed), target)
        assert all(holds(s.tile.mode, s.tile, bool(computed)) for s in splits)
        assert [s.cost for s in splits] == sorted(s.cost for s in splits)
        found = {s.tile.mode for s in splits}
        assert found <= set(target.register_modes) and (computed or found >= modes)
        assert len({s.label for s in splits}) == len(splits) >= (0 if computed else 4)


STORED = ("f16", "bf16")


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("how,slices", [("packed", 1), ("packed", 2), ("", 1), ("ab", 1)])
def test_products_of_stored_operands(device, with_tile, dtype, how, slices):
    """Rows of 12 and 20 elements are read as vectors, those of 13 one by one; sums are float32."""
    with_tile(SMALL, slices)
    extra, post_ops = [normal((2, 17, 21), 7)], (PostOp("add", operand=3), PostOp("relu"))
    multiply(device, 17, 12, 20, how, dtype=dtype)
    multiply(device, 17, 13, 21, how, (2,), post_ops, extra, dtype=dtype)


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("slices,group", [(1, 1), (2, 1), (1, 2)])
def test_convolutions_of_stored_operands(device, with_tile, dtype, slices, group):
    with_tile(SMALL, slices)
    post_ops, extra = (PostOp("add", operand=3), PostOp("relu")), [normal((2, 22, 5, 6), 5)]
    orders = {"i3": (0, 2, 3, 1)}
    how = {"orders": orders, "dtype": dtype}
    convolve(device, (2, 16, 5, 6), 22, SAME, group, post_ops, extra, **how)
    convolve(device, (1, 6, 3, 3), 6, SAME, group, bias=False, dtype=dtype)


@pytest.mark.parametrize("dtype", STORED)
def test_stored_products_take_groups(dtype):
    """On GPUs without tensor cores, as products of float32 do."""
    target = Target("gpu", 4, 32, 256, 49152, winograd=False)
    for problem, (spec, inputs, consts) in PROBLEMS.items():
        graph = store_as(single_node(spec, inputs, consts), STORAGE[dtype])
        found = []

        def note(node, problem, variants, found=found):
            found.extend(variants if node.name == "node" else ())
            return variants[0]

        make_plan(graph, target, note)
        assert ("workgroup" in found[0].name) == (problem != "row"), found[0].name


@pytest.mark.parametrize("device_has", REGISTERS)
def test_winograd_has_the_registers_that_it_needs(device_has):
    """Of the fused kernel, chunks of 8 channels need more than those of 4."""
    has, features, _ = REGISTERS[device_has]
    target = Target("gpu", 4, 32, 256, 65536, features, item_registers=has)
    _, candidates = offered(*PROBLEMS["image"], target)
    fused = [v.launches[0].params["tile"] for v in candidates if "winograd_fused" in v.name]
    most = max(mode.registers or 256 for mode in target.register_modes)
    assert {tile.bk for tile in fused} == {64: set(), 128: set(), 256: {4, 8}}[most]
    assert all(has_room(tile.mode, VALUES[tile.bk]) for tile in fused)
    named = [launch.params["name"] for v in candidates for launch in v.launches]
    assert ("winograd_output_f4_v2" in named) == (has == 0)
    assert ("winograd_output_f4_v1" in named) == (has != 64)


XE2 = Target("gpu", 4, 32, 256, 65536, INTEL, item_registers=128, item_room=100, asks_for=16)


def test_what_is_known_of_a_device_counts():
    """More values of a kernel that asks for nothing; with large registers it asks for subgroups, too."""
    plain, large = XE2.register_modes
    assert plain == RegisterMode(128, room=100) and large == RegisterMode(256, 16, True)
    for features in (frozenset({"large_registers"}), frozenset({"required_subgroups"})):
        assert replace(XE2, features=features).register_modes == (plain,)
    assert (
        has_room(plain, 100) and not has_room(plain, 101) and not has_room(RegisterMode(128), 100)
    )
    splits = group_tiles(GemmShape(1024, 1024, 1024), XE2)
    assert {s.tile.mode for s in splits} == {plain, large}
    fused = [v for v in offered(*PROBLEMS["image"], XE2)[1] if "winograd_fused" in v.name]
    tiles = [v.launches[0].params["tile"] for v in fused]
    assert {(t.bk, t.mode) for t in tiles} == {(4, plain), (4, large), (8, large)}

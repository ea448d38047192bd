"""Winograd's convolution by transforms and products of work-groups: code for GPUs, on any device."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from harness import check_op, normal, single_node
from targets import GPU, generate_for

from clnn.ops.conv import winograd, winograd_cpu, winograd_fused, winograd_gpu
from clnn.ops.conv.spec import Conv2d
from clnn.ops.conv.winograd import TileGrid
from clnn.ops.conv.winograd_gpu import MOST_IMAGE_BYTES, SHARE_BYTES, share_of
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.ops.shared.workgroup_tiles import GroupTile, SplitK
from clnn.plan.schedule import make_plan
from clnn.target import Target

pytestmark = [
    pytest.mark.dealt,  # kernels that are slow to build
    pytest.mark.usefixtures("as_gpu"),
]

LARGE = Target("gpu", 4, 32, 256, 49152)
SMALL = GroupTile(8, 16, 2, 2, 8, 2, 4)
RESIDUAL = (PostOp("add", operand=3), PostOp("relu"))


@pytest.fixture
def with_sizes(monkeypatch):
    """Return a function that leaves sizes of output tiles, and one tile in so many slices."""

    def use(*sizes, parts=1):
        monkeypatch.setattr(winograd_gpu, "SIZES", sizes)
        monkeypatch.setattr(winograd_gpu, "group_tiles", lambda *_: [SplitK(0.0, SMALL, parts)])

    return use


def window(before=(1, 1), after=(1, 1)):
    return Window((3, 3), (1, 1), (1, 1), before, after)


def convolve(device, shape, oc, win=None, post_ops=(), extra=(), bias=True, **how):
    """Check Winograd's convolutions; return the names of what ran."""
    inputs = [normal(shape), normal((oc, shape[1], 3, 3), 1), normal((oc,), 2) if bias else None]
    how = {"consts": (1, 2), "only": "winograd_workgroup"} | how
    return check_op(device, Conv2d(win or window(), 1, post_ops), [*inputs, *extra], **how)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    "pads,high,wide",
    [
        (((1, 1), (1, 1)), 9, 10),
        (((0, 0), (0, 0)), 8, 7),
        (((0, 2), (3, 1)), 6, 8),
        (((1, 1), (1, 1)), 8, 4),
    ],
    ids=str,
)
def test_pads_and_tiles_that_end_beyond_the_image(device, with_sizes, size, pads, high, wide):
    with_sizes(size)
    convolve(device, (2, 8, high, wide), 12, window(*pads), border=1)


@pytest.mark.parametrize("size,ic,oc", [(2, 12, 8), (4, 6, 18), (4, 5, 3)])
def test_channels_and_widths_of_vectors(device, with_sizes, size, ic, oc):
    with_sizes(size)
    names = convolve(device, (2, ic, 5, 6), oc, every=True)
    wanted = [w for w in ((1, 2, 4) if size == 2 else (1, 2)) if ic % w == 0 and oc % w == 0]
    assert [n.split("_")[3] for n in sorted(names)] == [f"v{w}" for w in wanted]


@pytest.mark.parametrize("size,height,width", [(2, 1, 1), (4, 1, 3)])
def test_small_images(device, with_sizes, size, height, width):
    with_sizes(size)
    convolve(device, (1, 4, height, width), 8, bias=False)


def test_sums_in_parts(device, with_sizes):
    with_sizes(4, parts=3)
    extra = [normal((2, 20, 6, 5), 5)]
    (name,) = convolve(device, (2, 24, 6, 5), 20, post_ops=RESIDUAL, extra=extra)
    assert "_p3" in name


STEPS = {
    "residual": RESIDUAL,
    "swapped": (PostOp("sub", operand=3, swapped=True),),
    "heavy": (PostOp("gelu"), PostOp("mul", operand=3)),
}


@pytest.mark.parametrize(
    "post_ops,shape",
    [
        ("residual", (2, 12, 5, 6)),
        ("heavy", (1, 12, 1, 1)),
        ("swapped", (1, 1, 5, 6)),
        ("heavy", (2, 12, 5, 6)),
    ],
)
def test_steps(device, with_sizes, post_ops, shape):
    with_sizes(4)
    convolve(device, (2, 8, 5, 6), 12, post_ops=STEPS[post_ops], extra=[normal(shape, 7)])


@pytest.mark.parametrize("channels", [1, 3])
def test_an_input_of_few_channels_stays_in_planes(device, with_sizes, channels):
    with_sizes(2)
    order = {"i0": (0, 1, 2, 3)}
    convolve(device, (2, channels, 6, 5), 8, orders=order, border=2)


def test_results_go_to_any_place(device, with_sizes):
    with_sizes(4)
    orders = {"o0": (0, 1, 2, 3), "i3": (1, 0, 2, 3)}
    extra = [normal((2, 12, 6, 7), 7)]
    convolve(device, (2, 8, 6, 7), 12, post_ops=RESIDUAL, extra=extra, orders=orders, every=True)


@pytest.mark.parametrize("shape", [(6, 12, 5, 6), (1, 12, 1, 1)])
def test_a_batch_in_shares(device, with_sizes, monkeypatch, shape):
    """Images that do not fit scratch memory together take turns; operands move along."""
    with_sizes(4)
    monkeypatch.setattr(winograd_gpu, "SHARE_BYTES", 4 * 36 * 4 * 20 * 3 + 4)
    extra = [normal(shape, 7)]
    (name,) = convolve(device, (6, 8, 5, 6), 12, post_ops=RESIDUAL, extra=extra, border=1)
    assert name.endswith("_n3")


# All in one kernel


@pytest.mark.parametrize(
    "ic,oc,pads,high,wide",
    [
        (8, 32, ((1, 1), (1, 1)), 9, 10),
        (5, 40, ((0, 0), (0, 0)), 8, 7),
        (12, 3, ((0, 2), (3, 1)), 6, 8),
        (1, 33, ((1, 1), (1, 1)), 1, 3),
    ],
    ids=str,
)
def test_fused_pads_and_channels(device, monkeypatch, ic, oc, pads, high, wide):
    generate_for(monkeypatch, replace(GPU, local_bytes=49152))
    names = convolve(
        device, (2, ic, high, wide), oc, window(*pads), only="fused", border=1, every=True
    )
    assert {n.split("_")[3] for n in names} == {"k4", "k8"}


@pytest.mark.parametrize("post_ops,shape", [("residual", (2, 35, 5, 6)), ("heavy", (1, 35, 1, 1))])
def test_fused_steps(device, post_ops, shape):
    """Few channels in planes, outputs and operands anywhere, channels that fill no block."""
    orders = {"i0": (0, 1, 2, 3), "o0": (0, 1, 2, 3), "i3": (1, 0, 2, 3)}
    extra, how = (
        [normal(shape, 7)],
        {"orders": orders, "only": "fused", "bias": post_ops == "heavy"},
    )
    convolve(device, (2, 3, 5, 6), 35, post_ops=STEPS[post_ops], extra=extra, **how)


def test_fused_kernels_fit_the_device():
    for local, items, slices in (
        (16384, 256, set()),
        (32768, 256, {4}),
        (49152, 256, {4, 8}),
        (49152, 128, set()),
    ):
        target = replace(LARGE, local_bytes=local, max_work_group=items)
        made = [v for v in offered((1, 64, 28, 28), 64, target)[1] if "fused" in v.name]
        assert {v.launches[0].params["tile"].bk for v in made} == slices


@pytest.mark.parametrize(
    "pack",
    [
        lambda w, m: winograd_gpu._packed(w, m, SplitK(0.0, SMALL)),
        lambda w, m: winograd_fused.pack(w, winograd_fused.fused_tile(8)),
        lambda w, m: winograd_cpu.pack(w, m, 1, 32, 16),
    ],
    ids=["groups", "fused", "cpu"],
)
def test_weights_are_packed_a_few_at_a_time(monkeypatch, pack):
    """What is held besides the packed weights is small, however many there are."""
    monkeypatch.setattr(winograd, "AT_ONCE", 2**12)
    weights = normal((1030, 100, 3, 3))
    want = winograd.transformed(weights, 2)
    tracemalloc.start()
    packed = pack(weights, 2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.6 * packed.nbytes
    assert np.isclose(np.abs(packed.astype(np.float64)).sum(), np.abs(want).sum(), rtol=1e-6)
    assert np.count_nonzero(packed) == np.count_nonzero(want.astype(np.float32))


# What is chosen


def offered(shape, oc, target=LARGE, win=None, spec=None, consts=(1, 2)):
    """Return (variants, candidates) of a convolution."""
    found = {}

    def note(node, problem, variants):
        if node.name == "node":
            found["all"] = (variants, node.spec.candidates(problem))
        return variants[0]

    spec = spec or Conv2d(win or window())
    weights = np.zeros((oc, shape[1] // spec.group, *spec.window.kernel), np.float32)
    inputs = [np.zeros(shape, np.float32), weights, None]
    make_plan(single_node(spec, inputs, consts), target, note)
    return found["all"]


def named(variants):
    return [v for v in variants if "winograd" in v.name]


def test_it_is_chosen_where_products_are_many():
    variants, candidates = offered((1, 128, 56, 56), 128)
    assert "winograd_workgroup" in variants[0].name and variants[0].error > 0
    names = [v.name for v in named(candidates)]
    assert len(names) == len(set(names)) >= 12
    assert {"fused_f2", "workgroup_f2", "workgroup_f4"} == {
        "_".join(n.split("_")[1:3]) for n in names
    }
    others = [v for v in candidates if "conv2d_workgroup" in v.name]
    assert variants[0].cost < min(v.cost for v in others)


def test_it_is_not_chosen_where_transforms_are_more_than_they_save():
    variants, _ = offered((1, 3, 56, 56), 16)
    assert "winograd" not in variants[0].name


@pytest.mark.parametrize("case", ["off", "stride", "dilated", "groups", "kernel", "moving"])
def test_where_it_does_not_fit(case):
    win = {
        "stride": Window((3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
        "dilated": Window((3, 3), (1, 1), (2, 2), (2, 2), (2, 2)),
        "kernel": Window((5, 5), (1, 1), (1, 1), (2, 2), (2, 2)),
    }.get(case, window())
    spec = Conv2d(win, 2 if case == "groups" else 1)
    target = replace(LARGE, winograd=case != "off")
    consts = () if case == "moving" else (1, 2)
    variants, candidates = offered((1, 64, 28, 28), 64, target, spec=spec, consts=consts)
    assert not named(variants) and not named(candidates)
    assert named(offered((1, 64, 28, 28), 64)[0])


def test_scratch_memory_is_bounded():
    for batch in (1, 6, 7, 64):
        for m in (2, 4):
            share = share_of(TileGrid(m, 64, 64, 112, 112, batch))
            assert batch % share.images == 0
            nbytes = 4 * share.elements(128)
            assert nbytes <= SHARE_BYTES or (share.images == 1 and nbytes <= MOST_IMAGE_BYTES)
    assert share_of(TileGrid(4, 512, 512, 1024, 1024, 1)) is None
    variants, candidates = offered((1, 512, 512, 512), 512)
    assert all("fused" in v.name for v in (*named(variants), *named(candidates)))


def test_tiles_whose_parts_do_not_fit_take_no_place_of_others(monkeypatch):
    """Wider vectors are offered with the best tile that fits."""
    splits = [*(SplitK(0.0, SMALL, parts) for parts in (9, 8, 7, 6, 5)), SplitK(1.0, SMALL)]
    monkeypatch.setattr(winograd_gpu, "group_tiles", lambda *_: splits)
    monkeypatch.setattr(winograd_gpu, "MOST_IMAGE_BYTES", 4 * 16 * 9 * 16 * 4)
    names = [v.name for v in offered((1, 16, 6, 6), 16)[1] if "workgroup_f2" in v.name]
    assert sorted(n.split("_")[3] for n in names) == ["v1", "v2", "v4"]


def test_scratch_memory_is_planned():
    """The plan has room for what the launches of a node share, and no more."""
    variants = named(offered((1, 64, 28, 28), 64)[0])
    variant = next(v for v in variants if "fused" not in v.name)
    given = {
        arg.name: arg.nbytes
        for launch in variant.launches
        for arg in launch.args
        if hasattr(arg, "nbytes")
    }
    m = variant.launches[0].params["m"]
    tiles, places = (-(-28 // m)) ** 2, (m + 2) ** 2
    parts = variant.launches[2].params["k_slices"]
    assert given == {"inputs": 4 * places * tiles * 64, "products": 4 * parts * places * tiles * 64}

"""Separable convolutions by work-groups that filter what they fetch: code for GPUs, on any device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from harness import check_op, compare, normal, single_node
from targets import generate_for
from test_separable import CONSTS, RELU, RESIDUAL, SAME, case, window

from clnn.graph.ir import Graph, Node, check
from clnn.graph.passes.store import store_as
from clnn.ops.conv import separable_workgroup
from clnn.ops.conv.separable import Separable
from clnn.ops.movement.views import Slice
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.ops.shared.workgroup_tiles import (
    GemmShape,
    GroupTile,
    SplitK,
    group_tiles,
    second_launch,
)
from clnn.options import Options
from clnn.plan.layouts import Hints
from clnn.plan.schedule import make_plan
from clnn.runtime.device.device import select
from clnn.runtime.run.session import Session
from clnn.target import Target
from clnn.types import STORED_F16, TensorType

pytestmark = pytest.mark.dealt  # kernels that are slow to build

GPU = Target("gpu", vector=4, compute_units=16, max_work_group=256, local_bytes=32768)
SMALL = GroupTile(16, 16, 2, 2, 8, 2, 4)
ONE_STAGE = GroupTile(32, 32, 4, 4, 16, 1, 0)
WIDE = GroupTile(8, 64, 2, 4, 8, 2, 0)
SIXTH = (PostOp("clip", (0.0, 6.0)),)
NAME = "separable_workgroup"


@pytest.fixture(autouse=True)
def as_gpu(monkeypatch):
    """Let sessions generate the code that they would for a GPU."""
    generate_for(monkeypatch, GPU)


@pytest.fixture
def with_tile(monkeypatch):
    """Return a function that lets one tile be the only one."""

    def use(tile):
        only = [SplitK(0.0, tile)]
        monkeypatch.setattr(separable_workgroup, "group_tiles", lambda sums, target: only)

    return use


# (n, c, oc, h, w), window, tile; vectors are 4, 2 and 1 wide, and last slices lack terms.
CASES = {
    "even": ((1, 16, 20, 7, 9), SAME, SMALL),
    "odd": ((1, 13, 19, 6, 7), SAME, ONE_STAGE),
    "pairs_of_images": ((2, 10, 33, 5, 5), SAME, SMALL),
    "stride": ((2, 12, 16, 9, 8), window((3, 3), (2, 2), (1, 1), (0, 0), (1, 1)), WIDE),
    "dilated": ((1, 20, 35, 8, 7), window((3, 3), (1, 1), (2, 2), (2, 2), (2, 2)), SMALL),
    "five": ((1, 24, 18, 6, 5), window((5, 5), (1, 2), (1, 1), (2, 2), (2, 2)), ONE_STAGE),
    "one_pixel": ((1, 9, 70, 3, 3), window((3, 3)), WIDE),
    "one_channel": ((2, 1, 5, 4, 5), window((2, 3), (1, 1), (1, 1), (1, 0), (0, 2)), SMALL),
}


@pytest.mark.parametrize("name", CASES)
def test_filters_and_products(device, with_tile, name):
    shape, win, tile = CASES[name]
    with_tile(tile)
    spec, inputs = case(*shape, win, first=SIXTH)
    (ran,) = check_op(device, spec, inputs, consts=CONSTS, only=NAME, border=1)
    width = 4 if shape[1] % 4 == 0 else 2 if shape[1] % 2 == 0 else 1
    assert f"_t{width}r4_" in ran


@pytest.mark.parametrize("biases", [(True, False), (False, False)])
def test_without_shift_or_bias(device, with_tile, biases):
    with_tile(SMALL)
    spec, inputs = case(1, 12, 17, 5, 6, first=(), biases=biases)
    check_op(device, spec, inputs, consts=CONSTS, only=NAME)


STEPS = {
    "residual": (RESIDUAL, (2, 19, 5, 8)),
    "per_channel": ((PostOp("mul", operand=5), PostOp("sigmoid")), (19, 1, 1)),
}


@pytest.mark.parametrize(
    "name,order",
    [
        ("residual", (0, 1, 2, 3)),
        ("residual", (0, 2, 3, 1)),
        ("per_channel", (1, 2, 3, 0)),
    ],
)
def test_steps_and_orders_of_results(device, with_tile, name, order):
    with_tile(SMALL)
    post_ops, extra = STEPS[name]
    first = (PostOp("swish", (1.0,)),)
    spec, inputs = case(2, 12, 19, 5, 8, first=first, post_ops=post_ops, extra=extra)
    check_op(device, spec, inputs, consts=CONSTS, orders={"o0": order}, only=NAME)


def test_one_spatial_axis(device, with_tile):
    with_tile(SMALL)
    spec = Separable(Window((5,), (2,), (1,), (2,), (2,)), RELU)
    inputs = [normal((2, 12, 17)), normal((12, 1, 5), 1), None, normal((18, 12, 1), 3), None]
    check_op(device, spec, inputs, consts=CONSTS, only=NAME)


def test_what_lies_behind_the_last_channel_is_no_part_of_a_pixel(device, with_tile):
    """A view of some channels: its neighbours in memory are NaN."""
    with_tile(SMALL)
    cut = Slice((0, 4, 0, 0), (1, 12, 6, 7), (1, 1, 1, 1))
    spec, inputs = case(1, 12, 18, 6, 7, window((3, 3)))
    whole = np.full((1, 20, 6, 7), np.nan, np.float32)
    whole[:, 4:16] = inputs[0]
    types = {"whole": TensorType(whole.shape), "x": TensorType(inputs[0].shape)}
    types |= {f"i{k}": TensorType(inputs[k].shape) for k in CONSTS}
    types["y"] = TensorType((1, 18, 4, 5))
    names = [f"i{k}" for k in CONSTS]
    nodes = (Node("cut", cut, ("whole",), ("x",)), Node("node", spec, ("x", *names), ("y",)))
    consts = {f"i{k}": inputs[k] for k in CONSTS}
    graph = check(Graph(nodes, types, consts, ("whole",), {"y": "y"}))

    def pick(node, problem, variants):
        return next((v for v in variants if NAME in v.name), variants[0])

    hints = Hints({}, {"whole": (0, 2, 3, 1)})
    with Session(graph, select(device), Options(fuse=False), pick, hints) as session:
        assert any(NAME in row["variant"] for row in session.placement.nodes)
        got = session({"whole": whole})["y"]
    (want,) = spec.reference(*(a.astype(np.float64) for a in inputs))
    compare(got, want, 1e-5, device)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["odd", "stride", "five", "one_pixel"])
def test_every_tile(device, name):
    shape, win, _ = CASES[name]
    spec, inputs = case(*shape, win)
    check_op(device, spec, inputs, consts=CONSTS, every=True, only=NAME, border=2)


# What is chosen


def offered(target, shape, consts=CONSTS, dtype=None, **how):
    """Return (variants, candidates, problem) of a separable convolution."""
    spec, inputs = case(*shape, **how)
    graph, found = single_node(spec, inputs, consts), []

    def note(node, problem, variants):
        if node.name == "node":
            found.append((variants, node.spec.candidates(problem), (node.spec, problem)))
        return variants[0]

    make_plan(graph if dtype is None else store_as(graph, dtype), target, note)
    return found[0]


def is_one(variant):
    return variant.name.startswith(NAME)


def test_one_kernel_where_the_device_is_filled_by_few_columns():
    variants, *_ = offered(GPU, (1, 32, 64, 28, 28))
    assert is_one(variants[0]) and "+" in variants[1].name and "reference" in variants[-1].name
    assert len(variants[0].launches) == 1


@pytest.mark.parametrize("shape", [(1, 128, 512, 28, 28), (8, 128, 128, 56, 56)], ids=str)
def test_two_kernels_where_filters_would_be_computed_again(shape):
    variants, *_ = offered(GPU, shape)
    assert "+" in variants[0].name and any(map(is_one, variants))


def test_candidates_are_whole_sums_by_rising_cost():
    variants, candidates, _ = offered(GPU, (1, 256, 64, 7, 7))
    ones, names = [v for v in candidates if is_one(v)], [v.name for v in candidates]
    costs = [v.cost for v in candidates]
    assert len(ones) >= 6 and len(set(names)) == len(names) and costs == sorted(costs)
    assert next(v for v in variants if is_one(v)).name == ones[0].name
    for v in ones:
        assert len(v.launches) == 1
        tile = v.launches[0].params["tile"]
        assert tile.threads <= GPU.max_work_group and tile.local_bytes <= GPU.local_bytes


def test_filters_cost_more_with_more_blocks_and_more_taps():
    def cost(columns, computed):
        splits = group_tiles(GemmShape(784, columns, 64, computed=computed, split=False), GPU)
        assert all(split.slices == 1 for split in splits)
        return min(split.cost for split in splits if split.tile.bn == 64)

    few, many = (cost(columns, 27) - cost(columns, 0) for columns in (64, 256))
    assert 0 < 3 * few < many and cost(64, 75) > cost(64, 27)


def test_a_second_launch_has_its_cost_on_gpus():
    _, _, (spec, problem) = offered(GPU, (1, 32, 64, 28, 28))
    pair, gpu = spec._pairs(problem)
    free = spec._pairs(replace(problem, target=replace(GPU, kind="cpu")))[-1]
    launch = second_launch(GPU)
    assert pair.cost > launch and gpu.cost - free.cost == launch


UNFIT = {
    "cpu": {"target": Target("cpu", 16, 2, 256, 2**20)},
    "computed_weights": {"consts": (1, 2, 4)},
    "computed_taps": {"consts": (2, 3, 4)},
    "stored_in_16_bits": {"dtype": STORED_F16},
}


@pytest.mark.parametrize("why", UNFIT)
def test_where_it_does_not_fit(why):
    variants, candidates, _ = offered(**{"target": GPU, "shape": (1, 32, 64, 28, 28)} | UNFIT[why])
    assert variants and not any(map(is_one, (*variants, *candidates)))

"""Convolutions whose results are pooled in registers, and the graphs in which they become one node."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from harness import check_op, normal, of_cpus

from clnn.errors import ShapeError
from clnn.graph.ir import Graph, Node, check
from clnn.ops.conv.pooled import PooledConv, is_pooled
from clnn.ops.conv.spec import Conv2d
from clnn.ops.pool.spec import Pool
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.plan.pooled import pool_at_once
from clnn.target import Target
from clnn.types import TensorType

pytestmark = pytest.mark.dealt  # kernels that are slow to build

CONSTS = (1, 2)
NHWC = {"i0": (0, 2, 3, 1), "o0": (0, 2, 3, 1)}
RELU = (PostOp("relu"),)
SAME = Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
HALVES = Window((2, 2), (2, 2), (1, 1), (0, 0), (0, 0))
CPU = Target(compute_units=2)


def case(size, ic, oc, mode="max", win=SAME, post_ops=RELU, group=1, bias=True):
    spec = PooledConv(Conv2d(win, group, tuple(post_ops)), Pool(HALVES, mode))
    weights = normal((oc, ic // group, 3, 3), 1) / np.float32(np.sqrt(9 * ic // group))
    return spec, [normal((size[0], ic, *size[1:])), weights, normal((oc,), 2) if bias else None]


def is_single(name):
    return name.startswith("winograd") and "+" not in name


@pytest.mark.parametrize("mode", ["max", "average"])
@pytest.mark.parametrize("size", [(2, 2, 2), (1, 9, 11), (3, 8, 12), (1, 6, 5)], ids=str)
def test_sizes(device, size, mode):
    """Rows and columns that no tile fills, and such that no window holds."""
    spec, inputs = case(size, 16, 32, mode)
    ran = check_op(device, spec, inputs, consts=CONSTS, orders=NHWC, border=1)
    assert any(map(is_single, ran)) or not of_cpus(device), ran
    assert any("reference" in name for name in ran), ran


@pytest.mark.parametrize(
    ("ic", "oc", "group"), [(16, 16, 1), (24, 40, 1), (19, 35, 1), (64, 96, 2)]
)
def test_channels(device, ic, oc, group):
    spec, inputs = case((1, 7, 10), ic, oc, group=group, bias=group == 1, post_ops=())
    assert any(map(is_single, check_op(device, spec, inputs, consts=CONSTS, orders=NHWC)))


def test_strides_and_pads(device):
    uneven = Window((3, 3), (1, 1), (1, 1), (0, 2), (1, 0))
    for win in (uneven, replace(SAME, strides=(2, 2))):
        spec, inputs = case((1, 13, 12), 16, 16, win=win)
        ran = check_op(device, spec, inputs, consts=CONSTS, orders=NHWC)
        assert any(map(is_single, ran)) or not of_cpus(device)


def test_every_candidate(device):
    """Sets, parts and tiles of 6 x 6; tiles of an odd side are none."""
    spec, inputs = case((1, 14, 13), 16, 64)
    ran = check_op(device, spec, inputs, consts=CONSTS, orders=NHWC, every=True)
    assert {name.split("_f")[2][0] for name in ran if is_single(name)} >= {"2", "4"}, ran


def test_stored_in_16_bits(device):
    spec, inputs = case((1, 6, 9), 16, 32)
    ran = check_op(device, spec, inputs, consts=CONSTS, orders=NHWC, dtype="f16")
    assert any(map(is_single, ran)), ran


def test_no_window():
    spec, inputs = case((1, 1, 8), 16, 16)
    with pytest.raises(ShapeError, match="hold no window"):
        spec.infer([TensorType(a.shape) for a in inputs])


def test_which_poolings():
    assert is_pooled(Pool(HALVES, "max")) and is_pooled(Pool(HALVES, "average"))
    others = [
        Pool(HALVES, "lp"),
        Pool(HALVES, "max", indices="row"),
        Pool(HALVES, "max", post_ops=RELU),
        Pool(replace(HALVES, kernel=(3, 3)), "max"),
        Pool(replace(HALVES, strides=(2, 1)), "max"),
        Pool(replace(HALVES, dilations=(2, 2)), "max"),
        Pool(replace(HALVES, before=(1, 1)), "max"),
        Pool(replace(HALVES, ceil=True), "max"),
    ]
    assert not any(map(is_pooled, others))


def graph_of(side=128, channels=32, *, kept=None, win=SAME, post_ops=RELU, dynamic=False):
    """Return x -> convolution -> pooling; kept: a value that is an output as well."""
    shapes = {
        "x": (1, channels, side, side),
        "w": (channels, channels, 3, 3),
        "v": (1, channels, side, side),
        "y": (1, channels, side // 2, side // 2),
    }
    consts = {} if dynamic else {"w": np.ones(shapes["w"], np.float32)}
    inputs = ("x", "w") if dynamic else ("x",)
    operands = tuple("x" for step in post_ops if step.operand)
    nodes = [
        Node("conv", Conv2d(win, 1, post_ops), ("x", "w", None, *operands), ("v",)),
        Node("pool", Pool(HALVES, "max"), ("v",), ("y",)),
    ]
    types = {name: TensorType(shape) for name, shape in shapes.items()}
    outputs = {"y": "y"} | ({kept: kept} if kept else {})
    return check(Graph(tuple(nodes), types, consts, inputs, outputs))


def kinds(graph, target=CPU):
    return [node.spec.kind for node in check(pool_at_once(graph, target)).nodes]


def test_large_maps_are_pooled_at_once():
    assert kinds(graph_of()) == ["pooled_conv"]


@pytest.mark.parametrize(
    "changes",
    [
        {"side": 64},
        {"channels": 16},
        {"kept": "v"},
        {"win": Window((3, 3), (1, 1), (2, 2), (2, 2), (2, 2))},
        {"post_ops": (PostOp("add", operand=3),)},
        {"dynamic": True},
    ],
    ids=str,
)
def test_others_stay_two_nodes(changes):
    assert kinds(graph_of(**changes)) == ["conv2d", "pool"]


def test_targets_without_such_kernels():
    for target in (replace(CPU, kind="gpu"), replace(CPU, winograd=False)):
        assert kinds(graph_of(), target) == ["conv2d", "pool"]

"""Filters per channel and the 1 x 1 convolution behind them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clnn.graph.ir import Graph, Node, check
from clnn.graph.passes import optimise
from clnn.ops.conv.separable import Separable
from clnn.ops.conv.spec import Conv2d
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.types import TensorType

SAME = Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
POINT = Window((1, 1), (1, 1), (1, 1), (0, 0), (0, 0))


def graph_of(second=POINT, *, kept=None, dynamic=None, group=4, between=(), residual=True):
    """Return x -> filters -> relu -> convolution + x; kept: a value that is an output as well."""
    made = np.random.default_rng(0)
    shapes = {
        "x": (1, 4, 5, 6),
        "v": (1, 4, 5, 6),
        "r": (1, 4, 5, 6),
        "p": (1, 4, 5, 6),
        "y": (1, 4, 5, 6),
        "taps": (4, 4 // group, 3, 3),
        "shift": (4,),
        "w": (4, 4, *second.kernel),
        "b": (4,),
    }
    types = {name: TensorType(shape) for name, shape in shapes.items()}
    consts = {
        n: made.standard_normal(shapes[n]).astype(np.float32) for n in ("taps", "shift", "w", "b")
    }
    inputs = ("x", *(() if dynamic is None else (dynamic,)))
    if dynamic:
        del consts[dynamic]
    nodes = [
        Node(
            "filters",
            Conv2d(SAME, group, between),
            ("x", "taps", "shift", *("x" for _ in between)),
            ("v",),
        ),
        Node("act", Eltwise((PostOp("relu"),)), ("v",), ("r",)),
        Node("point", Conv2d(second), ("r", "w", "b"), ("p",)),
        Node("sum", Eltwise((PostOp("add", operand=1),)), ("p", "x" if residual else "r"), ("y",)),
    ]
    outputs = {"y": "y"} | ({kept: kept} if kept else {})
    return check(Graph(tuple(nodes), types, consts, inputs, outputs))


def computed(graph, x, **more):
    values = {"x": x, **graph.consts, **more}
    for node in graph.nodes:
        given = (None if n is None else values[n] for n in node.inputs)
        values[node.outputs[0]] = node.spec.reference(*given)[0]
    return values[next(iter(graph.outputs.values()))]


def kinds(graph):
    return [node.spec.kind for node in optimise(graph).nodes]


def test_both_convolutions_become_one_node():
    graph = graph_of()
    made = optimise(graph)
    (node,) = made.nodes
    assert isinstance(node.spec, Separable)
    assert [s.fn for s in node.spec.first_post_ops] == ["relu"]
    assert node.spec.post_ops == (PostOp("add", operand=5),) and node.inputs[5] == "x"
    x = np.random.default_rng(1).standard_normal((1, 4, 5, 6)).astype(np.float32)
    np.testing.assert_allclose(computed(made, x), computed(graph, x), rtol=1e-5, atol=1e-5)


APART = {
    "an output between": {"kept": "r"},
    "weights that are computed": {"dynamic": "w"},
    "taps that are computed": {"dynamic": "taps"},
    "fewer filters": {"group": 2},
    "a wider second window": {"second": SAME},
    "an operand between": {"between": (PostOp("add", operand=3),)},
    "a second reader": {"residual": False},
}


@pytest.mark.parametrize("name", APART)
def test_what_stays_two_nodes(name):
    assert kinds(graph_of(**APART[name])).count("conv2d") == 2


BATCH_NORM = (PostOp("mul", operand=1), PostOp("add", operand=2), PostOp("relu"))


def scaled_graph(*, post_ops=BATCH_NORM, shape=(4, 1, 1), dynamic=None, second=POINT, kept=None):
    """Return x -> steps with operands s and t -> convolution."""
    made = np.random.default_rng(2)
    shapes = {
        "x": (2, 4, 5, 6),
        "v": (2, 4, 5, 6),
        "s": shape,
        "t": (1, 4, 1, 1),
        "y": (2, 3, 5, 6),
        "w": (3, 4, *second.kernel),
        "b": (3,),
    }
    types = {name: TensorType(s) for name, s in shapes.items()}
    consts = {n: made.standard_normal(shapes[n]).astype(np.float32) for n in ("s", "t", "w", "b")}
    inputs = ("x", *(() if dynamic is None else (dynamic,)))
    if dynamic:
        del consts[dynamic]
    nodes = (
        Node("scale", Eltwise(post_ops), ("x", "s", "t"), ("v",)),
        Node("point", Conv2d(second), ("v", "w", "b"), ("y",)),
    )
    outputs = {"y": "y"} | ({kept: kept} if kept else {})
    return check(Graph(nodes, types, consts, inputs, outputs))


SCALES = {  # steps, those that are left behind the filters
    "batch normalisation": (BATCH_NORM, ["relu"]),
    "swapped": ((PostOp("sub", operand=1, swapped=True), PostOp("div", operand=2)), []),
    "numbers": ((PostOp("mul", params=(0.5,)), PostOp("add", operand=1), PostOp("neg")), ["neg"]),
    "behind": (
        (PostOp("mul", operand=2), PostOp("relu"), PostOp("add", operand=1)),
        ["relu", "add"],
    ),
    "no scale": ((PostOp("relu"),), ["relu"]),
}


@pytest.mark.parametrize("name", SCALES)
def test_scale_and_shift_before_a_point_become_filters_of_one_tap(name):
    post_ops, left = SCALES[name]
    graph = scaled_graph(post_ops=post_ops)
    made = optimise(graph)
    (node,) = made.nodes
    assert isinstance(node.spec, Separable) and node.spec.window == POINT
    assert [s.fn for s in node.spec.first_post_ops] == left
    x = np.random.default_rng(3).standard_normal((2, 4, 5, 6)).astype(np.float32)
    np.testing.assert_allclose(computed(made, x), computed(graph, x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(2, 4, 1, 1), (1, 4, 1, 1), (4, 1, 1)])
@pytest.mark.parametrize("turned", [False, True])
def test_a_gate_is_applied_between(shape, turned):
    """x * s, s * x: s is computed, one number per channel; the sum behind has an operand of its own."""
    graph = scaled_graph(
        dynamic="s", shape=shape, post_ops=(PostOp("mul", operand=1), PostOp("relu"))
    )
    nodes = list(graph.nodes)
    if turned:
        nodes[0] = replace(nodes[0], inputs=("s", "x", "t"))
    nodes.append(Node("sum", Eltwise((PostOp("add", operand=1),)), ("y", "r"), ("z",)))
    types = graph.types | {"r": TensorType((2, 3, 5, 6)), "z": TensorType((2, 3, 5, 6))}
    graph = check(Graph(tuple(nodes), types, graph.consts, ("x", "s", "r"), {"z": "z"}))
    made = optimise(graph)
    (node,) = made.nodes
    assert isinstance(node.spec, Separable) and node.inputs[5:] == ("r", "s")
    assert node.spec.first_post_ops == (PostOp("mul", operand=6, swapped=turned), PostOp("relu"))
    assert node.spec.post_ops == (PostOp("add", operand=5),)
    draw = np.random.default_rng(4).standard_normal
    given = {n: draw(types[n].shape).astype(np.float32) for n in ("x", "s", "r")}
    wanted = computed(graph, **given)
    np.testing.assert_allclose(computed(made, **given), wanted, rtol=1e-4, atol=1e-4)


def test_what_single_precision_does_not_hold_is_not_folded():
    """1e30 * 1e30 is no float: the second factor stays a step; -0 stays what it is."""
    post_ops = (PostOp("mul", params=(1e30,)), PostOp("mul", params=(1e30,)), PostOp("reciprocal"))
    made = optimise(scaled_graph(post_ops=post_ops))
    (node,) = made.nodes
    assert node.spec.first_post_ops == post_ops[1:]
    assert np.signbit(made.consts[node.inputs[2]]).all()


SCALED_APART = {
    "an output between": {"kept": "v"},
    "a scale per pixel": {"shape": (5, 6)},
    "a computed scale of every element": {"shape": (2, 4, 5, 6), "dynamic": "s"},
    "weights that are computed": {"dynamic": "w"},
    "a wider second window": {"second": Window((1, 3), (1, 1), (1, 1), (0, 1), (0, 1))},
}


@pytest.mark.parametrize("name", SCALED_APART)
def test_which_scales_stay_nodes(name):
    assert kinds(scaled_graph(**SCALED_APART[name])) == ["eltwise", "conv2d"]


def test_a_scale_with_a_second_reader_stays_a_node():
    graph = scaled_graph()
    types = graph.types | {"z": TensorType((2, 3, 5, 6))}
    again = Node("again", Conv2d(POINT), ("v", "w", "b"), ("z",))
    graph = Graph((*graph.nodes, again), types, graph.consts, graph.inputs, {"y": "y", "z": "z"})
    assert kinds(check(graph)) == ["eltwise", "conv2d", "conv2d"]

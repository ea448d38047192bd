"""Activations that are spelled out: gates, gelu in every order, and what only looks like one."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from clnn.graph.ir import Graph, Node, check
from clnn.graph.passes import optimise
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.shared.functions import PostOp
from clnn.types import TensorType

GATES = {
    "swish": ((PostOp("sigmoid"),),),
    "mish": ((PostOp("softplus"),), (PostOp("tanh"),)),
    "hard_swish": ((PostOp("hard_sigmoid", (0.16666667, 0.5)),),),
}
MUL = PostOp("mul", operand=1)


def graph_of(chain, swapped=False, also=None):
    """Return y = x * f(x) behind a relu, f being a chain of nodes; also: a node kept as an output."""
    names = ["x", "v", *(f"g{k}" for k in range(len(chain))), "y"]
    types = {name: TensorType((2, 5)) for name in names}
    nodes = [Node("first", Eltwise((PostOp("relu"),)), ("x",), ("v",))]
    nodes += [
        Node(f"n{k}", Eltwise(post_ops), (names[k + 1],), (f"g{k}",))
        for k, post_ops in enumerate(chain)
    ]
    last = ("v", names[-2])
    nodes.append(Node("last", Eltwise((MUL,)), last[::-1] if swapped else last, ("y",)))
    outputs = {"y": "y"} | ({also: also} if also else {})
    return check(Graph(tuple(nodes), types, {}, ("x",), outputs))


def computed(graph, x):
    values = {"x": x, **graph.consts}
    for node in graph.nodes:
        values[node.outputs[0]] = node.spec.reference(*(values[n] for n in node.inputs))[0]
    return values["y"]


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("name", GATES)
def test_a_gate_joins_what_it_gates(name, swapped):
    graph = graph_of(GATES[name], swapped)
    made = optimise(graph)
    assert [s.fn for node in made.nodes for s in node.spec.post_ops] == ["relu", name]
    x = np.linspace(-9, 9, 10).reshape(2, 5)
    np.testing.assert_allclose(computed(made, x), computed(graph, x), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(
    "graph",
    [
        graph_of(GATES["swish"], also="g0"),
        graph_of(GATES["mish"], also="g0"),
        graph_of(((PostOp("hard_sigmoid", (0.2, 0.5)),),)),
        graph_of(((PostOp("tanh"),),)),
        graph_of(((PostOp("softplus"), PostOp("add", (1.0,))), (PostOp("tanh"),))),
    ],
    ids=["public", "inside", "other slope", "other function", "other chain"],
)
def test_what_is_no_gate_stays(graph):
    made = optimise(graph)
    assert {"swish", "mish", "hard_swish"}.isdisjoint(
        s.fn for n in made.nodes for s in n.spec.post_ops
    )
    x = np.linspace(-9, 9, 10).reshape(2, 5)
    np.testing.assert_allclose(computed(made, x), computed(graph, x))


def test_a_product_with_itself_and_with_another_value():
    types = {name: TensorType((2, 5)) for name in ("x", "z", "g", "y", "w")}
    nodes = (
        Node("g", Eltwise((PostOp("sigmoid"),)), ("z",), ("g",)),
        Node("y", Eltwise((MUL,)), ("x", "g"), ("y",)),
        Node("w", Eltwise((MUL,)), ("x", "x"), ("w",)),
    )
    made = optimise(check(Graph(nodes, types, {}, ("x", "z"), {"y": "y", "w": "w"})))
    assert sorted(s.fn for n in made.nodes for s in n.spec.post_ops) == ["mul", "mul", "sigmoid"]


def spelled(steps, constants, also=None):
    """Return the graph of y from x; steps: name = (fn, one, other), of values, constants or None."""
    types = {"x": TensorType((2, 5))} | {name: TensorType((2, 5)) for name in steps}
    consts = {name: np.asarray(value, np.float32) for name, value in constants.items()}
    types |= {name: TensorType(()) for name in consts}
    nodes = []
    for name, (fn, one, other) in steps.items():
        post_op = PostOp(fn) if other is None else PostOp(fn, operand=1)
        nodes.append(
            Node(name, Eltwise((post_op,)), (one,) if other is None else (one, other), (name,))
        )
    outputs = {"y": "y"} | ({also: also} if also else {})
    return check(Graph(tuple(nodes), types, consts, ("x",), outputs))


def products(parts):
    """Yield the steps of a product of three parts in every order, either operand first."""
    for one, two, three in permutations(parts):
        for swapped in (False, True):
            first = (two, one) if swapped else (one, two)
            yield {"p": ("mul", *first), "y": ("mul", *(("p", three) if swapped else (three, "p")))}


ROOT = {"scaled": ("div", "x", "root"), "erf": ("erf", "scaled", None)}
TIMES = {"scaled": ("mul", "over", "x"), "erf": ("erf", "scaled", None)}
CUBES = {
    "pow": {"cube": ("pow", "x", "three")},
    "products": {"square": ("mul", "x", "x"), "cube": ("mul", "square", "x")},
}
GELU_CONSTANTS = {"root": 2**0.5, "over": 0.5**0.5, "one": 1, "half": 0.5}
TANH_CONSTANTS = {"three": 3, "c": 0.044715, "s": (2 / np.pi) ** 0.5, "one": 1, "half": 0.5}


def gelus():
    """Yield name, graph of gelu as exporters write it."""
    for name, begin in (("div", ROOT), ("mul", TIMES)):
        for place, end in enumerate(products(("x", "sum", "half"))):
            steps = begin | {"sum": ("add", "erf", "one")} | end
            yield f"gelu-{name}-{place}", "gelu", spelled(steps, GELU_CONSTANTS)
    for name, cube in CUBES.items():
        for place, end in enumerate(products(("x", "sum", "half"))):
            inner = {"part": ("mul", "c", "cube"), "in": ("add", "x", "part")}
            inner |= {"to": ("mul", "in", "s"), "t": ("tanh", "to", None)}
            steps = cube | inner | {"sum": ("add", "one", "t")} | end
            yield f"tanh-{name}-{place}", "gelu_tanh", spelled(steps, TANH_CONSTANTS)


def others():
    """Yield name, graph of other activations as exporters write them."""
    logistic = {"n": ("neg", "x", None), "e": ("exp", "n", None), "d": ("add", "e", "one")}
    one = {"one": 1}
    yield "x/(1+exp)", "swish", spelled(logistic | {"y": ("div", "x", "d")}, one)
    yield "1/(1+exp)", "sigmoid", spelled(logistic | {"y": ("div", "one", "d")}, one)
    reciprocal = logistic | {"g": ("reciprocal", "d", None), "y": ("mul", "g", "x")}
    yield "x*(1/(1+exp))", "swish", spelled(reciprocal, one)
    quick = {"a": ("mul", "x", "k"), "g": ("sigmoid", "a", None), "y": ("mul", "x", "g")}
    yield "quick gelu", "swish", spelled(quick, {"k": 1.702})
    six = {"a": ("add", "x", "k"), "b": ("max", "a", "zero"), "c": ("min", "b", "six")}
    six |= {"p": ("mul", "x", "c"), "y": ("div", "p", "six")}
    yield "hard swish", "hard_swish", spelled(six, {"k": 3, "zero": 0, "six": 6})
    soft = {"e": ("exp", "x", None), "d": ("add", "e", "one"), "l": ("log", "d", None)}
    mish = soft | {"t": ("tanh", "l", None), "y": ("mul", "x", "t")}
    yield "mish", "mish", spelled(mish, one)


@pytest.mark.parametrize(
    "name, fn, graph", [*gelus(), *others()], ids=lambda v: v if isinstance(v, str) else ""
)
def test_an_activation_spelled_out_is_one_function(name, fn, graph):
    made = optimise(graph)
    assert [s.fn for node in made.nodes for s in node.spec.post_ops] == [fn]
    x = np.linspace(-9, 9, 10).reshape(2, 5)
    np.testing.assert_allclose(computed(made, x), computed(graph, x), rtol=1e-6, atol=1e-6)


def other_functions():
    """Yield graphs that are nearly a known function."""
    steps = ROOT | {
        "sum": ("add", "erf", "one"),
        "p": ("mul", "x", "sum"),
        "y": ("mul", "p", "half"),
    }
    yield "1.42 for a root", spelled(steps, GELU_CONSTANTS | {"root": 1.42})
    yield "no half", spelled(steps, GELU_CONSTANTS | {"half": 0.50001})
    yield "one less", spelled(steps, GELU_CONSTANTS | {"one": 0.99999})
    yield "read elsewhere", spelled(steps, GELU_CONSTANTS, also="erf")
    far = {"e": ("min", "x", "far"), "g": ("sigmoid", "e", None), "y": ("mul", "e", "g")}
    yield "a limit far away", spelled(far, {"far": 1e30})


@pytest.mark.parametrize(
    "name, graph", [*other_functions()], ids=lambda v: v if isinstance(v, str) else ""
)
def test_what_is_nearly_an_activation_stays(name, graph):
    fns = {s.fn for node in optimise(graph).nodes for s in node.spec.post_ops}
    assert fns.isdisjoint({"gelu", "mish"})
    x = np.linspace(-9, 9, 10).reshape(2, 5)
    np.testing.assert_allclose(computed(optimise(graph), x), computed(graph, x))


def test_a_product_with_further_steps_keeps_them():
    graph = graph_of(GATES["swish"])
    last = graph.nodes[-1]
    further = Node(last.name, Eltwise((MUL, PostOp("neg"))), last.inputs, last.outputs)
    graph = check(graph.with_nodes([*graph.nodes[:-1], further]))
    x = np.linspace(-9, 9, 10).reshape(2, 5)
    np.testing.assert_allclose(computed(optimise(graph), x), computed(graph, x), atol=1e-12)

"""Products of a value with a function of itself."""

from __future__ import annotations

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
    values = {"x": x}
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


def test_a_product_with_further_steps_keeps_them():
    graph = graph_of(GATES["swish"])
    last = graph.nodes[-1]
    further = Node(last.name, Eltwise((MUL, PostOp("neg"))), last.inputs, last.outputs)
    graph = check(graph.with_nodes([*graph.nodes[:-1], further]))
    x = np.linspace(-9, 9, 10).reshape(2, 5)
    np.testing.assert_allclose(computed(optimise(graph), x), computed(graph, x), atol=1e-12)

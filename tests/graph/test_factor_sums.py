"""A value times gates, plus the value itself."""

from __future__ import annotations

import pytest
from small_graphs import Builder, agrees

from clnn.graph.passes import optimise
from clnn.ops.conv.separable import Separable
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.rows.reduce import Reduce

SHAPE = (2, 5, 6, 7)


def response_norm(gate="reduced", term="x", before="add"):
    """Return x times gates and constants, plus a shift, plus `term`, as global response normalisation has it.

    gate: made of x by a reduction, of one element per channel, or as large as x.
    """
    b = Builder(x=SHAPE)
    x = b.conv("x", 16, 3)
    norms = b.add(Reduce("l2", (2, 3)), x)
    gates = b.post_ops("div", norms, b.add(Reduce("mean", (1,)), norms))
    gates = gates if gate == "reduced" else b.post_ops("sigmoid", x)
    made = b.post_ops("mul", x, gates)
    made = b.post_ops("mul", made, b.const(16, 1, 1))
    made = b.post_ops(before, made, b.const(16, 1, 1))
    made = b.post_ops("add", made, x if term == "x" else b.conv("x", 16, 3))
    return b.graph(b.conv(made, 8, 1))


def wide(graph):
    """Return the elementwise nodes that are left of the size of the convolution's result."""
    size = (2, 16, 6, 7)
    nodes = [n for n in graph.nodes if isinstance(n.spec, Eltwise)]
    return [n for n in nodes if graph.types[n.outputs[0]].shape == size]


@pytest.mark.parametrize("before", ["add", "sub"])
def test_response_norm_is_a_scale_and_a_shift_within_the_convolution(device, before):
    graph = response_norm(before=before)
    factored = optimise(graph, fixed=True)
    found = [n.spec for n in factored.nodes if isinstance(n.spec, Separable)]
    assert (len(found) == 1 and not wide(factored)) == (before == "add")
    agrees(graph, device, atol=1e-5)


@pytest.mark.parametrize("change", [{"gate": "large"}, {"term": "another"}])
def test_gates_as_large_and_sums_with_something_else_stay(device, change):
    graph = response_norm(**change)
    assert len(wide(optimise(graph, fixed=True))) == len(wide(optimise(graph)))
    agrees(graph, device, atol=1e-5)


def test_open_extents_stay():
    graph = response_norm()
    assert wide(optimise(graph)) and not wide(optimise(graph, fixed=True))


def test_residual_attention(device):
    b = Builder(x=SHAPE)
    x = b.conv("x", 16, 3)
    gates = b.post_ops("sigmoid", b.conv(b.add(Reduce("mean", (2, 3)), x), 16, 1))
    made = b.post_ops("add", x, b.post_ops("mul", x, gates))
    graph = b.graph(b.post_ops("relu", made))
    (last,) = wide(optimise(graph, fixed=True))
    assert [step.fn for step in last.spec.post_ops] == ["mul", "relu"]
    agrees(graph, device, atol=1e-5)

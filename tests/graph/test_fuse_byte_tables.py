"""Functions of one tensor of bytes become one table: which do, and that every byte's result stays."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from harness import rng

from clnn.arith.quantised import Quantisation
from clnn.arith.quantised_maps import ByteTable
from clnn.graph.builder import GraphBuilder
from clnn.graph.evaluate import evaluate
from clnn.graph.ir import Graph, check
from clnn.graph.passes.dead import remove_dead
from clnn.graph.passes.fuse_byte_tables import fuse_byte_tables
from clnn.ops.movement.views import Reshape
from clnn.ops.quantised import build
from clnn.types import I8, U8, TensorType

KINDS = {"signed": I8, "unsigned": U8}


def quantisations(kind) -> list[Quantisation]:
    zeros = (-7, 100, 3) if kind == I8 else (131, 0, 200)
    steps = (0.03, 0.0041, 0.07)
    return [Quantisation(kind, (s,), (z,)) for s, z in zip(steps, zeros, strict=True)]


def table(kind, seed=1):
    low, high = (-128, 128) if kind == I8 else (0, 256)
    return build.table(rng(seed).integers(low, high, 256), kind, kind)


def steps_of(kind):
    """Return what may compute bytes: functions of one operand, then of two."""
    a, b, y = quantisations(kind)
    one = {"table": table(kind), "line": build.moved(0, a, b).spec}
    two = {"sum": build.total(a, b, y), "product": build.product(a, b, y)}
    written = {fn: build.written(fn, a, b, y, y.limits) for fn in ("add", "sub", "mul", "div")}
    return one, two | written


@pytest.fixture(params=KINDS)
def net(request):
    made = GraphBuilder()
    made.input("x", TensorType((2, 128), KINDS[request.param]))
    made.input("z", TensorType((2, 128), KINDS[request.param]))
    return made


def fused(net, *outputs: str) -> Graph:
    """Return the graph with tables, whose results for all bytes are checked."""
    graph = net.graph({f"y{k}": n for k, n in enumerate(outputs)})
    made = check(remove_dead(fuse_byte_tables(remove_dead(graph))))
    kind = graph.types["x"].dtype.numpy
    every = np.arange(256, dtype=np.uint8).view(kind).reshape(2, 128)
    feeds = {"x": every, "z": np.ascontiguousarray(every[::-1])}
    want, got = evaluate(graph, feeds), evaluate(made, feeds)
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array)
    return made


def is_one_table(graph: Graph) -> bool:
    (node,) = graph.nodes
    return isinstance(node.spec.function, ByteTable) and node.inputs == ("x",)


def test_every_function_of_a_tensor_and_of_a_function_of_it(net):
    kind = net.type("x").dtype
    one, two = steps_of(kind)
    for inner, outer in itertools.product(one.values(), two.values()):
        made = net.add(inner, "x")
        for operands in ((made, "x"), ("x", made), (made, made)):
            assert is_one_table(fused(net, net.add(outer, *operands)))
    for inner, outer in itertools.product(one.values(), repeat=2):
        assert is_one_table(fused(net, net.add(outer, net.add(inner, "x"))))


def test_long_chains(net):
    """x times hard sigmoid of x, moved, added to a table of the product: one table of x."""
    kind = net.type("x").dtype
    one, two = steps_of(kind)
    made = net.add(two["product"], "x", net.add(one["table"], "x"))
    made = net.add(two["add"], net.add(one["line"], made), net.add(table(kind, 5), made))
    assert is_one_table(fused(net, made))


def test_functions_of_several_tensors_stay(net):
    one, two = steps_of(net.type("x").dtype)
    mixed = net.add(two["sum"], net.add(one["table"], "x"), "z")
    graph = fused(net, mixed)
    assert [n.spec.function.name for n in graph.nodes] == ["byte_table", "quantised_sum"]
    # What is made of several tensors is a tensor that others are functions of.
    graph = fused(net, net.add(two["product"], mixed, net.add(one["table"], mixed)))
    assert graph.nodes[-1].inputs == (mixed,) and len(graph.nodes) == 3


def test_other_shapes_stay(net):
    one, two = steps_of(net.type("x").dtype)
    row = net.add(Reshape((256,)), "x")
    small = net.add(one["table"], net.add(Reshape((1, 256)), row))
    graph = fused(net, net.add(two["sum"], net.add(Reshape((256,)), small), row))
    assert [n.spec.kind for n in graph.nodes].count("fixed_map") == 2


def test_a_line_alone_stays_a_line(net):
    one, _ = steps_of(net.type("x").dtype)
    (node,) = fused(net, net.add(one["line"], "x")).nodes
    assert node.spec.function.name == "byte_line"


def test_results_that_are_read_stay(net):
    """A function of what another reader needs is one of that, so that its maker's result is read once."""
    one, two = steps_of(net.type("x").dtype)
    inner = net.add(one["table"], "x")
    for outer in (net.add(one["line"], inner), net.add(two["product"], inner, inner)):
        graph = fused(net, inner, outer)
        assert [n.inputs for n in graph.nodes] == [("x",), (inner,)]
    row = net.add(Reshape((256,)), inner)
    graph = fused(net, row, net.add(one["line"], inner))
    assert {n.inputs for n in graph.nodes} == {("x",), (inner,)}
    twice = [net.add(step, inner) for step in (one["line"], one["table"])]
    assert [n.inputs for n in fused(net, *twice).nodes] == [("x",), ("x",)]

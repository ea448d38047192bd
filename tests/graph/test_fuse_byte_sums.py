"""Sums of bytes join the convolution before them: which do, and that results stay."""

from __future__ import annotations

import numpy as np
import pytest
from harness import rng

from clnn.arith.quantised import Quantisation
from clnn.graph.builder import GraphBuilder
from clnn.graph.evaluate import evaluate
from clnn.graph.ir import Graph, check
from clnn.graph.passes.fuse_byte_sums import fuse_byte_sums
from clnn.ops.conv.spec import Conv2d
from clnn.ops.elementwise.fixed_map import FixedMap
from clnn.ops.quantised import build
from clnn.ops.shared.window import Window
from clnn.types import I8, U8, TensorType

POINT = Window((1, 1), (1, 1), (1, 1), (0, 0), (0, 0))
A, B, Y = (
    Quantisation(U8, (step,), (zero,)) for step, zero in ((0.02, 11), (0.03, 130), (0.04, 99))
)
SUMS = {
    "fused": build.total(A, B, Y),
    "written": build.written("add", A, B, Y, (5, 250)),
    "difference": build.written("sub", A, B, Y, (5, 250)),
}


class Net(GraphBuilder):
    """Convolutions of bytes, and sums of their results."""

    def conv(self, x: str, oc: int, window: Window = POINT) -> str:
        ic, seed = self.shape(x)[1], len(self.nodes)
        weights = rng(seed).integers(-127, 128, (oc, ic, 1, 1), np.int8)
        w = Quantisation(U8, (0.01,), (0,))
        arith = build.requantised(A, w, A, limits=(4, 251))
        bias = rng(seed + 50).integers(-999, 999, oc, np.int32)
        return self.add(Conv2d(window, 1, (), arith), x, self.const(weights), self.const(bias))

    def sum(self, a: str, b: str, way: str = "fused") -> str:
        return self.add(SUMS[way], a, b)


def fused(net: Net, *outputs: str) -> tuple[Graph, list[str]]:
    """Return the graph with sums fused, whose results are checked, and the kinds of its nodes."""
    graph = net.graph({f"y{k}": n for k, n in enumerate(outputs)})
    made = check(fuse_byte_sums(graph))
    feeds = {n: rng(9).integers(0, 256, net.shape(n), np.uint8) for n in graph.inputs}
    want, got = evaluate(graph, feeds), evaluate(made, feeds)
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array)
    return made, ["sum" if isinstance(n.spec, FixedMap) else n.spec.kind for n in made.nodes]


@pytest.fixture
def net():
    made = Net()
    made.input("x", TensorType((2, 8, 5, 6), U8))
    return made


@pytest.mark.parametrize("way", SUMS)
@pytest.mark.parametrize("place", [0, 1])
def test_a_residual_of_either_side(net, place, way):
    made = net.conv("x", 8)
    pair = (made, "x") if place == 0 else ("x", made)
    graph, kinds = fused(net, net.sum(*pair, way))
    assert kinds == (["conv2d", "sum"] if way == "difference" else ["conv2d"])
    if way != "difference":
        (step,) = graph.nodes[0].spec.post_ops
        assert step.swapped == (place == 1) and graph.nodes[0].inputs[3] == "x"


def test_another_scale(net):
    line = build.moved(0, A, Quantisation(U8, (0.037,), (7,))).spec
    assert line.function.name == "byte_line"
    assert fused(net, net.add(line, net.conv("x", 8)))[1] == ["conv2d"]
    read = net.conv("x", 8)
    assert fused(net, net.add(line, read), read)[1][-2:] == ["conv2d", "sum"]


def test_a_table(net):
    """A function of bytes joins the convolution whose type it keeps; its entries are a constant of their own."""
    table = build.table(rng(3).integers(0, 256, 256), U8, U8)
    graph, kinds = fused(net, net.add(table, net.conv("x", 8)))
    assert kinds == ["conv2d"]
    (step,) = graph.nodes[0].spec.post_ops
    np.testing.assert_array_equal(
        graph.consts[graph.nodes[0].inputs[step.operand]], table.function.entries
    )
    signed = build.table(rng(3).integers(-128, 128, 256), U8, I8)
    assert fused(net, net.add(signed, net.conv("x", 8)))[1][-2:] == ["conv2d", "sum"]
    twice = net.conv("x", 8)
    assert fused(net, net.add(table, twice), twice)[1][-2:] == ["conv2d", "sum"]
    behind = net.add(table, net.sum(net.conv("x", 8), "x"))
    assert fused(net, behind)[1][-2:] == ["conv2d", "sum"]


def test_of_two_convolutions_the_last_one(net):
    first, second = net.conv("x", 16), net.conv("x", 16)
    graph, kinds = fused(net, net.conv(net.sum(first, second), 4))
    assert kinds == ["conv2d"] * 3
    assert graph.nodes[1].inputs[3] == graph.nodes[0].outputs[0]


def test_an_operand_that_is_made_later_comes_first(net):
    first = net.conv("x", 8)
    second = net.sum(net.conv("x", 8), "x")
    again = net.conv(second, 8)
    graph, kinds = fused(net, net.sum(first, second), again)
    assert kinds == ["conv2d"] * 3
    assert graph.nodes[2].inputs[3] == graph.nodes[0].outputs[0]


def test_what_others_read_stays(net):
    read = net.conv("x", 8)
    assert fused(net, net.sum(read, "x"), read)[1] == ["conv2d", "sum"]


def test_an_operand_that_is_added_to_itself_stays(net):
    made = net.conv("x", 8)
    assert fused(net, net.sum(made, made))[1] == ["conv2d", "sum"]


def test_a_sum_that_spreads_an_operand(net):
    """What is made must have the shape of the sum, and so must the other operand."""
    assert fused(net, net.sum(net.conv("x", 1), "x"))[1] == ["conv2d", "sum"]
    other = Net()
    other.input("x", TensorType((2, 8, 5, 6), U8))
    other.input("z", TensorType((1, 8, 1, 1), U8))
    assert fused(other, other.sum(other.conv("x", 8), "z"))[1] == ["conv2d", "sum"]


def test_a_second_sum_stays(net):
    once = net.sum(net.conv("x", 8), "x")
    assert fused(net, net.sum(once, "x"))[1] == ["conv2d", "sum"]

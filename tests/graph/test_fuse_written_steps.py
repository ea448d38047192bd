"""Real functions between quantised tensors become one node: which do, and that results stay."""

from __future__ import annotations

import numpy as np
import pytest
from harness import normal, rng

from clnn.arith.quantised_maps import Dequantise, Quantise
from clnn.errors import DTypeError
from clnn.graph.builder import GraphBuilder
from clnn.graph.evaluate import evaluate
from clnn.graph.ir import Graph, check
from clnn.graph.passes.dead import remove_dead
from clnn.graph.passes.fuse_written_steps import fuse_written_steps
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.elementwise.fixed_map import FixedMap
from clnn.ops.quantised.steps import EXACT, WrittenSteps
from clnn.ops.shared.functions import FUNCTIONS, PostOp
from clnn.types import F32, I8, I16, U8, U16, TensorType

SHAPE = (2, 6, 3, 5)
NORM = (PostOp("mul", operand=1), PostOp("add", operand=2), PostOp("relu"))
PARAMS = {"clip": (-0.7, 1.1), "at_least": (-0.3,), "at_most": (0.6,)}


class Net(GraphBuilder):
    """Quantised tensors and real functions of them."""

    def real(self, x: str, step=0.031, zero=7) -> str:
        kind = self.type(x).dtype.numpy
        return self.add(
            FixedMap(Dequantise()),
            x,
            self.const(np.float32(step)),
            self.const(np.asarray(zero, kind)),
        )

    def integers(self, value: str, kind=U8, step=0.04, zero=99) -> str:
        step, zero = (
            self.const(np.asarray(step, np.float32)),
            self.const(np.asarray(zero, kind.numpy)),
        )
        return self.add(FixedMap(Quantise(kind)), value, step, zero)

    def channels(self, seed: int) -> str:
        return self.const(normal((1, SHAPE[1], 1, 1), seed))


@pytest.fixture
def net():
    made = Net()
    made.input("x", TensorType(SHAPE, U8))
    return made


def fused(net: Net, *outputs: str) -> tuple[Graph, list[str]]:
    """Return the graph after the pass, whose results are checked, and its nodes' functions."""
    graph = net.graph({f"y{k}": n for k, n in enumerate(outputs)})
    made = check(remove_dead(fuse_written_steps(graph)))
    random, feeds = rng(9), {}
    for name in graph.inputs:
        kind = graph.types[name]
        if kind.dtype == F32:
            feeds[name] = random.normal(0, 1, kind.shape).astype(np.float32)
        else:
            info = np.iinfo(kind.dtype.numpy)
            feeds[name] = random.integers(info.min, info.max, kind.shape, info.dtype, endpoint=True)
    want, got = evaluate(graph, feeds), evaluate(made, feeds)
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array)
        assert len(np.unique(array)) > 2
    kinds = [n.spec.function.name if isinstance(n.spec, FixedMap) else "real" for n in made.nodes]
    return made, kinds


def norm(net: Net, x: str = "x") -> str:
    return net.add(Eltwise(NORM), net.real(x), net.channels(1), net.channels(2))


def test_a_normalisation_and_its_clipping(net):
    graph, kinds = fused(net, net.integers(norm(net)))
    assert kinds == ["written_steps"]
    assert graph.nodes[0].inputs[0] == "x" and graph.nodes[0].spec.function.post_ops == NORM


@pytest.mark.parametrize("kind", [I8, I16, U16])
def test_other_types(net, kind):
    net.input("z", TensorType(SHAPE, kind))
    assert fused(net, net.integers(norm(net, "z"), I8, zero=-3))[1] == ["written_steps"]
    assert fused(net, net.integers(norm(net), kind, 0.02, 5))[1] == ["written_steps"]


def test_an_operand_that_is_computed(net):
    net.input("r", TensorType(SHAPE, F32))
    made = net.add(Eltwise((PostOp("sub", operand=1, swapped=True),)), net.real("x"), "r")
    assert fused(net, net.integers(made))[1] == ["written_steps"]


@pytest.mark.parametrize("fn", sorted(FUNCTIONS))
def test_functions_that_are_exact(net, fn):
    rule = FUNCTIONS[fn]
    if rule.of_bytes:
        pytest.skip("a function of bytes")
    params = PARAMS.get(fn, ())
    steps = (PostOp(fn, params, operand=1) if rule.binary else PostOp(fn, params),)
    operands = [net.const(np.float32(np.inf if fn == "replace" else 1.5))] if rule.binary else []
    node = net.add(Eltwise(steps), net.real("x"), *operands) if fn in EXACT or rule.binary else None
    if node is not None:
        assert ("written_steps" in fused(net, net.integers(node))[1]) == (fn in EXACT)


def test_what_stays(net):
    """A value that is read twice, scales by channel, the running value as operand, a broadcast one."""
    made = norm(net)
    assert "real" in fused(net, net.integers(made), made)[1]
    scales = rng(1).uniform(0.01, 0.1, (SHAPE[1], 1, 1))
    assert "real" in fused(net, net.integers(norm(net), step=scales))[1]
    square = net.add(Eltwise((PostOp("mul", operand=0),)), net.real("x"))
    assert "real" in fused(net, net.integers(square))[1]
    net.input("one", TensorType((1, 1, 3, 5), U8))
    assert "real" in fused(net, net.integers(norm(net, "one")))[1]


def test_types_are_checked():
    function = WrittenSteps((U8, I8), (3, -1), (0.1, 0.2), NORM)
    assert function.output([U8, F32, F32]) == I8
    for types in ([I8, F32, F32], [U8, U8, F32]):
        with pytest.raises(DTypeError):
            function.output(types)

"""Small networks made of op specs, for tests: a classifier, a decoder, a chain over rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from harness import normal

import clnn
from clnn.graph.ir import Graph, Node, check
from clnn.ops.conv.spec import Conv2d
from clnn.ops.conv.transpose import ConvTranspose
from clnn.ops.elementwise.cast import Cast
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.elementwise.logic import Logic
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.gather import Gather
from clnn.ops.movement.pad import Pad
from clnn.ops.movement.views import Concat, Reshape, Slice, Transpose, slice_of
from clnn.ops.pool.spec import Pool
from clnn.ops.recurrent.spec import Recurrent
from clnn.ops.resize.sampling import Sampling
from clnn.ops.resize.spec import Resize
from clnn.ops.rows.arg import ArgExtreme
from clnn.ops.rows.lrn import Lrn
from clnn.ops.rows.norm import Normalise
from clnn.ops.rows.reduce import Reduce
from clnn.ops.rows.softmax import Softmax
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.ops.spec import OpSpec
from clnn.types import F32, I32, I64, TensorType


class Builder:
    """A graph made node by node; methods return the name of the new value."""

    def __init__(self, **inputs: tuple[int, ...]) -> None:
        self.types = {n: TensorType(s) for n, s in inputs.items()}
        self.inputs = tuple(inputs)
        self.nodes: list[Node] = []
        self.consts: dict[str, np.ndarray] = {}

    def add(self, spec: OpSpec, *inputs: str | None) -> str:
        """Add a node."""
        out = f"v{len(self.nodes)}"
        self.types[out] = spec.infer([None if n is None else self.types[n] for n in inputs])[0]
        self.nodes.append(Node(f"n{len(self.nodes)}", spec, inputs, (out,)))
        return out

    def fixed(self, array: Any) -> str:
        """Add a constant."""
        name = f"w{len(self.consts)}"
        self.consts[name] = np.asarray(array)
        kind = I64 if self.consts[name].dtype.kind == "i" else F32
        self.types[name] = TensorType(self.consts[name].shape, kind)
        return name

    def const(self, *shape: int) -> str:
        """Add a constant of small random numbers."""
        values = np.random.default_rng(len(self.consts)).standard_normal(shape)
        return self.fixed((values / 3).astype(np.float32))

    def post_ops(self, fn: str, *inputs: str) -> str:
        """Add one elementwise function of one or two values."""
        return self.add(Eltwise((PostOp(fn, operand=1 if len(inputs) > 1 else None),)), *inputs)

    def conv(self, x: str, oc: int, k: int = 3, stride: int = 1, group: int = 1) -> str:
        """Add a convolution with a bias, padded to keep the extent."""
        weights = self.const(oc, self.types[x].shape[1] // group, k, k)
        side = (k // 2, k // 2)
        win = Window((k, k), (stride, stride), (1, 1), side, side)
        return self.add(Conv2d(win, group), x, weights, self.const(oc))

    def graph(self, *outputs: str) -> Graph:
        """Return the graph with these outputs."""
        return check(
            Graph(
                tuple(self.nodes),
                self.types,
                self.consts,
                self.inputs,
                {f"out{k}": n for k, n in enumerate(outputs)},
            )
        )


def classifier() -> Graph:
    """A residual block with a depthwise convolution, pooling, joined branches, a linear layer."""
    b = Builder(x=(1, 3, 7, 7))
    stem = b.post_ops("relu", b.conv("x", 8, stride=2))
    block = b.conv(b.post_ops("relu", b.conv(stem, 8, group=8)), 8, 1)
    body = b.add(Lrn(3), b.post_ops("relu", b.post_ops("add", block, stem)))
    small = b.add(Pool(Window((2, 2), (2, 2), (1, 1), (0, 0), (0, 0)), "max"), body)
    large = b.add(Resize((1, 8, 4, 4), (1.0, 1.0, 2.0, 2.0)), small)
    both = b.conv(b.add(Concat(1), body, large), 9)
    flat = b.add(Reshape((1, 9)), b.add(Reduce("mean", (2, 3)), both))
    scores = b.add(Gemm(), flat, b.const(9, 10), b.const(10))
    return b.graph(b.add(Softmax((1,)), scores))


def decoder() -> Graph:
    """Upsampling by a transposed convolution and by sampling, edges mirrored, halves swapped."""
    b = Builder(x=(1, 6, 4, 4))
    mean = b.add(Pool(Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1)), "average"), "x")
    up = ConvTranspose((4, 4), (2, 2), (1, 1), (1, 1), (8, 8))
    wide = b.post_ops("sigmoid", b.add(up, mean, b.const(6, 5, 4, 4), b.const(5)))
    soft = b.add(Resize((1, 6, 8, 8), (1.0, 1.0, 2.0, 2.0), Sampling("linear")), "x")
    both = b.add(Concat(1), soft, wide)
    swapped = b.add(Concat(1), b.add(slice_of((1, 11, 8, 8), 1, 6, 5), both), soft)
    mirrored = b.add(Pad((0, 0, 2, 2), (0, 0, 2, 2), "reflect"), swapped)
    return b.graph(b.conv(mirrored, 3, 5), b.add(ArgExtreme(True, 1), both))


def rows() -> Graph:
    """Attention-like products over batches of rows, norms, looked-up rows, choices."""
    b = Builder(x=(2, 6, 16))
    seen = b.add(Normalise((2,)), "x")
    turned = b.add(Transpose((0, 2, 1)), seen)
    weights = b.add(Softmax((2,)), b.add(Gemm(), seen, turned))
    mixed = b.add(Gemm(), weights, "x")
    taken = b.add(Gather(1), mixed, b.fixed(np.array([5, 0, 2])))
    spread = b.add(Reduce("l2", (0,), False), taken)
    large = b.add(Logic("greater"), spread, b.fixed(np.float32(1)))
    mask = b.post_ops("mul", b.add(Cast(F32), large), spread)
    back = b.add(Slice((0, 15), (3, 8), (1, -2)), mask)
    return b.graph(b.post_ops("exp", back), b.add(Reduce("max", (2,)), mixed))


def sequence() -> Graph:
    """An LSTM in both directions with peepholes, and a GRU of which the last state alone is asked for."""
    b = Builder(x=(3, 2, 8))
    tanh, sigmoid = (PostOp("tanh"),), (PostOp("sigmoid"),)
    both = Recurrent(
        "lstm", ((sigmoid, tanh, tanh),) * 2, (False, True), batch_first=True, outputs=(0,)
    )
    products = b.add(Gemm(trans_b=True), "x", b.const(40, 8), b.const(40))
    lengths = b.fixed(np.array([2, 1, 2], np.int32))
    b.types[lengths] = TensorType((3,), I32)
    every = b.add(both, products, b.const(2, 20, 5), None, lengths, None, None, b.const(2, 15))
    flat = b.add(Reshape((3, 2, 10)), every)
    once = Recurrent("gru", ((sigmoid, tanh),), (False,), outputs=(1,))
    return b.graph(b.add(once, b.add(Gemm(), flat, b.const(10, 48)), b.const(1, 48, 16)))


GRAPHS = {"classifier": classifier, "decoder": decoder, "rows": rows, "sequence": sequence}


def agrees(graph: Graph, device: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Assert that a graph's outputs are those of its nodes one by one."""
    feeds = {n: normal(graph.types[n].shape, k) for k, n in enumerate(graph.inputs)}
    made = []
    for options in (clnn.Options(), clnn.Options(fuse=False)):
        with clnn.compile_model(graph, device, options) as session:
            made.append(session(feeds))
    for name, want in made[1].items():
        np.testing.assert_allclose(made[0][name], want, rtol=rtol, atol=atol)

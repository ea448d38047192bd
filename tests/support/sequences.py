"""Networks over sequences of any length: what attention, rows and movements are made of."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import onnx
from onnx import helper as make
from onnx_models import FLOAT, model, tensor, value

WIDTH, HEADS = 40, 4


class Nodes:
    """Nodes and constants of a network in the making; each method returns the name of a value."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def weight(self, *shape: int) -> str:
        return self.constant(0.3 * self.rng.standard_normal(shape).astype(np.float32))

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def constant(self, array: np.ndarray) -> str:
        self.constants.append(tensor(f"c{len(self.constants)}", array))
        return self.constants[-1].name

    def add(self, op: str, *inputs: str, outputs: int = 1, **attributes: object) -> str:
        """Add a node; return its last output."""
        names = [f"v{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(make.make_node(op, inputs, names, name=names[0], **attributes))
        return names[-1]

    def made(self, *outputs: str) -> bytes:
        x = value("x", ("batch", "length", WIDTH), FLOAT)
        made = model(self.nodes, [x], outputs, self.constants, opset=17)
        return made.SerializeToString()


@cache
def attention() -> bytes:
    """A layer of a transformer: products with any number of rows, columns and terms."""
    net, each = Nodes(), WIDTH // HEADS

    def dense(x: str, into: int, out: int) -> str:
        return net.add("Add", net.add("MatMul", x, net.weight(into, out)), net.weight(out))

    def heads(x: str, *order: int) -> str:
        split = net.add("Reshape", dense(x, WIDTH, WIDTH), net.ints(0, -1, HEADS, each))
        return net.add("Transpose", split, perm=order)

    scores = net.add("MatMul", heads("x", 0, 2, 1, 3), heads("x", 0, 2, 3, 1))
    shares = net.add("Softmax", scores, axis=-1)
    mixed = net.add(
        "Transpose", net.add("MatMul", shares, heads("x", 0, 2, 1, 3)), perm=[0, 2, 1, 3]
    )
    joined = net.add("Reshape", mixed, net.ints(0, -1, WIDTH))
    y = net.add("Add", "x", dense(joined, WIDTH, WIDTH))
    y = net.add("LayerNormalization", y, net.weight(WIDTH), net.weight(WIDTH), axis=-1)
    inner = dense(y, WIDTH, 72)
    gate = net.add("Erf", net.add("Mul", inner, net.constant(np.float32(0.7))))
    return net.made(net.add("Add", y, dense(net.add("Mul", inner, gate), 72, WIDTH)))


@cache
def classes() -> bytes:
    """The better of two classes for each of a sequence: rows of two, side by side in open numbers."""
    net = Nodes()
    return net.made(net.add("ArgMax", net.add("MatMul", "x", net.weight(WIDTH, 2)), axis=2))


def rows() -> bytes:
    """Rows along and across, of open lengths, side by side in open numbers."""
    net = Nodes()
    turned = net.add("Transpose", "x", perm=[0, 2, 1])
    t = net.add("Tanh", net.add("Add", turned, net.weight(WIDTH, 1)))
    of_channels = net.weight(WIDTH), net.weight(WIDTH)
    return net.made(
        net.add("ReduceMean", "x", axes=[1]),
        net.add("ReduceSum", "x", net.ints(0, 1)),
        net.add("ReduceMax", "x", axes=[1, 2]),
        net.add("ReduceLogSumExp", "x", axes=[1]),
        net.add("ReduceMean", t, axes=[2]),
        net.add("ReduceL2", t, axes=[1]),
        net.add("Softmax", t, axis=-1),
        net.add("Softmax", t, axis=1),
        net.add("LogSoftmax", "x", axis=1),
        net.add("InstanceNormalization", t, *of_channels, epsilon=0.1),
        net.add("ArgMax", "x", axis=1),
        net.add("ArgMin", t, axis=2, keepdims=0),
        net.add("TopK", t, net.ints(5), axis=1, outputs=2),
        net.add("CumSum", t, net.ints(2)),
        net.add("Hardmax", t, axis=-1),
    )


@cache
def movements() -> bytes:
    """Copies, paddings, look-ups and functions of operands whose types differ."""
    net = Nodes()
    r = net.add("Relu", net.add("Add", "x", net.weight(WIDTH)))
    t = net.add("Transpose", r, perm=[0, 2, 1])
    where = net.add("ArgMax", t, axis=1, keepdims=0)
    above = net.add("Greater", r, "x")
    return net.made(
        net.add("Concat", "x", r, axis=2),
        net.add("Concat", t, t, axis=2),
        net.add("Pad", r, net.ints(0, 1, 0, 0, 2, 0)),
        net.add("Pad", t, net.ints(0, 0, 3, 0, 0, 1)),
        net.add("Gather", r, net.ints(3, 0, 7, 1), axis=2),
        net.add("Gather", net.weight(WIDTH, 24), where),
        net.add("Reshape", t, net.ints(0, -1)),
        net.add("Tile", r, net.ints(1, 2, 1)),
        net.add("Where", above, r, "x"),
        net.add("Cast", net.add("Less", t, net.weight(WIDTH, 1)), to=FLOAT),
        net.add("Sub", t, net.add("ReduceMean", t, axes=[1])),
        net.add("Add", net.add("Transpose", r, perm=[1, 0, 2]), net.weight(WIDTH)),
    )


@cache
def batches() -> bytes:
    """What works along the batch, so that all else of a tensor is one open axis, and open columns.

    Not one of NETWORKS: resizing one image of a batch has fewer taps, and so a kernel of its own.
    """
    net = Nodes()
    turned = net.add("Relu", net.add("Transpose", "x", perm=[0, 2, 1]))
    twice = net.add("Concat", turned, turned, axis=2)
    means = net.add("ReduceMean", "x", axes=[2], keepdims=0)
    row = net.add("Unsqueeze", net.add("Concat", means, means, axis=1), net.ints(1))
    best = net.add("ArgMax", net.add("ReduceMax", "x", axes=[1, 2], keepdims=0), keepdims=0)
    scales = net.constant(np.array([2, 1, 1], np.float32))
    return net.made(
        net.add("Add", net.add("MatMul", "x", twice), row),
        net.add("CumSum", "x", net.ints(0)),
        net.add("Gather", "x", best, axis=0),
        net.add("Resize", "x", "", scales, mode="nearest"),
        net.add("Resize", "x", "", scales, mode="linear"),
    )


NETWORKS: dict[str, Callable[[], bytes]] = {
    made.__name__: made for made in (attention, rows, movements)
}

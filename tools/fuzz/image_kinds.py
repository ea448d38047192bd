"""Kinds of nodes that compute each image of a batch by itself, and of those that only move numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import kinds
import numpy as np
import onnx
from drawing import Drawer, Network
from onnx import helper

# Without steps, at which rounding decides.
SMOOTH = (
    *(
        "Relu",
        "Abs",
        "Neg",
        "Sigmoid",
        "Tanh",
        "Erf",
        "Softplus",
        "Softsign",
        "Elu",
        "Selu",
        "Gelu",
    ),
    *("LeakyRelu", "HardSigmoid", "HardSwish", "Celu", "Mish", "Sin", "Cos", "Atan", "Identity"),
)
MOVING = ("Transpose", "Slice", "Concat", "Split", "Reshape", "Flatten", "Unsqueeze", "Squeeze")


class ImageDrawer(Drawer):
    """Draws networks of one input of n images, each value of which has n on its first axis."""

    def images(self, count: int, of: Sequence[Callable[[Drawer], None]]) -> Network:
        """Return a network for `count` images, of up to six nodes of some kinds."""
        shape = (count, self.one_of((1, 2, 3, 4, 8, 17)), self.up_to(9, 2), self.up_to(11, 2))
        x = self.array(shape)
        self.net.values[x] = np.asarray(self.chance.normal(0, 1.5, shape), np.float32)
        self.net.inputs.append(x)
        wanted, tries = self.up_to(6), 0
        while len(self.net.nodes) < wanted and tries < 40:
            tries += 1
            self.one_of(of)(self)
        if not self.net.nodes:
            self.node("Relu", [x])
        return self.net

    def weights(self, *shape: int) -> str:
        """Return a constant of numbers."""
        name = self.array(shape)
        self.net.consts.append(name)
        return name


def unary(d: Drawer) -> None:
    d.node(d.one_of(SMOOTH), [d.pick()])


def _binary(d: Drawer) -> None:
    x = d.pick()
    shape = d.of(x)[:1].shape
    alike = [n for n in d.net.made if d.of(n).shape == d.of(x).shape]
    if alike and d.chance.random() < 0.5:
        y = d.one_of(alike)
    else:
        begin = d.up_to(len(shape))
        y = d.weights(*(s if d.chance.random() < 0.6 else 1 for s in shape[begin:]))
    d.node(d.one_of(("Add", "Sub", "Mul", "Max", "Min")), [x, y] if d.up_to(2) > 1 else [y, x])


def _rows(d: Drawer) -> None:
    x = d.pick("f", range(2, 6))
    if x is None:
        return
    axis = d.up_to(d.of(x).ndim - 1)
    op = d.one_of(("Softmax", "LogSoftmax", "ReduceMean", "ReduceMax", "ReduceSum", "CumSum"))
    if op == "CumSum":
        d.node(op, [x, d.const(axis)], reverse=d.up_to(1, 0))
    elif op.startswith("Reduce"):
        d.node(op, [x, d.const([axis])], keepdims=d.up_to(1, 0))
    else:
        d.node(op, [x], axis=axis)


def _product(d: Drawer) -> None:
    x = d.pick("f", range(2, 5))
    if x is not None:
        d.node("MatMul", [x, d.weights(d.of(x).shape[-1], d.up_to(9))])


def _pad(d: Drawer) -> None:
    x = d.pick("f", range(2, 6))
    if x is not None:
        rank = d.of(x).ndim
        ends = [[0, *(d.up_to(2, 0) for _ in range(rank - 1))] for _ in range(2)]
        mode = d.one_of(("constant", "constant", "edge", "reflect"))
        d.node("Pad", [x, d.const(ends[0] + ends[1])], mode=mode)


def _transpose(d: Drawer) -> None:
    x = d.pick("f", range(3, 6))
    if x is not None:
        order = [0, *(1 + d.chance.permutation(d.of(x).ndim - 1)).tolist()]
        d.node("Transpose", [x], perm=order)


def _slice(d: Drawer) -> None:
    x = d.pick("f", range(2, 6))
    if x is not None:
        axis = d.up_to(d.of(x).ndim - 1)
        extent, step = d.of(x).shape[axis], d.one_of((1, 1, 2, -1))
        begin = d.up_to(extent - 1, 0)
        end = extent + 1 if step > 0 else -extent - 1
        d.node("Slice", [x, d.const([begin]), d.const([end]), d.const([axis]), d.const([step])])


def _concat(d: Drawer) -> None:
    x = d.pick("f", range(2, 6))
    if x is not None:
        alike = [n for n in (*d.net.inputs, *d.net.made) if d.of(n).shape == d.of(x).shape]
        axis = d.up_to(d.of(x).ndim - 1)
        d.node("Concat", [*(d.one_of(alike) for _ in range(d.up_to(2))), x], axis=axis)


def _split(d: Drawer) -> None:
    x = d.pick("f", range(2, 6))
    if x is not None:
        axis = d.up_to(d.of(x).ndim - 1)
        extent = d.of(x).shape[axis]
        if extent > 1:
            at = d.up_to(extent - 1)
            d.node("Split", [x, d.const([at, extent - at])], 2, axis=axis)


def _reshape(d: Drawer) -> None:
    x = d.pick("f", range(2, 6))
    if x is None:
        return
    op, shape = d.one_of(("Reshape", "Flatten", "Unsqueeze")), d.of(x).shape
    if op == "Flatten":
        d.node(op, [x], axis=1)
    elif op == "Unsqueeze" and len(shape) < 5:
        d.node(op, [x, d.const([d.up_to(len(shape))])])
    else:
        size = int(np.prod(shape[1:]))
        d.node(
            "Reshape", [x, d.const([0, d.one_of([k for k in (1, 2, 3, 4) if size % k == 0]), -1])]
        )


VIEWS = (_transpose, _slice, _concat, _split, _reshape)
KINDS: tuple[Callable[[Drawer], None], ...] = (
    *(unary, _binary, _binary, _rows, _product, _pad, *VIEWS),
    *(kinds.conv, kinds.conv, kinds.conv, kinds.pool, kinds.pool, kinds.norm, kinds.image),
)

Chain = tuple[list[onnx.NodeProto], str]


def padded_twice(d: Drawer, x: str) -> tuple[Chain, Chain]:
    """Return nodes that pad x before a window and nodes that pad in it, each with the result's name."""
    shape = d.of(x).shape
    kernel = [d.one_of((2, 3, 3, 5)), d.one_of((1, 2, 3, 5))]
    kernel = [
        min(k, n) for k, n in zip(kernel, shape[2:], strict=True)
    ]  # none is less than a window
    pads = [d.up_to(k - 1, 0) for k in (*kernel, *kernel)]
    strides = [d.up_to(2), d.up_to(2)]
    op = d.one_of(("Conv", "Conv", "Conv", "AveragePool", "MaxPool"))
    attrs: dict[str, Any] = {"kernel_shape": kernel, "strides": strides}
    inputs, inside = [], {"pads": pads}
    if op == "Conv":
        out, group = d.one_of(((4, 1), (8, 1), (shape[1], shape[1])))
        inputs = [d.weights(out, shape[1] // group, *kernel), *[d.weights(out)] * d.up_to(1, 0)]
        attrs["group"] = group
    elif op == "AveragePool":
        inside["count_include_pad"] = 1
    around = d.const([0, 0, *pads[:2], 0, 0, *pads[2:]])
    fill = d.const(-np.inf if op == "MaxPool" else 0, "float32")
    pad = helper.make_node("Pad", [x, around, fill], ["padded"], name="pad")
    behind = helper.make_node(op, ["padded", *inputs], ["as_op"], name="window", **attrs)
    alone = helper.make_node(op, [x, *inputs], ["as_attribute"], name="window", **attrs, **inside)
    return ([pad, behind], "as_op"), ([alone], "as_attribute")

"""ONNX Runtime's operators of bytes: sums, products, activations, softmax, concatenation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from clnn.arith.quantised import Quantisation
from clnn.arith.quantised_maps import every_byte
from clnn.errors import ShapeError
from clnn.ops.elementwise.logic import Logic
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, Unsupported, onnx_op
from clnn.ops.quantised import build
from clnn.ops.quantised.parameters import parameters, zero_type
from clnn.ops.shared.functions import PostOp, apply_post_ops, rational
from clnn.types import I8, U8, Array, normalise_axis

MICROSOFT = "com.microsoft::"


def given(node: OnnxNode, first: int, what: str) -> Quantisation:
    """Return the quantisation of the tensor at input `first`, whose parameters follow it."""
    kind = node.type(first).dtype
    if kind not in (I8, U8):
        raise Unsupported(f"input {first} is {kind.name}; it must be int8 or uint8")
    return parameters(node, first + 1, first + 2, what, kind)


def wanted(node: OnnxNode, first: int, like: Quantisation) -> Quantisation:
    """Return the quantisation of the result, whose parameters begin at input `first`."""
    return parameters(node, first, first + 1, "the result", zero_type(node, first + 1, like.dtype))


def same_type(*kinds: Quantisation) -> None:
    """Raise Unsupported unless all are bytes of one type."""
    if not build.are_bytes(*kinds):
        raise Unsupported(f"operands of types {', '.join(k.dtype.name for k in kinds)}")


@onnx_op(f"{MICROSOFT}QLinearAdd", f"{MICROSOFT}QLinearMul")
def _binary(node: OnnxNode) -> Source:
    """Inputs a, scale, zero, b, scale, zero, y scale, zero."""
    a, b = given(node, 0, "a"), given(node, 3, "b")
    y = wanted(node, 6, a)
    same_type(a, b, y)
    function = build.total if node.op_type == "QLinearAdd" else build.product
    return Emit(function(a, b, y), [0, 3])


def of_bytes(
    x: Quantisation, y: Quantisation, function: Callable[[Array], Array], source: Source = 0
) -> Emit:
    """Return a function of real numbers as a table of bytes."""
    with np.errstate(all="ignore"):
        values = function(x.dequantise(every_byte(x.dtype)))
    return Emit(build.table(y.quantise(values), x.dtype, y.dtype), [source])


@onnx_op(f"{MICROSOFT}QLinearSigmoid", f"{MICROSOFT}QLinearLeakyRelu")
def _activation(node: OnnxNode) -> Source:
    """Inputs x, scale, zero, y scale, zero."""
    x = given(node, 0, "x")
    y = wanted(node, 3, x)
    step = PostOp("sigmoid")
    if node.op_type == "QLinearLeakyRelu":
        step = PostOp("leaky_relu", (float(node.attr("alpha", 0.01)),))
    steps = rational((step,))
    return of_bytes(x, y, lambda values: apply_post_ops(values, steps, [values]))


@onnx_op(f"{MICROSOFT}QLinearConcat")
def _concat(node: OnnxNode) -> Source:
    """Inputs y scale, zero, then x, scale, zero of each member."""
    if len(node.inputs) < 5 or (len(node.inputs) - 2) % 3:
        raise ShapeError(f"{len(node.inputs)} inputs; each member has a scale and a zero point.")
    places = range(2, len(node.inputs), 3)
    members = [given(node, k, f"input {k}") for k in places]
    y = wanted(node, 0, members[0])
    axis = normalise_axis(int(node.attrs["axis"]), node.type(2).rank)
    return build.joined(list(zip(places, members, strict=True)), y, axis)


@onnx_op(f"{MICROSOFT}QLinearSoftmax")
def _softmax(node: OnnxNode) -> Source:
    """Inputs x, scale, zero, y scale, zero."""
    x = given(node, 0, "x")
    y = wanted(node, 3, x)
    same_type(x, y)
    shape, opset = node.type(0).shape, int(node.attr("opset", 13))
    axis = normalise_axis(int(node.attr("axis", 1 if opset < 13 else -1)), len(shape))
    axes = tuple(range(axis, len(shape))) if opset < 13 else (axis,)
    return build.softmax(0, shape, axes, x, y)


@onnx_op(f"{MICROSOFT}QLinearWhere")
def _where(node: OnnxNode) -> Source:
    """Inputs condition, x, scale, zero, y, scale, zero, z scale, zero."""
    x, y = given(node, 1, "x"), given(node, 4, "y")
    z = wanted(node, 7, x)
    same_type(x, y, z)
    return Emit(Logic("where"), [0, build.moved(1, x, z), build.moved(4, y, z)])

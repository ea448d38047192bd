"""Scales and zero points among the inputs of an ONNX node."""

from __future__ import annotations

import numpy as np

from clnn.arith.quantised import Quantisation
from clnn.errors import DTypeError, ShapeError
from clnn.ops.onnx_registry import OnnxNode
from clnn.types import F32, Array, DType, dtype_of


def numbers(node: OnnxNode, index: int, what: str, dtype: DType) -> Array:
    """Return a scale or zero point of one axis or none; it must be a constant of `dtype`."""
    array = node.const(index, what)
    if dtype_of(array.dtype) != dtype:
        raise DTypeError(f"{what} (input {index}) is {array.dtype}, must be {dtype.name}.")
    if array.ndim > 1 and array.size != 1:
        raise ShapeError(f"{what} (input {index}) has shape {array.shape}; it needs one axis.")
    return array.reshape(-1)


def zero_of(node: OnnxNode, index: int, what: str, dtype: DType) -> Array:
    """Return a zero point, 0 where it is left out."""
    if not node.has(index):
        return np.zeros(1, dtype.numpy)
    return numbers(node, index, f"{what} zero point", dtype)


def parameters(
    node: OnnxNode, scale: int, zero: int, what: str, dtype: DType, axis: int | None = None
) -> Quantisation:
    """Return the quantisation of a tensor of `dtype` by the inputs that hold its parameters.

    axis: of scales, where there are several; None allows one alone.
    """
    steps = numbers(node, scale, f"{what} scale", F32)
    zeros = zero_of(node, zero, what, dtype)
    count = max(steps.size, zeros.size)
    if count > 1 and axis is None:
        raise ShapeError(f"{what} has {count} scales or zero points; it needs one.")
    if len({steps.size, zeros.size} - {1}) > 1:
        raise ShapeError(f"{what} has {steps.size} scales and {zeros.size} zero points.")
    return Quantisation(
        dtype,
        tuple(map(float, steps)),
        tuple(map(int, zeros)),
        axis if count > 1 else None,
    )


def zero_type(node: OnnxNode, index: int, default: DType) -> DType:
    """Return the type that a zero point says a result has."""
    return node.type(index).dtype if node.has(index) else default

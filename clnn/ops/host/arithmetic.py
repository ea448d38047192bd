"""Elementwise operators and reductions, in the element type of their inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from clnn.ops.host.registry import HostNode, host_op
from clnn.types import Array

UNARY: dict[str, Callable[[Any], Any]] = {
    "Abs": np.abs,
    "Ceil": np.ceil,
    "Exp": np.exp,
    "Floor": np.floor,
    "IsNaN": np.isnan,
    "Log": np.log,
    "Neg": np.negative,
    "Not": np.logical_not,
    "Reciprocal": lambda x: np.divide(np.ones_like(x), x),
    "Relu": lambda x: np.where(x < 0, np.zeros_like(x), x),
    "Round": np.rint,
    "Sign": np.sign,
    "Sqrt": np.sqrt,
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": np.add,
    "And": np.logical_and,
    "BitwiseAnd": np.bitwise_and,
    "BitwiseOr": np.bitwise_or,
    "BitwiseXor": np.bitwise_xor,
    "Equal": np.equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Mul": np.multiply,
    "Or": np.logical_or,
    "Sub": np.subtract,
    "Xor": np.logical_xor,
}
MANY: dict[str, Callable[[Any, Any], Any]] = {
    "Max": np.maximum,
    "Min": np.minimum,
    "Sum": np.add,
}


@host_op(*UNARY)
def _unary(node: HostNode, x: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(UNARY[node.op_type](x))


@host_op(*BINARY)
def _binary(node: HostNode, left: Array, right: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(BINARY[node.op_type](left, right))


@host_op(*MANY)
def _many(node: HostNode, first: Array, *others: Array) -> Array:
    result = first
    with np.errstate(all="ignore"):
        for other in others:
            result = MANY[node.op_type](result, other)
    return np.asarray(result)


@host_op("Mean")
def _mean(node: HostNode, first: Array, *others: Array) -> Array:
    return np.asarray(
        _many(HostNode("Sum", node.opset), first, *others) / _like(first, len(others) + 1)
    )


def _like(array: Array, number: float) -> Any:
    return array.dtype.type(number)


@host_op("Div")
def _div(node: HostNode, left: Array, right: Array) -> Array:
    if left.dtype.kind not in "iu":
        with np.errstate(all="ignore"):
            return np.asarray(np.divide(left, right))
    if not np.all(right):
        raise ZeroDivisionError("division of integers by zero")
    quotient = np.floor_divide(left, right)  # rounds down; ONNX rounds towards zero
    inexact = (quotient * right != left) & ((left < 0) != (right < 0))
    return np.asarray(quotient + inexact.astype(left.dtype))


@host_op("Mod")
def _mod(node: HostNode, left: Array, right: Array) -> Array:
    if left.dtype.kind in "iu" and not np.all(right):
        raise ZeroDivisionError("remainder of a division of integers by zero")
    with np.errstate(all="ignore"):
        return np.asarray((np.fmod if node.attr("fmod", 0) else np.mod)(left, right))


@host_op("Pow")
def _pow(node: HostNode, base: Array, exponent: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(np.power(base, exponent)).astype(base.dtype)


@host_op("Where")
def _where(node: HostNode, condition: Array, left: Array, right: Array) -> Array:
    return np.where(condition, left, right)


@host_op("Clip")
def _clip(node: HostNode, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    low = node.attr("min") if low is None else low
    high = node.attr("max") if high is None else high
    if low is not None:
        x = np.maximum(x, np.asarray(low, x.dtype))
    return np.asarray(x if high is None else np.minimum(x, np.asarray(high, x.dtype)))


_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "ReduceMax": np.max,
    "ReduceMean": np.mean,
    "ReduceMin": np.min,
    "ReduceProd": np.prod,
    "ReduceSum": np.sum,
}


@host_op(*_REDUCTIONS)
def _reduce(node: HostNode, x: Array, axes: Array | None = None) -> Array:
    given = node.attr("axes") if axes is None else axes.reshape(-1).tolist()
    if not given and node.attr("noop_with_empty_axes", 0):
        return x
    over = tuple(int(a) for a in given) if given else None
    keep = bool(node.attr("keepdims", 1))
    function = _REDUCTIONS[node.op_type]
    if node.op_type in ("ReduceMax", "ReduceMin"):
        start = worst(x.dtype, lowest=node.op_type == "ReduceMax")
        return np.asarray(function(x, axis=over, keepdims=keep, initial=start))
    return np.asarray(function(x, axis=over, keepdims=keep, dtype=x.dtype))


def worst(dtype: np.dtype[Any], lowest: bool) -> Any:
    """Return the maximum (or minimum) of no elements."""
    if dtype.kind == "f":
        return -np.inf if lowest else np.inf
    if dtype.kind == "b":
        return not lowest
    limits = np.iinfo(dtype)
    return limits.min if lowest else limits.max


@host_op("ArgMax", "ArgMin")
def _arg(node: HostNode, x: Array) -> Array:
    axis, find = int(node.attr("axis", 0)), np.argmax if node.op_type == "ArgMax" else np.argmin
    if node.attr("select_last_index", 0):
        found = x.shape[axis] - 1 - find(np.flip(x, axis), axis=axis)
    else:
        found = find(x, axis=axis)
    found = np.asarray(found, np.int64)
    return np.expand_dims(found, axis) if node.attr("keepdims", 1) else found


@host_op("CumSum")
def _cumsum(node: HostNode, x: Array, axis: Array) -> Array:
    along = int(axis.reshape(-1)[0])
    turned = np.flip(x, along) if node.attr("reverse", 0) else x
    sums = np.cumsum(turned, along, dtype=x.dtype)
    if node.attr("exclusive", 0):
        sums = sums - turned
    return np.asarray(np.flip(sums, along) if node.attr("reverse", 0) else sums)

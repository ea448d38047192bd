"""Operators whose output's extents depend on data: NonZero, Compress, Unique, TopK, Range."""

from __future__ import annotations

import math

import numpy as np

from clnn.ops.host.registry import HostNode, host_op
from clnn.types import Array

MAX_ELEMENTS = 2**31 - 1
LONG_LINE = 1024  # elements from which on a few are looked for before they are sorted


@host_op("NonZero")
def _nonzero(node: HostNode, x: Array) -> Array:
    if not x.ndim:  # ONNX: as many places as it is not zero, of no coordinates each
        return np.empty((0, np.count_nonzero(x)), np.int64)
    return np.array(np.nonzero(x), np.int64)


@host_op("Compress")
def _compress(node: HostNode, x: Array, condition: Array) -> Array:
    axis = node.attr("axis")
    extent = x.size if axis is None else x.shape[axis]
    if len(condition) > extent:
        condition = condition[:extent]
    return np.compress(condition, x, axis)


@host_op("Unique")
def _unique(node: HostNode, x: Array) -> tuple[Array, ...]:
    axis = node.attr("axis")
    found = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, axis=axis, equal_nan=False
    )
    values, first, inverse, counts = found
    inverse = inverse.reshape(-1)
    if not node.attr("sorted", 1):
        order = np.argsort(first, kind="stable")
        values = np.take(values, order, 0 if axis is None else axis)
        first, counts = first[order], counts[order]
        inverse = np.argsort(order, kind="stable")[inverse]
    return values, *(a.astype(np.int64) for a in (first, inverse, counts))


@host_op("TopK")
def _topk(node: HostNode, x: Array, count: Array | None = None) -> tuple[Array, Array]:
    axis = int(node.attr("axis", -1))
    wanted = int(node.attrs["k"] if count is None else count.reshape(-1)[0])
    if not 0 <= wanted <= x.shape[axis]:
        raise ValueError(f"the top {wanted} of {x.shape[axis]} elements do not exist")
    is_last = axis in (-1, x.ndim - 1)
    lines = x if is_last else np.moveaxis(x, axis, -1)
    places = _best(lines, wanted, bool(node.attr("largest", 1)))
    found = np.take_along_axis(lines, places, -1), places
    best, where = (a if is_last else np.moveaxis(a, -1, axis) for a in found)
    return best.copy(), where.copy()


def _best(lines: Array, wanted: int, largest: bool) -> Array:
    """Return the places of the first of each line in order; of equal values the lower comes first.

    NaN ranks above all numbers. Of a long line only what reaches the last wanted value is sorted.
    """
    extent = lines.shape[-1]
    if extent < LONG_LINE or wanted * 4 > extent or not wanted:
        return _in_order(lines, largest)[..., :wanted]
    last = extent - wanted if largest else wanted - 1
    ends = np.partition(lines, last, -1)[..., last : last + 1]
    near = ~(lines < ends) if largest else ~(lines > ends)
    result = np.empty((*lines.shape[:-1], wanted), np.int64)
    for index in np.ndindex(lines.shape[:-1]):
        places = np.flatnonzero(near[index])
        result[index] = places[_in_order(lines[index][places], largest)[:wanted]]
    return result


def _in_order(lines: Array, largest: bool) -> Array:
    """Return the places of each line's elements in order, as int64; ranks stand for what has no negative, or NaN."""
    ranks = lines
    if lines.dtype.kind != "f" or np.isnan(lines).any():
        ranks = np.unique(lines, return_inverse=True)[1].reshape(lines.shape)
    order = np.argsort(-ranks if largest else ranks, axis=-1, kind="stable")
    return order.astype(np.int64, copy=False)


@host_op("Range")
def _range(node: HostNode, start: Array, stop: Array, step: Array) -> Array:
    begin, end, pace = (a.reshape(-1)[0].item() for a in (start, stop, step))
    if not pace:
        raise ValueError("a range with steps of 0 has no end")
    count = max(0, math.ceil((end - begin) / pace))
    if count > MAX_ELEMENTS:
        raise ValueError(f"a range of {count} elements is too long")
    steps = np.full(count, pace, start.dtype)
    steps[:1] = begin
    return np.asarray(np.cumsum(steps, dtype=start.dtype))  # a running sum, as onnxruntime has it


@host_op("ConstantOfShape")
def _constant_of_shape(node: HostNode, shape: Array) -> Array:
    item = np.asarray(node.attr("value", np.zeros(1, np.float32))).reshape(-1)[0]
    extents = tuple(int(d) for d in shape.reshape(-1))
    if min(extents, default=0) < 0 or math.prod(extents) > MAX_ELEMENTS:
        raise ValueError(f"no tensor has extents {extents}")
    return np.full(extents, item)

"""Sequences of tensors and optional values: lists of arrays, and None."""

from __future__ import annotations

import numpy as np

from clnn.ops.host.registry import HostNode, Value, host_op
from clnn.types import Array


def _place(position: Array | None, count: int, default: int) -> int:
    place = default if position is None else int(position.reshape(-1)[0])
    place += count if place < 0 else 0
    return place


@host_op("SequenceConstruct")
def _construct(node: HostNode, *parts: Array) -> Value:
    return list(parts)


@host_op("SequenceEmpty")
def _empty(node: HostNode) -> Value:
    return []


@host_op("SequenceInsert")
def _insert(
    node: HostNode, parts: list[Array], part: Array, position: Array | None = None
) -> Value:
    place = _place(position, len(parts), len(parts))
    if not 0 <= place <= len(parts):
        raise IndexError(f"position {place} is outside of a sequence of {len(parts)}")
    return [*parts[:place], part, *parts[place:]]


@host_op("SequenceErase")
def _erase(node: HostNode, parts: list[Array], position: Array | None = None) -> Value:
    place = _place(position, len(parts), len(parts) - 1)
    if not 0 <= place < len(parts):
        raise IndexError(f"position {place} is outside of a sequence of {len(parts)}")
    return [*parts[:place], *parts[place + 1 :]]


@host_op("SequenceAt")
def _at(node: HostNode, parts: list[Array], position: Array) -> Value:
    place = _place(position, len(parts), 0)
    if not 0 <= place < len(parts):
        raise IndexError(f"position {place} is outside of a sequence of {len(parts)}")
    return parts[place]


@host_op("SequenceLength")
def _length(node: HostNode, parts: list[Array]) -> Array:
    return np.array(len(parts), np.int64)


@host_op("ConcatFromSequence")
def _concat(node: HostNode, parts: list[Array]) -> Array:
    axis = int(node.attrs["axis"])
    return np.stack(parts, axis) if node.attr("new_axis", 0) else np.concatenate(parts, axis)


@host_op("SplitToSequence")
def _split(node: HostNode, x: Array, sizes: Array | None = None) -> Value:
    axis, keep = int(node.attr("axis", 0)), bool(node.attr("keepdims", 1))
    extent = x.shape[axis]
    if sizes is None:
        parts = np.split(x, extent, axis) if extent else []
        return [p if keep else np.squeeze(p, axis) for p in parts]
    if sizes.ndim == 0:
        size = int(sizes)
        if size < 1:
            raise ValueError(f"parts of {size} elements")
        cuts = list(range(size, extent, size))
    else:
        if int(sizes.sum()) != extent or (sizes < 0).any():
            raise ValueError(f"parts {sizes.tolist()} do not add up to {extent} on axis {axis}")
        cuts = np.cumsum(sizes)[:-1].tolist()
    return list(np.split(x, cuts, axis))


@host_op("Identity")
def _identity(node: HostNode, value: Value) -> Value:
    return value


@host_op("Optional")
def _optional(node: HostNode, value: Value = None) -> Value:
    return value


@host_op("OptionalGetElement")
def _element(node: HostNode, value: Value = None) -> Value:
    if value is None:
        raise ValueError("the optional value is not there")
    return value


@host_op("OptionalHasElement")
def _has_element(node: HostNode, value: Value = None) -> Array:
    return np.array(value is not None)

"""Operators that rename, pick or repeat elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from clnn.ops.host.registry import HostNode, Value, host_op
from clnn.ops.host.text import cast_text
from clnn.types import Array


@host_op("Shape")
def _shape(node: HostNode, x: Array) -> Array:
    return np.array(x.shape, np.int64)[node.attr("start", 0) : node.attr("end")]


@host_op("Size")
def _size(node: HostNode, x: Array) -> Array:
    return np.array(x.size, np.int64)


@host_op("Constant")
def _constant(node: HostNode) -> Array:
    return np.asarray(node.attrs["value"])


@host_op("Reshape")
def _reshape(node: HostNode, x: Array, shape: Array) -> Array:
    wanted = [int(d) for d in shape]
    if not node.attr("allowzero", 0):
        wanted = [x.shape[a] if d == 0 else d for a, d in enumerate(wanted)]
    if -1 in wanted:
        known = math.prod(d for d in wanted if d != -1)
        if wanted.count(-1) > 1 or not known or x.size % known:
            raise ValueError(f"no extent in place of -1 in {wanted} fits")
        wanted[wanted.index(-1)] = x.size // known
    return x.reshape(wanted)


@host_op("Flatten")
def _flatten(node: HostNode, x: Array) -> Array:
    axis = int(node.attr("axis", 1))
    axis += x.ndim if axis < 0 else 0
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def _axes(node: HostNode, axes: Array | None) -> list[int] | None:
    given = node.attr("axes") if axes is None else axes.reshape(-1).tolist()
    return None if given is None else [int(a) for a in given]


@host_op("Squeeze")
def _squeeze(node: HostNode, x: Array, axes: Array | None = None) -> Array:
    listed = _axes(node, axes)
    return np.squeeze(x, None if listed is None else tuple(listed))


@host_op("Unsqueeze")
def _unsqueeze(node: HostNode, x: Array, axes: Array | None = None) -> Array:
    return np.expand_dims(x, tuple(_axes(node, axes) or ()))


@host_op("Transpose")
def _transpose(node: HostNode, x: Array) -> Array:
    return np.transpose(x, node.attr("perm"))


@host_op("Expand")
def _expand(node: HostNode, x: Array, shape: Array) -> Array:
    wanted = np.broadcast_shapes(x.shape, tuple(int(d) for d in shape))
    return np.broadcast_to(x, wanted)


@host_op("Tile")
def _tile(node: HostNode, x: Array, repeats: Array) -> Array:
    return np.tile(x, repeats.reshape(-1).tolist())


@host_op("Concat")
def _concat(node: HostNode, *parts: Array) -> Array:
    return np.concatenate(parts, int(node.attr("axis", 1)))


@host_op("Split")
def _split(node: HostNode, x: Array, sizes: Array | None = None) -> tuple[Value, ...]:
    axis = int(node.attr("axis", 0))
    listed = node.attr("split") if sizes is None else sizes.reshape(-1).tolist()
    if listed is None:
        count = int(node.attr("num_outputs", node.n_outputs))
        size = -(-x.shape[axis] // count)
        listed = [max(0, min(size, x.shape[axis] - k * size)) for k in range(count)]
    if sum(listed) != x.shape[axis]:
        raise ValueError(f"parts {listed} do not add up to {x.shape[axis]} on axis {axis}")
    return tuple(np.split(x, np.cumsum(listed)[:-1], axis))


@host_op("Slice")
def _slice(node: HostNode, x: Array, *bounds: Array | None) -> Array:
    if node.opset < 10:
        starts, ends = node.attrs["starts"], node.attrs["ends"]
        axes, steps = node.attr("axes"), None
    else:
        listed = [None if b is None else b.reshape(-1).tolist() for b in bounds]
        starts, ends, axes, steps = (*listed, None, None)[:4]
    where: Sequence[int] = range(len(starts)) if axes is None else [int(a) for a in axes]
    index = [slice(None)] * x.ndim
    for axis, begin, end, step in zip(where, starts, ends, steps or [1] * len(starts), strict=True):
        kept = range(x.shape[axis])[int(begin) : int(end) : int(step)]
        stop = kept.stop if kept.stop >= 0 else None
        index[axis] = slice(kept.start, stop, kept.step) if len(kept) else slice(0, 0)
    return np.asarray(x[tuple(index)])


def in_range(indices: Array, extent: int) -> Array:
    """Return indices counted from the front. Raises IndexError for one outside of the extent."""
    if not indices.size:
        return np.asarray(indices)
    least = indices.min()
    if least < -extent or indices.max() >= extent:
        wrong = indices[(indices < -extent) | (indices >= extent)].reshape(-1)[0]
        raise IndexError(f"index {wrong} is outside of extent {extent}")
    return np.asarray(indices if least >= 0 else np.where(indices < 0, indices + extent, indices))


@host_op("Gather")
def _gather(node: HostNode, data: Array, indices: Array) -> Array:
    axis = int(node.attr("axis", 0))
    return np.take(data, in_range(indices, data.shape[axis]), axis)


@host_op("GatherElements")
def _gather_elements(node: HostNode, data: Array, indices: Array) -> Array:
    axis = int(node.attr("axis", 0))
    return np.asarray(data[_along(indices, data.shape[axis], axis)])


def _along(indices: Array, extent: int, axis: int) -> tuple[Any, ...]:
    """Return what picks `indices` along an axis of that extent, and each place itself along others.

    Indices that Expand made of a line pick slices. Raises IndexError for one outside of the extent.
    """
    axis %= max(indices.ndim, 1)
    others = [a for a in range(indices.ndim) if a != axis]
    if indices.size and all(not indices.strides[a] for a in others if indices.shape[a] > 1):
        line = np.moveaxis(indices, axis, -1)[(0,) * len(others)]
        slices: list[Any] = [slice(d) for d in indices.shape]
        slices[axis] = in_range(line, extent)
        return tuple(slices)
    found = in_range(indices, extent)
    rank = indices.ndim
    return tuple(found if a == axis else _counted(indices.shape[a], a, rank) for a in range(rank))


@lru_cache(64)
def _counted(extent: int, axis: int, rank: int) -> Array:
    """Return the numbers below an extent, along an axis."""
    made = np.arange(extent).reshape([-1 if a == axis else 1 for a in range(rank)])
    made.flags.writeable = False
    return made


@host_op("GatherND")
def _gather_nd(node: HostNode, data: Array, indices: Array) -> Array:
    batch = int(node.attr("batch_dims", 0))
    count = math.prod(data.shape[:batch])
    flat = data.reshape(count, *data.shape[batch:])
    tuples = indices.reshape(count, -1, indices.shape[-1])
    parts = [
        in_range(tuples[..., k], d) for k, d in enumerate(flat.shape[1 : 1 + tuples.shape[-1]])
    ]
    found = flat[(np.arange(count)[:, None], *parts)]
    return np.asarray(found).reshape(*indices.shape[:-1], *data.shape[batch + indices.shape[-1] :])


_UPDATES = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _write(out: Array, place: Any, updates: Array, reduction: str) -> Array:
    if reduction == "none":
        out[place] = updates
    else:
        _UPDATES[reduction].at(out, place, updates)
    return out


@host_op("ScatterElements", "Scatter")
def _scatter_elements(node: HostNode, data: Array, indices: Array, updates: Array) -> Array:
    axis = int(node.attr("axis", 0))
    place = _along(indices, data.shape[axis], axis)
    return _write(data.copy(), place, updates, node.attr("reduction", "none"))


@host_op("ScatterND")
def _scatter_nd(node: HostNode, data: Array, indices: Array, updates: Array) -> Array:
    depth = indices.shape[-1]
    place = tuple(in_range(indices[..., k], data.shape[k]) for k in range(depth))
    return _write(data.copy(), place, updates, node.attr("reduction", "none"))


@host_op("Pad")
def _pad(node: HostNode, x: Array, *others: Array | None) -> Array:
    pads, fill, axes = (*others, None, None, None)[:3]
    listed = node.attr("pads") if pads is None else pads.reshape(-1).tolist()
    where = range(x.ndim) if axes is None else [int(a) % x.ndim for a in axes]
    widths = [(0, 0)] * x.ndim
    for k, axis in enumerate(where):
        widths[axis] = (int(listed[k]), int(listed[k + len(where)]))
    if any(width < 0 for pair in widths for width in pair):
        x = x[
            tuple(
                slice(max(-b, 0), d - max(-e, 0)) for (b, e), d in zip(widths, x.shape, strict=True)
            )
        ]
        widths = [(max(b, 0), max(e, 0)) for b, e in widths]
    mode = node.attr("mode", "constant")
    if mode != "constant":
        return np.asarray(np.pad(x, widths, mode=mode))
    value = node.attr("value", 0.0) if fill is None else fill.reshape(-1)[0]
    return np.pad(x, widths, mode="constant", constant_values=value)


@host_op("EyeLike")
def _eye_like(node: HostNode, x: Array) -> Array:
    rows, columns = x.shape
    dtype: np.dtype[Any] = node.attr("dtype", x.dtype)
    return np.eye(rows, columns, int(node.attr("k", 0)), dtype=dtype)


@host_op("OneHot")
def _one_hot(node: HostNode, indices: Array, depth: Array, values: Array) -> Array:
    count, axis = int(depth.reshape(-1)[0]), int(node.attr("axis", -1))
    axis += indices.ndim + 1 if axis < 0 else 0
    picks = np.arange(count).reshape([-1 if a == axis else 1 for a in range(indices.ndim + 1)])
    whole = np.where(indices < 0, indices + count, indices)
    return np.asarray(np.where(np.expand_dims(whole, axis) == picks, values[1], values[0]))


@host_op("Cast", "CastLike")
def _cast(node: HostNode, x: Array, like: Array | None = None) -> Array:
    dtype = np.dtype(node.attrs["to"] if like is None else like.dtype)
    if x.dtype.kind == "O" or dtype.kind == "O":
        return cast_text(x, dtype)
    with np.errstate(all="ignore"):
        return np.asarray(x.astype(dtype))

"""Operators bound to their attributes and constants: what a loop's body calls in every turn.

The functions here do what those of the registry do, for the inputs that loops have. They raise where they
do not, and whoever calls them asks the registry's then. Warnings of numpy are the caller's to switch off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from clnn.ops.host.arithmetic import BINARY, MANY, UNARY, worst
from clnn.ops.host.registry import HostNode, Value, host_ops
from clnn.ops.host.selection import MAX_ELEMENTS
from clnn.types import Array

Bound = Callable[..., Value]
Known = Sequence["Array | None"]
_MAKERS: dict[str, Callable[[HostNode, Known], Bound | None]] = {}
Maker = Callable[[HostNode, Known], "Bound | None"]


def bound(node: HostNode, known: Known) -> Bound:
    """Return a function of a node's inputs, which returns its output or a tuple of all.

    known: of each input the array where it is a constant. Any thread may call the function.
    """
    make = _MAKERS.get(node.op_type)
    special = make(node, known) if make is not None else None
    return partial(host_ops()[node.op_type], node) if special is None else special


def _maker(*op_types: str) -> Callable[[Maker], Maker]:
    def register(make: Maker) -> Maker:
        _MAKERS.update(dict.fromkeys(op_types, make))
        return make

    return register


def _listed(node: HostNode, known: Known, place: int, attribute: str) -> list[int] | None:
    """Return whole numbers that are a constant input or an attribute, None where they are neither."""
    if len(known) > place:
        constant = known[place]
        return None if constant is None else [int(n) for n in constant.reshape(-1).tolist()]
    given = node.attr(attribute)
    return None if given is None else [int(n) for n in given]


@_maker(*UNARY)
def _unary(node: HostNode, known: Known) -> Bound:
    function = UNARY[node.op_type]
    return lambda x: np.asarray(function(x))


@_maker(*BINARY)
def _binary(node: HostNode, known: Known) -> Bound:
    function = BINARY[node.op_type]
    return lambda left, right: np.asarray(function(left, right))


@_maker(*MANY)
def _of_two(node: HostNode, known: Known) -> Bound | None:
    function = MANY[node.op_type]
    return (lambda left, right: np.asarray(function(left, right))) if len(known) == 2 else None


@_maker("Cast")
def _cast(node: HostNode, known: Known) -> Bound | None:
    dtype = np.dtype(node.attrs["to"])

    def cast(x: Array) -> Array:
        if x.dtype is dtype:
            return x
        if x.dtype.char == "O":
            raise TypeError("text")
        return x.astype(dtype)

    return None if dtype.kind == "O" else cast


@_maker("Reshape")
def _reshape(node: HostNode, known: Known) -> Bound | None:
    wanted = _listed(node, known, 1, "shape")
    if wanted is None or min(wanted, default=1) < -1 or 0 in wanted:
        return None
    shape = tuple(wanted)
    return lambda x, _=None: x.reshape(shape)


@_maker("Squeeze")
def _squeeze(node: HostNode, known: Known) -> Bound | None:
    listed = _listed(node, known, 1, "axes")
    if not listed:
        return None
    axes = tuple(listed)
    return lambda x, _=None: x.squeeze(axes)


@_maker("Unsqueeze")
def _unsqueeze(node: HostNode, known: Known) -> Bound | None:
    """One new axis, counted from the front."""
    listed = _listed(node, known, 1, "axes")
    if listed is None or len(listed) != 1 or listed[0] < 0:
        return None
    (axis,) = listed
    index = (*[slice(None)] * axis, None)

    def unsqueeze(x: Array, _: object = None) -> Array:
        if axis > x.ndim:
            raise IndexError(axis)
        made: Array = x[index]
        return made

    return unsqueeze


@_maker("Slice")
def _slice(node: HostNode, known: Known) -> Bound | None:
    """Along one axis that is known, one by one."""
    axes, steps = _listed(node, known, 3, "axes"), _listed(node, known, 4, "steps") or [1]
    if node.opset < 10 or axes is None or len(axes) != 1 or axes[0] < 0 or steps != [1]:
        return None
    if len(known) > 4 and known[4] is None:
        return None
    (axis,) = axes
    before = (slice(None),) * axis

    def cut(x: Array, starts: Array, ends: Array, *_: object) -> Array:
        kept = range(x.shape[axis])[starts.item() : ends.item()]
        made: Array = x[(*before, slice(kept.start, kept.stop) if len(kept) else slice(0, 0))]
        return made

    return cut


@_maker("Concat")
def _concat(node: HostNode, known: Known) -> Bound:
    axis = int(node.attr("axis", 1))
    return lambda *parts: np.concatenate(parts, axis)


@_maker("ReduceMax", "ReduceMin")
def _reduce(node: HostNode, known: Known) -> Bound | None:
    listed = _listed(node, known, 1, "axes")
    if not listed:
        return None
    axes, keep = tuple(listed), bool(node.attr("keepdims", 1))
    lowest = node.op_type == "ReduceMax"
    function: Any = (np.maximum if lowest else np.minimum).reduce
    starts = {
        np.dtype(t): worst(np.dtype(t), lowest) for t in (np.int32, np.int64, np.float32, bool)
    }

    def reduce(x: Array, _: object = None) -> Array:
        return np.asarray(function(x, axis=axes, keepdims=keep, initial=starts[x.dtype]))

    return reduce


@_maker("Range")
def _range(node: HostNode, known: Known) -> Bound:
    """Of whole numbers: others are running sums."""

    def count(start: Array, stop: Array, step: Array) -> Array:
        if start.dtype.kind != "i" or start.size * stop.size * step.size != 1:
            raise TypeError(start.dtype)
        begin, end, pace = start.item(), stop.item(), step.item()
        if begin + pace == end:
            return start.reshape(1)
        if abs(end - begin) > MAX_ELEMENTS:
            raise ValueError(end)
        made: Array = np.arange(int(begin), int(end), int(pace))
        return made.astype(start.dtype, copy=False)

    return count


@_maker("Tile")
def _tile(node: HostNode, known: Known) -> Bound:
    def tile(x: Array, repeats: Array) -> Array:
        listed = repeats.reshape(-1).tolist()
        if x.size == 1 and x.dtype.char != "O" and len(listed) == x.ndim and min(listed) > 0:
            return np.ndarray(listed, x.dtype, x, 0, (0,) * x.ndim)
        pairs = list(zip(listed, x.shape, strict=True))
        made = np.empty([extent for pair in pairs for extent in pair], x.dtype)
        made[...] = x.reshape([extent for _, d in pairs for extent in (1, d)])
        return made.reshape([times * d for times, d in pairs])

    return tile


@_maker("ScatterElements")
def _scatter(node: HostNode, known: Known) -> Bound | None:
    """One row or column, written where all indices say the same."""
    axis = int(node.attr("axis", 0))
    if axis < 0 or node.attr("reduction", "none") != "none":
        return None

    def scatter(data: Array, indices: Array, updates: Array) -> Array:
        shape, extent = indices.shape, data.shape[axis]
        first = indices.item(0)
        fits = shape[axis] == 1 and updates.shape == shape and -extent <= first < extent
        others = all(
            a == axis or i <= d for a, (i, d) in enumerate(zip(shape, data.shape, strict=True))
        )
        if not fits or not others or (any(indices.strides) and not (indices == first).all()):
            raise ValueError("more than one row")
        first += extent if first < 0 else 0
        out = data.copy()
        rows = slice(first, first + 1)
        out[tuple(rows if a == axis else slice(d) for a, d in enumerate(shape))] = updates
        return out

    return scatter

"""Resizing and padding as launches of the universal set: elements found in tables along each axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod

import numpy as np

from clnn.layout import TensorLayout
from clnn.ops.launch import Arg, Const, In, Out, Variant
from clnn.ops.problem import Problem
from clnn.ops.shared.epilogue import operand_layouts
from clnn.ops.shared.functions import PostOp
from clnn.ops.universal.functions import PIECES, banded, universal_launch
from clnn.ops.universal.post_ops import encoded, is_plain, ordered_operands
from clnn.records import dataclass
from clnn.types import Array

AXES = 4  # of a tensor


@dataclass(frozen=True, eq=False)
class Along:
    """What one axis of the result is made of: indices of src and weights, [position][tap].

    A first index below 0: the position lies outside.
    """

    index: Array
    weight: Array

    @staticmethod
    def of_index(index: Array) -> Along:
        """Return copies of the elements at `index`."""
        column = index.astype(np.int32).reshape(-1, 1)
        return Along(column, np.ones(column.shape, np.float32))

    @staticmethod
    def of_taps(index: Array, weight: Array, outside: Array) -> Along:
        """Return sums of weighted elements, [position][tap], of positions that may lie `outside`."""
        first = np.where(outside[:, None], -1, index).astype(np.int32)
        return Along(first, weight.astype(np.float32))


def universal_sample(
    problem: Problem, along: Mapping[int, Along], fill: float, post_ops: Sequence[PostOp]
) -> Variant | None:
    """Return weighted sums of elements of input 0 as a launch of the set, None where it has no form there.

    along: of the axes that do not stay as they are. fill: what lies outside. Products of weights, the last axis' first,
    and sums are rounded one by one, as a Resize in turn wants it.
    """
    src, dst = (o.layout.unpadded() for o in (problem.input(0), problem.outputs[0]))
    images = operand_layouts(problem, post_ops)
    codes = encoded(post_ops, {k: place for k, (place, _) in images.items()})
    extra = ordered_operands(problem, images)
    fits = src.rank == dst.rank and is_plain(problem, 0) and problem.input(0).type.size
    if not fits or codes is None or extra is None:
        return None
    axes = walked_axes(along, (src, *extra[1], dst))
    if axes is None:
        return None
    tables, numbers = [axis.table for axis in axes], numbers_of(axes)
    extents = [axis.extent for axis in axes]
    taps = prod(table.index.shape[1] for table in tables)
    lines, pieces = prod(extents[:-1]), -(-extents[-1] // PIECES["sample"])
    band = banded(pieces, lines, PIECES["sample"] * taps * 4, problem.target)
    args: tuple[Arg, ...] = (
        In(0),
        Const(partial(joined, [table.index for table in tables])),
        Const(partial(joined, [table.weight for table in tables])),
        *extra[0],
        Out(0),
    )
    sizes = (-(-pieces // band), lines)
    heads = [band, int(axes[-1].stays), float(fill)]
    launch = universal_launch("sample", problem.target, args, [*heads, *numbers, *codes], sizes)
    return Variant("universal_sample", (launch,))


def ordered(order: Sequence[int], along: Mapping[int, Along]) -> tuple[int, ...]:
    """Return axes in the order in which they lie, or in their own where sums would be made in another order."""
    summed = [axis for axis in order if axis in along and along[axis].index.shape[1] > 1]
    return tuple(order) if summed == sorted(summed) else tuple(sorted(order))


@dataclass(frozen=True, eq=False)
class Axis:
    """An axis of the result as kernels walk it: its extent, pitches, table, and whether elements stay in order."""

    extent: int
    pitches: tuple[int, ...]
    table: Along
    stays: bool


def walked_axes(
    along: Mapping[int, Along], layouts: Sequence[TensorLayout | None]
) -> list[Axis] | None:
    """Return the AXES that kernels walk, the innermost last: those that stay are joined where all layouts let them.

    layouts: of src, operands and dst. None where there are more.
    """
    dst = layouts[-1]
    assert dst is not None
    found: list[tuple[int, tuple[int, ...], int | None]] = []
    for axis in ordered(dst.order, along):
        extent, resized = dst.shape[axis], axis in along
        pitches = tuple(0 if t is None else t.pitches[axis] for t in layouts)
        if extent == 1 and not resized:
            continue
        if found and not resized and found[-1][2] is None:
            count, outer, _ = found[-1]
            if all(o == extent * p for o, p in zip(outer, pitches, strict=True)):
                found[-1] = (count * extent, pitches, None)
                continue
        found.append((extent, pitches, axis if resized else None))
    if len(found) > AXES:
        return None
    found = [(1, (0,) * len(layouts), None)] * (AXES - len(found)) + found
    return [
        Axis(extent, pitches, along[axis] if axis is not None else _in_order(extent), axis is None)
        for extent, pitches, axis in found
    ]


def numbers_of(axes: Sequence[Axis]) -> list[int]:
    """Return of each axis its extent, the elements of a sum, where its table begins in `joined`, and its pitches."""
    numbers: list[int] = []
    start = 0
    for axis in axes:
        numbers += [axis.extent, axis.table.index.shape[1], start, *axis.pitches]
        start += axis.table.index.size
    return numbers


def _in_order(extent: int) -> Along:
    return Along.of_index(np.arange(extent))


def joined(tables: Sequence[Array]) -> Array:
    """Return the tables of all axes, one behind the other."""
    return np.concatenate([table.reshape(-1) for table in tables])

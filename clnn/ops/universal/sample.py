"""Resizing and padding as launches of the universal set: elements found in tables along each axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod

import numpy as np

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
    fits = src.rank == dst.rank <= AXES and is_plain(problem, 0) and problem.input(0).type.size
    if not fits or codes is None or extra is None:
        return None
    axes = [*[None] * (AXES - dst.rank), *ordered(dst.order, along)]
    tables = [table_of(along, axis, 1 if axis is None else dst.shape[axis]) for axis in axes]
    direct = axes[-1] not in along
    numbers: list[int | float] = []
    start = 0
    for axis, table in zip(axes, tables, strict=True):
        layouts = (src, *extra[1], dst)
        pitches = [0 if axis is None or t is None else t.pitches[axis] for t in layouts]
        numbers += [len(table.index), table.index.shape[1], start, *pitches]
        start += table.index.size
    extents = [len(table.index) for table in tables]
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
    heads = [band, int(direct), float(fill)]
    launch = universal_launch("sample", problem.target, args, [*heads, *numbers, *codes], sizes)
    return Variant("universal_sample", (launch,))


def ordered(order: Sequence[int], along: Mapping[int, Along]) -> tuple[int, ...]:
    """Return axes in the order in which they lie, or in their own where sums would be made in another order."""
    summed = [axis for axis in order if axis in along and along[axis].index.shape[1] > 1]
    return tuple(order) if summed == sorted(summed) else tuple(sorted(order))


def table_of(along: Mapping[int, Along], axis: int | None, extent: int) -> Along:
    """Return the table of an axis, of its own elements where it stays as it is."""
    return along[axis] if axis in along and axis is not None else Along.of_index(np.arange(extent))


def joined(tables: Sequence[Array]) -> Array:
    """Return the tables of all axes, one behind the other."""
    return np.concatenate([table.reshape(-1) for table in tables])

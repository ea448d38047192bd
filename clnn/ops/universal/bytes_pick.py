"""Resizing to the nearest and padding of elements that are no floats as launches of the universal set."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod

import numpy as np

from clnn.ops.launch import Arg, Const, In, Out, Variant
from clnn.ops.problem import Problem
from clnn.ops.universal.functions import PIECES, universal_launch
from clnn.ops.universal.sample import Along, walked_axes
from clnn.types import Array

LARGEST = 2**31  # that a number of a launch holds


def universal_pick(problem: Problem, along: Mapping[int, Along], fill: float) -> Variant | None:
    """Return copies of elements of input 0 as a launch of the set, None where it has no form there.

    along: of the axes that do not stay as they are, one element each. fill: what lies outside.
    """
    x, out = problem.input(0), problem.outputs[0]
    src, dst = x.layout.unpadded(), out.layout.unpadded()
    single = all(one.index.shape[1] == 1 and (one.weight == 1).all() for one in along.values())
    fits = src.rank == dst.rank and x.type.dtype.numpy.kind in "iu" and x.type.size
    if not fits or not single or x.stored or out.stored or not abs(fill) < LARGEST:
        return None
    axes = walked_axes(along, (src, dst))
    if axes is None:
        return None
    numbers: list[int] = []
    tables: list[Array] = []
    for axis in axes:
        numbers += [axis.extent, sum(map(len, tables)), *axis.pitches]
        tables.append(axis.table.index.reshape(-1))
    extents = [axis.extent for axis in axes]
    args: tuple[Arg, ...] = (In(0), Const(partial(np.concatenate, tables)), Out(0))
    sizes = (-(-extents[-1] // PIECES["bytes_pick"]), prod(extents[:-1]))
    heads = [x.type.dtype.itemsize, int(axes[-1].stays), int(fill)]
    launch = universal_launch("bytes_pick", problem.target, args, [*heads, *numbers], sizes)
    return Variant("universal_bytes_pick", (launch,))

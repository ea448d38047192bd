"""Resizing of integers by weights as launches of the universal set."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod

import numpy as np

from clnn.arith.quantised import limits_of
from clnn.ops.launch import Arg, Const, In, Out, Variant
from clnn.ops.problem import Problem
from clnn.ops.universal.byte_steps import TYPES
from clnn.ops.universal.functions import PIECES, banded, universal_launch
from clnn.ops.universal.sample import Along, joined, numbers_of, walked_axes
from clnn.types import I8, I16, U8, U16

KINDS = (U8, I8, U16, I16)


def universal_byte_sample(
    problem: Problem, along: Mapping[int, Along], fill: float, bits: int
) -> Variant | None:
    """Return weighted sums of elements of input 0 as a launch of the set, None where it has no form there.

    along: of the axes that do not stay as they are. fill: what lies outside. bits: of weights that are integers, 0:
    they are floats, and products and sums are rounded one by one.
    """
    x, out = problem.input(0), problem.outputs[0]
    src, dst, kind = x.layout.unpadded(), out.layout.unpadded(), x.type.dtype
    fits = src.rank == dst.rank and kind in KINDS and out.type.dtype == kind
    wide = bits > 0 and kind.itemsize > 1  # whose sums exceed 32 bits
    if not fits or wide or x.stored or out.stored or not x.type.size:
        return None
    axes = walked_axes(along, (src, dst))
    if axes is None:
        return None
    tables, numbers = [axis.table for axis in axes], numbers_of(axes)
    extents = [axis.extent for axis in axes]
    taps, lines = prod(table.index.shape[1] for table in tables), prod(extents[:-1])
    pieces = -(-extents[-1] // PIECES["bytes_sample"])
    band = banded(pieces, lines, PIECES["bytes_sample"] * taps * 4, problem.target)
    weights = [a.table.weight * np.float32(1 if a.stays else 2.0**bits) for a in axes]
    args: tuple[Arg, ...] = (
        In(0),
        Const(partial(joined, [table.index for table in tables])),
        Const(partial(joined, weights)),
        Out(0),
    )
    heads: list[int | float] = [band, int(axes[-1].stays), int(bits > 0), bits * len(along)]
    heads += [TYPES.index(kind.cl), float(fill), *map(float, limits_of(kind))]
    sizes = (-(-pieces // band), lines)
    launch = universal_launch("bytes_sample", problem.target, args, [*heads, *numbers], sizes)
    return Variant("universal_bytes_sample", (launch,))

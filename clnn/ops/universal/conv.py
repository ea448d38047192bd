"""Convolutions as launches of the universal set."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from clnn.arith._base import FLOAT
from clnn.ops.conv.packing import pack_filters
from clnn.ops.conv.problem import ConvProblem
from clnn.ops.launch import Arg, Const, In, Out, Variant
from clnn.ops.universal.bordered import with_border
from clnn.ops.universal.functions import (
    COLUMNS,
    banded,
    tile_channels,
    tiling,
    universal_launch,
)
from clnn.ops.universal.packing import pack_bias, pack_tiles
from clnn.ops.universal.post_ops import Number, encoded, is_plain, limited, operands
from clnn.ops.universal.winograd import is_faster, universal_winograd

FILTER = 0  # mode of the window function
ONE_MATRIX = (0,) * 5  # what moves from matrix to matrix of a batch


class Terms(NamedTuple):
    """The terms of a pixel's sums: runs of `seg` elements at a pitch, so many in a row of runs.

    order: the axes of weights (ic, ky, kx) in the order of terms.
    """

    order: tuple[int, int, int]
    seg: int
    step: int
    runs: int
    rows_pitch: int
    runs_pitch: int


def terms_of(problem: ConvProblem) -> Terms:
    """Return how a window lies in memory, in as long runs as can be."""
    geometry = problem.geometry
    return terms_in(problem.src.pitches, problem.ic, geometry["kernel"], geometry["dilations"])


def terms_in(
    pitches: Sequence[int], ic: int, kernel: Sequence[int], dilations: Sequence[int]
) -> Terms:
    """Return how a window of `ic` channels of an image of these pitches (n, c, y, x) lies in memory."""
    _, pc, py, px = pitches
    (kh, kw), (dy, dx) = kernel, dilations
    if pc == 1 and px * dx == ic:
        return Terms((1, 2, 0), kw * ic, 1, 1, dy * py, 0)
    if px == 1 and kw > 1 and pc != 1:
        return Terms((0, 1, 2), kw, dx, kh, pc, dy * py)
    return Terms((1, 2, 0), ic, pc, kw, dy * py, dx * px)


def fits(problem: ConvProblem) -> bool:
    """Whether functions of the set compute it: float32, constant finite weights."""
    if problem.arith is not FLOAT or not problem.is_constant(1, 2):
        return False
    if not is_plain(problem, 0, 1, 2) or not np.isfinite(problem.input(1).largest):
        return False
    return problem.bias is None or problem.bias.ndim == 1


def universal_conv(problem: ConvProblem) -> Variant | None:
    """Return a convolution as launches of the set, None where it has no form there."""
    if not fits(problem):
        return None
    places = {k: place for k, (place, _) in problem.operands.items()}
    codes = encoded(problem.post_ops, places)
    extra = operands(problem, problem.post_ops, problem.operands)
    if codes is None or extra is None:
        return None
    if problem.has_border and is_faster(problem):
        return universal_winograd(problem, extra, codes)
    alone = problem.group > 1 and problem.ic == problem.oc == 1
    return with_border(problem, partial(_filters if alone else _tiles, extra=extra, codes=codes))


def groups_of(
    problem: ConvProblem, weights: int, dst: Sequence[int], operands: Sequence[int]
) -> tuple[int, ...]:
    """Return the numbers of constant weights: how much a group moves them, the result and operands.

    dst, operands: pitches as of images.
    """
    moved = (problem.oc * pitches[1] for pitches in (dst, operands[:4], operands[4:]))
    return 0, weights, *moved, *ONE_MATRIX


def first_of(problem: ConvProblem) -> In:
    """Return the input at the first window's first element."""
    _, _, py, px = problem.src.pitches
    before_y, before_x = problem.geometry["pads"]
    return In(0, -(before_y * py + before_x * px))


def _tiles(
    problem: ConvProblem,
    extra: tuple[tuple[In, ...], tuple[int, ...]],
    codes: tuple[Number, ...],
) -> Variant:
    target, terms = problem.target, terms_of(problem)
    low, high, codes = limited(codes)
    wide = tile_channels(target)
    pixels = problem.batch * problem.height * problem.width
    sums = problem.taps * problem.ic
    tiles = tiling(pixels, problem.oc, problem.group, sums, target)
    sn, pc, py, px = problem.src.pitches
    stride_y, stride_x = problem.geometry["strides"]
    numbers = (
        *(pixels, problem.height, problem.width, tiles.band, tiles.across),
        *(sn, py * stride_y, px * stride_x, problem.ic * pc),
        *problem.dst.pitches,
        *(sums, *terms[1:]),
        *(tiles.blocks, tiles.span, problem.oc, low, high, *extra[1]),
        *groups_of(problem, tiles.blocks * sums * wide, problem.dst.pitches, extra[1]),
        *codes,
    )
    pack = partial(pack_tiles, problem.weights, problem.group, wide, terms.order)
    bias = partial(pack_bias, problem.bias, len(problem.weights), problem.group, wide)
    args: tuple[Arg, ...] = (first_of(problem), Const(pack), In(0), Const(bias), *extra[0], Out(0))
    launch = universal_launch("conv", target, args, numbers, tiles.sizes)
    return Variant("universal_conv", (launch,))


def _filters(
    problem: ConvProblem,
    extra: tuple[tuple[In, ...], tuple[int, ...]],
    codes: tuple[Number, ...],
) -> Variant:
    target, vector = problem.target, problem.target.vector
    channels = problem.src.shape[1]
    tiles = -(-problem.width // COLUMNS)
    blocks = -(-channels // vector)
    others = blocks * problem.batch
    work = COLUMNS * vector * problem.taps * 4  # a tap's input is not used again
    band = banded(problem.height * tiles, others, work, target)
    geometry = problem.geometry
    numbers = (
        *(FILTER, channels, problem.height, problem.width, tiles, band),
        *problem.src.pitches,
        *problem.src.shape[2:],
        *(*geometry["kernel"], *geometry["strides"], *geometry["dilations"], 0, 0),
        *(0, 0, 0),
        *problem.dst.pitches,
        *extra[1],
        *codes,
    )
    weights, bias = problem.weights, problem.bias
    args: tuple[Arg, ...] = (
        first_of(problem),
        Const(partial(pack_filters, weights)),
        Const(lambda: np.zeros(channels, np.float32) if bias is None else bias),
        *extra[0],
        Out(0),
    )
    sizes = (blocks, -(-problem.height * tiles // band), problem.batch)
    return Variant("universal_filters", (universal_launch("window", target, args, numbers, sizes),))

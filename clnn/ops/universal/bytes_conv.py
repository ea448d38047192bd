"""Convolutions and products of bytes as launches of the universal set."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import NamedTuple

import numpy as np

from clnn.codegen.filters import image
from clnn.layout import TensorLayout
from clnn.ops.conv.problem import ConvProblem
from clnn.ops.launch import Arg, Const, Launch, Out, Scratch, Variant
from clnn.ops.shared.elementwise_launch import Walked
from clnn.ops.universal.bordered import with_border
from clnn.ops.universal.byte_steps import TYPES
from clnn.ops.universal.byte_sums import (
    MOVED,
    ROWS,
    SUMS,
    Behind,
    behind,
    constants,
    finish,
    moved,
    takes,
)
from clnn.ops.universal.bytes_walk import JOINED, byte_walked
from clnn.ops.universal.conv import first_of, terms_of
from clnn.ops.universal.functions import (
    COLUMNS,
    banded,
    of_bytes,
    tile_channels,
    tiling,
    universal_launch,
)
from clnn.types import I16, Array

WORD = 4  # terms
MOST_TAPS = 256  # of which floats hold sums of bytes exactly


def universal_byte_conv(problem: ConvProblem) -> Variant | None:
    """Return a convolution of bytes as a launch of the set, None where it has no form there."""
    if not takes(problem):
        return None
    after = behind(problem, problem.post_ops, problem.operands)
    mode, _ = finish(problem.arith)
    if after is None or (mode == SUMS and problem.post_ops):
        return None
    alone = problem.group > 1 and problem.ic == problem.oc == 1
    if alone and mode != SUMS and problem.taps <= MOST_TAPS:
        return with_border(problem, partial(_filters, after=after))
    form = _of_shorts if problem.input(0).type.dtype == I16 else _tiles
    return with_border(problem, partial(form, after=after))


def limbs_of(weights: Array) -> int:
    """Return the bytes that add up to a weight."""
    low, high = (int(weights.min()), int(weights.max())) if weights.size else (0, 0)
    return max(-(low // 128), -(-high // 127), 1)


def _tiles(problem: ConvProblem, after: Behind) -> Variant:
    read = Read(moved(problem.input(0).type.dtype))
    launch = _launch(problem, after, read, problem.dst.pitches, Out(0))
    return Variant("universal_bytes_conv", (launch,))


def _of_shorts(problem: ConvProblem, after: Behind) -> Variant | None:
    """Return sums of 16-bit inputs: those of their low bytes, and 256 times those of their high ones."""
    dst = problem.outputs[0].layout
    dense, kind = TensorLayout.make(dst.shape), problem.outputs[0].type.dtype.cl
    count = prod(dst.shape)
    sums = [Scratch(name, 4 * count) for name in ("low", "high")]
    pitches = image(dense).pitches
    launches = [
        _launch(problem, after, Read(0, 2, 0), pitches, sums[0]),
        _launch(problem, after, Read(MOVED, 2, 1), pitches, sums[1]),
    ]
    walked = [Walked(one, dense, kind) for one in sums]
    rest = byte_walked(
        "sums", walked, Walked(Out(0), dst.unpadded(), kind), problem.target, 4, JOINED
    )
    if rest is None:
        return None
    return Variant("universal_bytes_conv_shorts", (*launches, rest))


class Read(NamedTuple):
    """Which byte of elements of so many is read, and by how much it is moved up."""

    flip: int
    size: int = 1
    at: int = 0


def _launch(
    problem: ConvProblem, after: Behind, read: Read, pitches: Sequence[int], to: Out | Scratch
) -> Launch:
    """Return the launch that writes to an image of these pitches (n, c, y, x)."""
    target, limbs = of_bytes(problem.target), limbs_of(problem.weights)
    wide, terms = tile_channels(target), terms_of(problem)
    pixels = problem.batch * problem.height * problem.width
    sums = problem.taps * problem.ic
    words = -(-sums // WORD)
    tiles = tiling(pixels, problem.oc, problem.group, words * limbs, target)
    sn, pc, py, px = problem.src.pitches
    stride_y, stride_x = problem.geometry["strides"]
    mode, scales = finish(problem.arith)
    numbers = (
        *(pixels, problem.height, problem.width, tiles.band, tiles.across, *read),
        *(read.size * p for p in (sn, py * stride_y, px * stride_x, problem.ic * pc)),
        *pitches,
        *(sums, terms.seg, read.size * terms.step, terms.runs),
        *(read.size * p for p in (terms.rows_pitch, terms.runs_pitch)),
        *(tiles.blocks, tiles.span, problem.oc, limbs, words),
        *(mode, TYPES.index(problem.outputs[0].type.dtype.cl), *scales),
        *after.operand,
        *after.steps,
    )
    args: tuple[Arg, ...] = (
        first_of(problem),
        Const(partial(pack_words, problem.weights, problem.group, wide, terms.order, limbs)),
        Const(partial(_blocks, problem, wide, read)),
        *after.args,
        to,
    )
    return universal_launch("bytes_conv", problem.target, args, numbers, tiles.sizes)


def _blocks(problem: ConvProblem, wide: int, read: Read) -> Array:
    """Return constants as [group][block][ROWS][wide], zeros behind the last channel."""
    rows, group = constants(problem, read.flip, bool(read.at)), problem.group
    blocks = -(-problem.oc // wide)
    full = np.zeros((ROWS, group, blocks * wide), np.int32)
    full[:, :, : problem.oc] = rows.reshape(ROWS, group, problem.oc)
    return np.ascontiguousarray(full.reshape(ROWS, group, blocks, wide).transpose(1, 2, 0, 3))


def pack_words(
    weights: Array, group: int, wide: int, order: tuple[int, int, int], limbs: int
) -> Array:
    """Return weights (oc, ic, kernel...) as [group][block][limb][word][wide]; terms in the order of axes.

    A word has four terms, zeros behind the last one. Limbs add up to a weight.
    """
    oc, ic = weights.shape[:2]
    kernel = (1, *weights.shape[2:])[-2:]
    rows = weights.reshape(oc, ic, *kernel).transpose(0, *(1 + axis for axis in order))
    rows = rows.reshape(group, oc // group, -1)
    channels, terms = rows.shape[1:]
    blocks, words = -(-channels // wide), -(-terms // WORD)
    full = np.zeros((limbs, group, blocks * wide, words * WORD), np.int8)
    rest = rows.astype(np.int32)
    for limb in full:
        part = np.clip(rest, -128, 127)
        limb[:, :channels, :terms] = part
        rest -= part
    packed = full.view(np.int32).reshape(limbs, group, blocks, wide, words)
    return np.ascontiguousarray(packed.transpose(1, 2, 0, 4, 3))


def _filters(problem: ConvProblem, after: Behind) -> Variant:
    target = of_bytes(problem.target)
    vector, flip = target.vector, moved(problem.input(0).type.dtype)
    channels = problem.src.shape[1]
    tiles, blocks = -(-problem.width // COLUMNS), -(-channels // vector)
    work = COLUMNS * vector * problem.taps * 4
    band = banded(problem.height * tiles, blocks * problem.batch, work, target)
    geometry, (mode, scales) = problem.geometry, finish(problem.arith)
    numbers = (
        *(mode, channels, problem.height, problem.width, tiles, band, flip),
        *problem.src.pitches,
        *problem.src.shape[2:],
        *(*geometry["kernel"], *geometry["strides"], *geometry["dilations"], 0, 0),
        *(0, 0, 0),
        *problem.dst.pitches,
        *(TYPES.index(problem.outputs[0].type.dtype.cl), 0.0, 0.0, *scales),
        *after.operand,
        *after.steps,
    )
    weights = problem.weights

    def taps() -> Array:
        return np.ascontiguousarray(weights.reshape(channels, -1).T.astype(np.float32))

    args: tuple[Arg, ...] = (
        first_of(problem),
        Const(taps),
        Const(partial(constants, problem, flip)),
        *after.args,
        Out(0),
    )
    sizes = (blocks, -(-problem.height * tiles // band), problem.batch)
    launch = universal_launch("bytes_window", problem.target, args, numbers, sizes)
    return Variant("universal_bytes_filters", (launch,))

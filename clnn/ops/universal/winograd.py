"""Winograd's convolutions as launches of the universal set: tiles transformed, multiplied as groups, and back."""

from __future__ import annotations

from functools import partial
from math import inf

import numpy as np

from clnn.ops.conv.problem import ConvProblem
from clnn.ops.conv.winograd import (
    ERRORS,
    TileGrid,
    fits,
    matrices,
    tile_grid,
)
from clnn.ops.launch import Arg, Const, In, Launch, Out, Scratch, Variant
from clnn.ops.universal.functions import (
    SIDE,
    tile_channels,
    tile_of,
    tiling,
    universal_launch,
)
from clnn.ops.universal.packing import pack_columns
from clnn.ops.universal.post_ops import PLAIN, Number
from clnn.target import Target
from clnn.types import Array

# Products that take as long as transforming an element there, or back, and as reading a weight from far away.
TRANSFORMS, FAR = 8, 16
MOST_BYTES = 1 << 26  # of transformed tiles, and of weights


def is_faster(problem: ConvProblem) -> bool:
    """Whether a convolution is computed so: where it fits, and takes fewer operations than its sums."""
    vector = problem.target.vector
    if not fits(problem, 1) or problem.ic % vector or problem.oc % vector:
        return False
    if problem.src.pitches[1] != 1:
        return False
    tiles = tile_grid(problem, SIDE)
    held = tiles.places * max(tiles.tiles * (problem.ic + problem.oc), problem.ic * problem.oc)
    pairs, target = problem.ic * problem.oc, problem.target
    pixels = _filled(problem.batch * problem.height * problem.width, target)
    sums = (pixels + FAR) * problem.taps * pairs
    products = (_filled(tiles.tiles, target) + FAR) * tiles.places * pairs
    moved = tiles.places * tiles.tiles * (problem.ic + problem.oc) * TRANSFORMS
    return 4 * held <= MOST_BYTES and products + moved < sums


def _filled(pixels: int, target: Target) -> int:
    """Return the pixels of as many tiles, or halves of tiles, as hold so many."""
    half = max(1, tile_of(target)[0] // 2)
    return -(-pixels // half) * half


def universal_winograd(
    problem: ConvProblem,
    extra: tuple[tuple[In, ...], tuple[int, ...]],
    codes: tuple[Number, ...],
) -> Variant:
    """Return a convolution for which is_faster holds, with its operands and the codes of its post-ops."""
    tiles = tile_grid(problem, SIDE)
    inputs = Scratch("inputs", 4 * tiles.elements(problem.ic))
    products = Scratch("products", 4 * tiles.elements(problem.oc))
    launches = (
        _input(problem, tiles, inputs),
        _products(problem, tiles, inputs, products),
        _output(problem, tiles, products, extra, codes),
    )
    return Variant("universal_winograd", launches, error=ERRORS[SIDE])


def _input(problem: ConvProblem, tiles: TileGrid, inputs: Scratch) -> Launch:
    sn, _, sy, sx = problem.src.pitches
    numbers = (
        *(problem.ic, tiles.high, tiles.wide, sn, sy, sx),
        *problem.geometry["pads"],
        *problem.reach,
    )
    sizes = (problem.ic // problem.target.vector, tiles.tiles)
    return universal_launch("winograd_input", problem.target, (In(0), inputs), numbers, sizes)


def _products(problem: ConvProblem, tiles: TileGrid, inputs: Scratch, products: Scratch) -> Launch:
    """Return the products of all places of tiles, as a convolution of one pixel whose groups are the places."""
    ic, oc, target, places = problem.ic, problem.oc, problem.target, tiles.places
    wide = tile_channels(target)
    split = tiling(tiles.tiles, oc, places, ic, target)
    numbers = (
        *(tiles.tiles, 1, tiles.tiles, split.band, split.across),
        *(0, 0, places * ic, ic),
        *(0, 1, 0, places * oc),
        *(ic, ic, 1, 1, 0, 0),
        *(split.blocks, split.span, oc, -inf, inf, *[0] * 8),
        *(0, split.blocks * ic * wide, oc, *[0] * 7),
        *PLAIN,
    )
    columns = places * split.blocks * wide
    args: tuple[Arg, ...] = (
        inputs,
        Const(partial(_packed, problem.weights, wide)),
        In(0),
        Const(lambda: np.zeros(columns, np.float32)),
        *(In(0), In(0), products),
    )
    return universal_launch("conv", target, args, numbers, split.sizes)


def _packed(weights: Array, wide: int) -> Array:
    """Return weights transformed, as pack_tiles does it with places as groups."""
    oc, ic = weights.shape[:2]
    taps = pack_columns(weights.reshape(oc, ic, -1).transpose(2, 0, 1), wide)
    g = matrices(SIDE).g
    places: Array = np.kron(g, g).astype(np.float32) @ taps.reshape(len(taps), -1)
    return places.reshape(-1, *taps.shape[1:])


def _output(
    problem: ConvProblem,
    tiles: TileGrid,
    products: Scratch,
    extra: tuple[tuple[In, ...], tuple[int, ...]],
    codes: tuple[Number, ...],
) -> Launch:
    numbers = (
        *(problem.oc, tiles.high, tiles.wide, problem.height, problem.width),
        *(*problem.dst.pitches, *extra[1], *codes),
    )
    bias, made = problem.bias, problem.oc
    shift = Const(lambda: np.zeros(made, np.float32) if bias is None else bias)
    sizes = (problem.oc // problem.target.vector, tiles.tiles)
    args: tuple[Arg, ...] = (products, shift, *extra[0], Out(0))
    return universal_launch("winograd_output", problem.target, args, numbers, sizes)

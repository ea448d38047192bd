"""Weights and tables of convolutions in the order in which the direct kernel reads them."""

from __future__ import annotations

import numpy as np

from clnn.codegen.filters import image
from clnn.layout import TensorLayout
from clnn.ops.conv.tiles import Tile
from clnn.types import Array


def pack_weights(
    weights: Array,
    group: int,
    tile: Tile,
    lot: int = 1,
    channelwise: bool = False,
    halves: int = 1,
) -> Array:
    """Return weights (oc, ic, kernel...) as [group * blocks][kernel...][ic][channels of a block].

    A view of them where nothing has to be added. lot: so many input channels of one output channel
    are neighbours, [ic / lot][channels][lot],
    4 of bytes or 2 of shorts. channelwise: input channels come before the kernel. halves: 2 splits
    each vector of weights in w = low + 256 * high, [channels / vw][2][vw].
    """
    oc, ic = weights.shape[:2]
    per, taps = oc // group, int(np.prod(weights.shape[2:], dtype=np.int64))
    blocks = -(-per // tile.channels)
    full = weights.reshape(group, per, ic, taps)
    if blocks * tile.channels > per:
        full = np.zeros((group, blocks * tile.channels, ic, taps), weights.dtype)
        full[:, :per] = weights.reshape(group, per, ic, taps)
    split = full.reshape(group, blocks, tile.channels, ic, taps)
    if channelwise:
        return split.transpose(0, 1, 3, 4, 2)
    if lot > 1:
        lots = split.reshape(group, blocks, tile.channels, ic // lot, lot, taps)
        packed = lots.transpose(0, 1, 5, 3, 2, 4).astype(np.int8 if lot == 4 else np.int16)
        return _split(packed, tile) if halves > 1 else np.ascontiguousarray(packed)
    return split.transpose(0, 1, 4, 3, 2)


def _split(packed: Array, tile: Tile) -> Array:
    """Return weights [...][channels][lot] as [...][channels / vw][low, high][vw][lot]."""
    vectors = packed.reshape(*packed.shape[:-2], tile.nv, tile.vw, packed.shape[-1])
    return np.stack([vectors & 255, vectors >> 8], axis=-3)


def start_shift(weights: Array) -> Array:
    """Return what sums begin with (oc) where signed inputs are taken as moved up by 128."""
    sums: Array = weights.reshape(weights.shape[0], -1).sum(axis=1, dtype=np.int64)
    return -128 * sums


def pack_table(table: Array, start: Array | None, group: int, tile: Tile) -> Array:
    """Return a table (rows, oc) padded with zeros to whole blocks per group; `start` joins row 0."""
    if start is not None:
        table = table.copy()
        table[0] = (table[0].astype(np.int64) + start).astype(table.dtype)
    rows, per = len(table), table.shape[1] // group
    blocks = -(-per // tile.channels)
    full = np.zeros((rows, group, blocks * tile.channels), table.dtype)
    full[:, :, :per] = table.reshape(rows, group, per)
    return full


def over_output(bias: TensorLayout, shape: tuple[int, ...]) -> TensorLayout:
    """Return the layout of a bias, (oc) or (oc, spatial...), seen as an image of the output."""
    if bias.rank == 1:
        wide = (*bias.shape, *(1,) * (len(shape) - 2))
        pitches = (*bias.pitches, *(0,) * (len(shape) - 2))
        zero = (0,) * len(wide)
        bias = TensorLayout(wide, pitches, zero, zero, bias.offset, bias.size)
    return image(bias.unpadded().broadcast(shape))

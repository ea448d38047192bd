"""Weights and tables of convolutions in the order in which the direct kernel reads them."""

from __future__ import annotations

import numpy as np

from clnn.ops._base import Array
from clnn.ops._tiles import Tile


def pack_weights(
    weights: Array, group: int, tile: Tile, lot: int = 1, channelwise: bool = False
) -> Array:
    """Return weights (oc, ic, kernel...) as [group * blocks][kernel...][ic][channels of a block].

    lot: so many input channels of one output channel are neighbours, [ic / lot][channels][lot],
    4 of bytes or 2 of shorts. channelwise: input channels come before the kernel.
    """
    oc, ic = weights.shape[:2]
    per, taps = oc // group, int(np.prod(weights.shape[2:], dtype=np.int64))
    blocks = -(-per // tile.channels)
    full = np.zeros((group, blocks * tile.channels, ic, taps), weights.dtype)
    full[:, :per] = weights.reshape(group, per, ic, taps)
    split = full.reshape(group, blocks, tile.channels, ic, taps)
    if channelwise:
        return np.ascontiguousarray(split.transpose(0, 1, 3, 4, 2))
    if lot > 1:
        lots = split.reshape(group, blocks, tile.channels, ic // lot, lot, taps)
        packed = np.ascontiguousarray(lots.transpose(0, 1, 5, 3, 2, 4))
        return packed.astype(np.int8 if lot == 4 else np.int16)
    return np.ascontiguousarray(split.transpose(0, 1, 4, 3, 2))


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

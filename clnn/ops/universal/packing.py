"""Weights as convolutions and products of the universal set read them."""

from __future__ import annotations

import numpy as np

from clnn.types import Array


def pack_tiles(weights: Array, group: int, wide: int, order: tuple[int, int, int]) -> Array:
    """Return weights (oc, ic, kernel...) as [group][block][term][wide]; terms in the order of axes."""
    oc, ic = weights.shape[:2]
    kernel = (1, *weights.shape[2:])[-2:]
    moved = weights.reshape(oc, ic, *kernel).transpose(0, *(1 + axis for axis in order))
    return pack_columns(moved.reshape(group, oc // group, -1), wide)


def pack_columns(rows: Array, wide: int) -> Array:
    """Return (group, channels, terms) as [group][block][term][wide], zeros behind the last channel."""
    group, channels, terms = rows.shape
    blocks = -(-channels // wide)
    full = np.zeros((group, blocks * wide, terms), np.float32)
    full[:, :channels] = rows
    return np.ascontiguousarray(full.reshape(group, blocks, wide, terms).transpose(0, 1, 3, 2))


def pack_bias(bias: Array | None, made: int, group: int, wide: int) -> Array:
    """Return a bias of `made` channels as [group][block][wide], zeros where there is none."""
    channels = made // group
    full = np.zeros((group, -(-channels // wide) * wide), np.float32)
    if bias is not None:
        full[:, :channels] = bias.reshape(group, channels)
    return full

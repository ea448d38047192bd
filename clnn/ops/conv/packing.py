"""Weights and tables of convolutions in the order in which the direct kernel reads them."""

from __future__ import annotations

import numpy as np

from clnn.codegen.filters import image
from clnn.layout import TensorLayout
from clnn.types import Array


def by_output(weights: Array, group: int) -> Array:
    """Return weights (ic, oc / group, kernel...) as (oc, ic / group, kernel...)."""
    split = weights.reshape(group, weights.shape[0] // group, *weights.shape[1:])
    return np.moveaxis(split, 2, 1).reshape(-1, split.shape[1], *weights.shape[2:])


def pack_filters(weights: Array, width: int = 0) -> Array:
    """Return weights (c, ic, kernel...) as [kernel...][ic][c]; with a width, as [c / width][kernel...][ic][width].

    Where the width does not divide c, the last block begins earlier and has channels of the one before it.
    """
    packed = weights.reshape(*weights.shape[:2], -1).transpose(2, 1, 0)
    if width:
        channels = len(weights)
        starts = [min(c, channels - width) for c in range(0, channels, width)]
        packed = np.stack([packed[..., c : c + width] for c in starts])
    return np.ascontiguousarray(packed)


def pack_weights(
    weights: Array,
    group: int,
    width: int,
    pack_factor: int = 1,
    channelwise: bool = False,
    limb_width: int = 0,
    split_as: str = "limbs",
) -> Array:
    """Return weights (oc, ic, kernel...) as [group][blocks][kernel][ic][width].

    A view of them where nothing has to be added: blocks are filled with zeros. pack_factor: so many
    input channels of one output channel are neighbours, [ic / factor][width][factor]: 4 bytes, 2
    shorts, or 2 floats. channelwise: input channels come before the kernel. limb_width: each vector of so many
    channels is split in w = low + 256 * high, [width / limb_width][2][limb_width]. split_as: "limbs", or
    "halves", w = low + high, bytes of weights of 9 bits; "pairs": in shorts at even and at odd places.
    """
    oc, ic = weights.shape[:2]
    per, taps = oc // group, int(np.prod(weights.shape[2:], dtype=np.int64))
    blocks = -(-per // width)
    full = weights.reshape(group, per, ic, taps)
    if blocks * width > per:
        full = np.zeros((group, blocks * width, ic, taps), weights.dtype)
        full[:, :per] = weights.reshape(group, per, ic, taps)
    split = full.reshape(group, blocks, width, ic, taps)
    if channelwise:
        return split.transpose(0, 1, 3, 4, 2)
    if pack_factor == 1:
        return split.transpose(0, 1, 4, 3, 2)
    parts = split.reshape(group, blocks, width, ic // pack_factor, pack_factor, taps)
    packed = parts.transpose(0, 1, 5, 3, 2, 4)
    if weights.dtype.kind == "f":
        return packed
    packed = packed.astype(np.int8 if pack_factor == 4 and split_as == "limbs" else np.int16)
    if not limb_width:
        return np.ascontiguousarray(packed)
    vectors: Array = packed.reshape(*packed.shape[:-2], -1, limb_width, pack_factor)
    if split_as == "pairs":
        pairs = np.stack([vectors[..., 0::2], vectors[..., 1::2]], axis=-3)
        return np.ascontiguousarray(pairs).view(np.int8)
    if split_as == "halves":
        return np.stack([vectors >> 1, vectors - (vectors >> 1)], axis=-3).astype(np.int8)
    return np.stack([vectors & 255, vectors >> 8], axis=-3)


def moved_start(table: Array, weights: Array) -> Array:
    """Return a table whose sums begin so that signed inputs may be taken as moved up by 128."""
    shift = -128 * weights.reshape(weights.shape[0], -1).sum(axis=1, dtype=np.int64)
    moved = table.copy()
    moved[0] = (table[0].astype(np.int64) + shift).astype(table.dtype)
    return moved


def pack_table(table: Array, group: int, width: int) -> Array:
    """Return constants (..., oc), padded with zeros to whole blocks of `width` in each group."""
    lead, per = table.shape[:-1], table.shape[-1] // group
    full = np.zeros((*lead, group, -(-per // width) * width), table.dtype)
    full[..., :per] = table.reshape(*lead, group, per)
    return full


def over_output(bias: TensorLayout, shape: tuple[int, ...]) -> TensorLayout:
    """Return the layout of a bias, (oc) or (oc, spatial...), seen as an image of the output."""
    if bias.rank == 1:
        wide = (*bias.shape, *(1,) * (len(shape) - 2))
        pitches = (*bias.pitches, *(0,) * (len(shape) - 2))
        zero = (0,) * len(wide)
        bias = TensorLayout(wide, pitches, zero, zero, bias.offset, bias.size)
    return image(bias.unpadded().broadcast(shape))

"""Phases of transposed convolutions: tiles of their outputs, and how weights lie for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clnn.ops.shared.matrices import REGISTERS
from clnn.target import Target
from clnn.types import Array


@dataclass(frozen=True)
class PhaseTile:
    """ty x tx pixels of a phase x nv vectors of vw lanes."""

    ty: int
    tx: int
    nv: int
    vw: int


def phase_tile(
    height: int, width: int, vectors: int, counts: Sequence[int], vw: int, target: Target
) -> PhaseTile:
    """Return the tile for phases of height x width pixels and `vectors` vectors of `vw` lanes.

    counts: the numbers of vectors that a tile may have.
    """
    registers = REGISTERS.get(target.vector, 16)
    best: tuple[float, PhaseTile] | None = None
    for nv in counts:
        most = max((registers - 1) // nv - 1, 1)  # nv vectors of weights and one pixel besides
        for ty in range(1, min(height, most) + 1):
            for tx in range(1, min(width, most // ty) + 1):
                used = height / (-(-height // ty) * ty) * width / (-(-width // tx) * tx)
                used *= vectors / (-(-vectors // nv) * nv)
                work = ty * tx * nv
                slots = max(work, ty * tx + nv + 1) + 3  # multiply-adds, loads, and the loop
                score = used * work / slots
                if best is None or score > best[0]:
                    best = (score, PhaseTile(ty, tx, nv, vw))
    assert best is not None
    return best[1]


def by_output(weights: Array, group: int) -> Array:
    """Return weights (ic, oc / group, kernel...) as (oc, ic / group, kernel...)."""
    split = weights.reshape(group, weights.shape[0] // group, *weights.shape[1:])
    return np.ascontiguousarray(np.moveaxis(split, 2, 1)).reshape(
        -1, split.shape[1], *weights.shape[2:]
    )


def pack_filters(weights: Array, group: int, width: int) -> Array:
    """Return weights (c, 1, kernel...) as [kernel...][c]."""
    return np.ascontiguousarray(weights.reshape(len(weights), -1).T, np.float32)


def pack_rows(weights: Array, group: int, width: int) -> Array:
    """Return weights (ic, oc, kernel...) as [group][kernel...][oc][ic]."""
    split = weights.reshape(group, len(weights) // group, weights.shape[1], -1)
    return np.ascontiguousarray(split.transpose(0, 3, 2, 1), np.float32)


def pack_weights(weights: Array, group: int, width: int) -> Array:
    """Return weights (ic, oc, kernel...) as [group * blocks][kernel...][ic][width]."""
    ic, per = weights.shape[0] // group, weights.shape[1]
    taps = int(np.prod(weights.shape[2:], dtype=np.int64))
    blocks = -(-per // width)
    full = np.zeros((group, ic, blocks * width, taps), weights.dtype)
    full[:, :, :per] = weights.reshape(group, ic, per, taps)
    split = full.reshape(group, ic, blocks, width, taps)
    return np.ascontiguousarray(split.transpose(0, 2, 4, 1, 3))


PACK = {"spread": pack_weights, "depthwise": pack_filters, "dot": pack_rows}


def pack_table(table: Array, group: int, width: int) -> Array:
    """Return constants (rows, oc) padded with zeros to whole blocks per group."""
    rows, per = len(table), table.shape[1] // group
    full = np.zeros((rows, group, -(-per // width) * width), table.dtype)
    full[:, :, :per] = table.reshape(rows, group, per)
    return full

"""Tiles of products on tensor cores: which are worth a measurement, and what they are estimated to cost.

Costs are cycles of a compute unit that adds two vectors of Target.vector products in each, as those of
clnn.ops.shared.workgroup_tiles, so that both can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from clnn.ops.problem import Operand
from clnn.ops.shared.tensor_cores import BYTES, MmaTile
from clnn.ops.shared.workgroup_tiles import (
    LOCAL,
    START,
    GemmShape,
    few_of_each,
)
from clnn.target import Target

RATES = {
    "f16": 8,
    "bf16": 8,
    "tf32": 4,
    "s8": 16,
    "u8": 16,
}  # products in the time of one of float32
PIECE = 24  # slots that 16 bytes from global to local memory cost
HIDDEN = 0.5  # of them, where copies run beside products
STORE = 2  # slots of a result
AHEAD = 80  # slots of a work-item to say which pieces of the next chunk it copies, and to wait (found on an H100)
OVERHEAD = 90  # registers of a work-item besides its sums
GROUPS = 2  # of the largest local memory that a compute unit holds
MAX_TILES, MAX_TILES_PER_SHAPE = 12, 3  # that are worth a measurement
MIN_TERMS = 8  # of sums that are worth a product on tensor cores
ROW_BYTES = (64, 128)  # of a chunk of k: one or two sets of banks
STAGES = (2, 3, 4)  # tiles of operands in local memory: with one, nothing is copied ahead
SLICES = (1, 2, 4)  # parts of a chunk for warps of their own
MOST_SLICED = 256  # work-items of a tile with several
# Cycles of a chunk that no other work of a group hides: to begin, for each step of 32 bytes of k that a warp
# multiplies, and until what was asked for is there, which the stages ahead share (found on an H100).
CHUNK, STEP, ARRIVAL = 100, 45, 700
OPERAND_ERROR = {"tf32": 2.0**-11}  # relative, of an operand that is rounded to the kind
SUM_ERROR, SUM_DEPTH = 2.0**-23, 8  # relative, of tensor cores' sums of so many products
# (bm, bn, wm, wn): results of a work-group, and of a warp.
SHAPES = (
    (128, 256, 64, 64),
    (256, 128, 64, 64),
    (128, 128, 64, 64),
    (128, 128, 64, 32),
    (128, 64, 64, 32),
    (64, 128, 32, 64),
    (64, 64, 32, 32),
    (128, 32, 32, 32),
    (32, 128, 32, 32),
    (64, 32, 32, 16),
    (32, 64, 16, 32),
    (32, 32, 16, 16),
    (128, 16, 32, 16),
    (16, 128, 16, 32),
    (64, 16, 16, 16),
    (16, 64, 16, 16),
    (16, 32, 16, 16),
)


def kind_of(target: Target, operands: tuple[Operand, Operand, Operand]) -> str:
    """Return the kind of product that tensor cores have for a, b and dst, "" for none."""
    memory = {o.memory for o in operands}
    return target.tensor_kind(memory.pop()) if len(memory) == 1 else ""


def rounding(kind: str, terms: int) -> float:
    """Return the error of sums of `terms` products, relative to the largest result."""
    return 4 * OPERAND_ERROR.get(kind, 0.0) + SUM_ERROR * -(-terms // SUM_DEPTH)


def mma_tiles(kind: str, sums: GemmShape, target: Target) -> list[tuple[float, MmaTile]]:
    """Return (estimated cycles, tile) of the tiles that are worth a measurement, best first."""
    if sums.terms < MIN_TERMS:
        return []
    costs = ((_cycles(kind, sums, tile, target), tile) for tile in _fitting(kind, sums, target))
    ranked = sorted(costs, key=lambda pair: pair[0])
    return few_of_each(ranked, lambda pair: pair[1].shape, MAX_TILES_PER_SHAPE, MAX_TILES)


def _fitting(kind: str, sums: GemmShape, target: Target) -> Iterator[MmaTile]:
    """Yield the tiles that a device has the work-items and the local memory for.

    Left out are those of which more than half would be rows, columns or terms that are not there.
    """
    for bm, bn, wm, wn in SHAPES:
        if bm >= 2 * max(sums.rows, 16) or bn >= 2 * max(sums.columns, 16):
            continue
        for nbytes, stages, slices in product(ROW_BYTES, STAGES, SLICES):
            bk = nbytes * slices // BYTES[kind]
            if bk >= 2 * max(sums.terms, min(ROW_BYTES) // BYTES[kind]):
                continue
            tile = MmaTile(bm, bn, bk, wm, wn, stages, slices=slices)
            room = tile.local_bytes(kind, target.tensor) <= target.local_bytes
            most = target.max_work_group if slices == 1 else MOST_SLICED
            if room and tile.threads <= min(most, target.max_work_group):
                yield tile


def _cycles(kind: str, sums: GemmShape, tile: MmaTile, target: Target) -> float:
    """Return the estimated cycles of a product."""
    groups = -(-sums.rows // tile.bm) * -(-sums.columns // tile.bn) * sums.count
    chunks = -(-sums.terms // tile.bk)
    row = tile.bk * BYTES[kind] / 16  # pieces in a row of a chunk
    warps = tile.threads // 32
    slots = tile.bm * tile.bn * tile.bk / RATES[kind]
    slots += LOCAL * warps * (tile.wm + tile.wn) * row / tile.slices
    slots += PIECE * HIDDEN * (tile.bm + tile.bn) * row
    registers = (tile.wm * tile.wn // 32 + OVERHEAD) * tile.threads
    resident = min(
        GROUPS * target.local_bytes // tile.local_bytes(kind, target.tensor),
        target.unit_registers // registers,
        target.resident // tile.threads,
    )
    rounds = -(-groups // target.compute_units)
    active = max(1, min(resident, rounds))
    ahead = AHEAD * tile.threads
    each = 2 * target.vector / active  # slots in a cycle that one of the groups at work gets
    steps = tile.bk * BYTES[kind] / 32 / tile.slices
    alone = (
        max(CHUNK + STEP * steps, ARRIVAL / (tile.stages - 1)) * target.lanes / (2 * target.vector)
    )
    ends = START * tile.threads + STORE * tile.bm * tile.bn + LOCAL * tile.sums_bytes / 4
    return rounds / active * (chunks * max((slots + ahead) / each, alone) + ends / each)

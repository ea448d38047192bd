"""Tiles of products on tensor cores: which are worth a measurement, and what they are estimated to cost.

Costs are cycles of a compute unit that adds two vectors of Target.vector products in each, as those of
clnn.ops.shared.workgroup_tiles, so that both can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator

from clnn.ops.problem import Operand
from clnn.ops.shared.tensor_cores import BYTES, MmaTile
from clnn.ops.shared.workgroup_tiles import (
    BARRIER,
    HIDING,
    LOCAL,
    REGISTERS,
    RESIDENT,
    START,
    GemmShape,
)
from clnn.target import Target

RATES = {"f16": 8, "bf16": 8, "tf32": 4, "s8": 16}  # products in the time of one of float32
PIECE = 24  # slots that 16 bytes from global to local memory cost
HIDDEN = 0.5  # of them, where copies run beside products
STORE = 2  # slots of a result
OVERHEAD = 90  # registers of a work-item besides its sums
GROUPS = 2  # of the largest local memory that a compute unit holds
MOST, ALIKE = 12, 3  # tiles that are worth a measurement, and of these, tiles of one shape
LEAST_TERMS = 8  # of sums that are worth a product of matrices
UNIT = {"tf32": 2.0**-11}  # by which an operand is rounded
STEP = 2.0**-23  # by which tensor cores may round each of their sums, of `DEPTH` products
DEPTH = 8
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
    return 4 * UNIT.get(kind, 0.0) + STEP * -(-terms // DEPTH)


def mma_tiles(kind: str, sums: GemmShape, target: Target) -> list[tuple[float, MmaTile]]:
    """Return (estimated cycles, tile) of the tiles that are worth a measurement, best first."""
    if sums.terms < LEAST_TERMS:
        return []
    found = sorted(
        ((_cycles(kind, sums, t, target), t) for t in _fitting(kind, sums, target)),
        key=lambda pair: pair[0],
    )
    chosen: list[tuple[float, MmaTile]] = []
    met: dict[tuple[int, ...], int] = {}
    for cycles, tile in found:
        shape = (tile.bm, tile.bn, tile.wm, tile.wn)
        met[shape] = met.get(shape, 0) + 1
        if met[shape] <= ALIKE:
            chosen.append((cycles, tile))
    return chosen[:MOST]


def _fitting(kind: str, sums: GemmShape, target: Target) -> Iterator[MmaTile]:
    """Yield the tiles that a device has the work-items and the local memory for."""
    for bm, bn, wm, wn in SHAPES:
        if bm >= 2 * max(sums.rows, 16) or bn >= 2 * max(sums.columns, 16):
            continue
        for nbytes in (64, 128):
            bk = nbytes // BYTES[kind]
            if bk >= 2 * max(sums.terms, 64 // BYTES[kind]):
                continue
            for stages in (2, 3, 4):
                tile = MmaTile(bm, bn, bk, wm, wn, stages)
                room = tile.local_bytes(kind, target.tensor) <= target.local_bytes
                if room and tile.threads <= target.max_work_group:
                    yield tile


def _cycles(kind: str, sums: GemmShape, tile: MmaTile, target: Target) -> float:
    """Return the estimated cycles of a product."""
    groups = -(-sums.rows // tile.bm) * -(-sums.columns // tile.bn) * sums.count
    slices = -(-sums.terms // tile.bk)
    row = tile.bk * BYTES[kind] / 16  # pieces in a row of a slice
    warps = tile.threads // 32
    slots = tile.bm * tile.bn * tile.bk / RATES[kind]
    slots += LOCAL * warps * (tile.wm + tile.wn) * row
    slots += PIECE * HIDDEN * (tile.bm + tile.bn) * row
    registers = (tile.wm * tile.wn // 32 + OVERHEAD) * tile.threads
    resident = min(
        GROUPS * target.local_bytes // tile.local_bytes(kind, target.tensor),
        REGISTERS // registers,
        RESIDENT // tile.threads,
    )
    rounds = -(-groups // target.compute_units)
    active = max(1, min(resident, rounds))
    waits = BARRIER * tile.threads / active
    group = slices * (slots + waits) + START * tile.threads + STORE * tile.bm * tile.bn
    latency_hiding = min(1.0, active * tile.threads * (tile.stages - 1) / HIDING)
    return rounds * group / (2 * target.vector) / latency_hiding

"""Tiles of registers for products of matrices (x86's AMX), as kernels are planned for them.

A tile has 16 rows of 64 bytes. One instruction adds to 16 x 16 sums the products of 16 rows of 64 bytes with
as many bytes of 16 columns: 64 products of bytes for each sum, or 32 of bfloat16 (_common/amx.cl.mako).
"""

from __future__ import annotations

from clnn.target import Target
from clnn.types import I8, STORED_BF16, U8, DType

ROWS, BYTES, COLUMNS = 16, 64, 16  # of a tile
WORD = 4  # bytes of a row that meet one column at a time
ADD_CYCLES, ADD_LATENCY = (
    16,
    52,
)  # of an instruction that adds: until the next one begins, and one to the same sums
READ_CYCLES = 14  # of a tile that is read beside, from the nearest caches
SHAPE_CYCLES = 220  # of shaping the tiles
FINISH_CYCLES = 9  # of a vector of results
TILE_CYCLES = 40  # of a tile, besides
# Left by right tiles of sums that leave registers for operands.
SUMS = ((2, 2), (4, 1), (1, 4), (3, 1), (1, 3), (2, 1), (1, 2), (1, 1))
LEAST_RUN = 2500  # cycles that are worth shaping the tiles
ITEMS = 8  # work-items that a compute unit should have


def how(target: Target) -> str:
    """Return the `how` of _common/amx.cl.mako on a device, "" where it has no such tiles."""
    if not target.is_cpu or target.vector != COLUMNS:
        return ""
    return next((name for name in ("x86", "plain") if f"{name}_amx" in target.features), "")


def products(left: DType, right: DType) -> str:
    """Return the kind of products of values as they are stored, "" where tiles have none."""
    if left == right == STORED_BF16:
        return "bf16"
    return {I8: "s8", U8: "u8"}.get(left, "") if right == I8 else ""


def depth(nbytes: int) -> int:
    """Return how many of a row's bytes a tile takes at a time: equal parts of words of 4; 0: there are none."""
    words = nbytes // WORD
    if not words or nbytes % WORD:
        return 0
    return nbytes // next(n for n in range(-(-nbytes // BYTES), words + 1) if words % n == 0)


def step_cycles(ma: int, nv: float) -> float:
    """Return the cycles in which ma by nv tiles of sums are added to once, and their operands are read."""
    return max(ADD_CYCLES * ma * nv, ADD_LATENCY, READ_CYCLES * (ma + nv))


def run_of(tiles: int, cycles: float, target: Target) -> int:
    """Return how many tiles of so many cycles a work-item computes, one after the other."""
    wanted = -(-LEAST_RUN // max(int(cycles), 1))
    return max(1, min(wanted, tiles // (ITEMS * target.compute_units)))

"""Tiles of registers for products of matrices (x86's AMX), as kernels are planned for them.

A tile has 16 rows of 64 bytes. One instruction adds to 16 x 16 sums the products of 16 rows of 64 bytes with
as many bytes of 16 columns: 64 products of bytes for each sum, or 32 of bfloat16 (_common/amx.cl.mako).
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Generic, TypeVar

from clnn.records import dataclass
from clnn.target import Target
from clnn.types import I8, STORED_BF16, U8, DType

ROWS, BYTES, COLUMNS = 16, 64, 16  # of a tile
WORD = 4  # bytes of a row that meet one column at a time
# Of an instruction that adds: until the next one begins, and until one to the same sums does.
ADD_CYCLES, ADD_LATENCY = 16, 52
READ_CYCLES = 14  # of a tile that is read beside, from the nearest caches
SHAPE_CYCLES = 220  # of shaping the tiles
FINISH_CYCLES = 9  # of a vector of results
TILE_CYCLES = 40  # of a tile, besides
# Left by right tiles of sums that leave registers for operands.
SUMS = ((2, 2), (4, 1), (1, 4), (3, 1), (1, 3), (2, 1), (1, 2), (1, 1))
LEAST_RUN = 2500  # cycles that are worth shaping the tiles
ITEMS = 8  # work-items that a compute unit should have
CANDIDATES = 6  # kernels that are worth a measurement
SWAPPED_ORDER_COST = 1.04  # cost of the order that the size of the weights speaks against

T = TypeVar("T")


@dataclass(frozen=True)
class Choice(Generic[T]):
    """A tile of `ma` left tiles of registers, and its estimated cycles; each: tiles of a work-item.

    channels_fastest: neighbouring tiles have neighbouring columns, not rows.
    """

    cost: float
    tile: T
    ma: int
    each: int
    channels_fastest: bool


@dataclass(frozen=True)
class Work:
    """Tiles of mr rows by nv right tiles of registers, `rows` by `blocks` of them; ma: left ones of a tile.

    steps: how often operands of a tile are read. vectors: columns of all blocks, in 16. more: cycles of a tile besides.
    """

    ma: int
    nv: int
    mr: int
    rows: int
    blocks: int
    vectors: int
    steps: int
    more: float = 0.0


def ranked(
    found: Iterable[tuple[T, Work]], times: float, fixed: float, suited: bool, target: Target
) -> list[Choice[T]]:
    """Return the tiles that are worth a measurement, in both orders, by rising cost.

    times: how often all of the work is done. fixed: cycles besides. suited: whether the size of the weights speaks for
    neighbouring columns in neighbouring tiles.
    """
    choices = []
    for tile, work in found:
        cycles = work.more + TILE_CYCLES + FINISH_CYCLES * work.mr * work.nv
        cycles += work.steps * step_cycles(work.ma, work.vectors / work.blocks)
        tiles = work.rows * work.blocks
        each = run_of(tiles, cycles, target)
        cost = tiles * (cycles + SHAPE_CYCLES / each) * times / target.compute_units + fixed
        for fastest in (True, False):
            factor = 1.0 if fastest == suited else SWAPPED_ORDER_COST
            choices.append(Choice(cost * factor, tile, work.ma, each, fastest))
    return sorted(choices, key=attrgetter("cost"))[:CANDIDATES]


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

"""Tiles of work-groups: products whose operands pass through local memory, for GPUs.

A group computes bm x bn sums, each of its work-items tm x tn of them, from chunks of bk terms:

        chunk of b           bk x bn, in local memory
        chunk of a | sums    bm x bk | bm x bn, in registers

Where a product has too few tiles for the device, split-K divides the chunks between the groups of
several slices, and a second launch adds the partial sums.

Costs are cycles of a compute unit that adds two vectors of Target.vector products in each, which
is what register tiles are measured in too. A slot is the time of one multiply-add of a work-item.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any, TypeVar

from clnn.ops.launch import Arg, Launch, Scratch, grid
from clnn.records import dataclass
from clnn.target import UNASKED, RegisterMode, Target

T = TypeVar("T")

# How many tiles of a problem are measured. Variants of one shape (its chunks, stages, padding and
# slices) are estimated much alike: without a limit they would take the places of other shapes.
MAX_TILES, MAX_TILES_PER_SHAPE = 22, 4

UNSHARED = 3.0  # cost of register tiles on GPUs whose work-items fetch all operands themselves
OVERHEAD = 80  # registers of a work-item besides its sums and what it loads
HIDING = 256  # work-items of a compute unit that hide its latencies
LOCAL = 4  # slots to read a vector from local memory
# Slots to bring an element from global to local memory: what it takes to move it, and its share of what memory
# and caches deliver, which goes by the slots that a float from memory takes: ELEMENT where they were not measured.
MOVE, DELIVER = 3, 3
ELEMENT, LEAST_ELEMENT, MOST_ELEMENT = 30, 8, 240
BARRIER = 24  # slots of a barrier, where no other group runs meanwhile
START = 200  # slots before the first term
STORE = 4  # slots to store a result
# Registers of a work-item, of how many it has, that a tile's sums and operands may fill before one of Intel's
# compilers moves some to memory (docs/benchmarks/offline.md; of some devices it is known that more fit); those of
# two stages, and those of operands that are computed, need more for addresses.
ROOM = {64: 34, 128: 88, 256: 120}
TWO_STAGES, COMPUTED = 16, 24
# Best tiles of which other ways to have registers are worth a measurement, and their cost.
OTHER_MODES, OTHER_MODE_COST = 2, 1.02
BANKS = 0.5  # slots a term of a work-item, where rows of local memory begin in the same bank
LAUNCH = 60_000 / 128  # cycles of a second launch for each lane of a unit: some 3 us

CHUNKS = (8, 16, 32)  # terms
# (stages, pad). Without padding columns share banks: that is for what else does not fit, so it is
# tried with one stage alone.
BUFFERS = ((1, 4), (2, 4), (1, 0))
# Elements of an operand that a work-item holds in registers while it waits to store them in local
# memory; more of them leave no registers for the sums.
MAX_LOADED = 16
# Terms that are worth a slice: shorter ones take longer to begin and to be added than to compute.
MIN_SLICE_TERMS = 64
MAX_SLICES = 64  # which a work-item of the second launch reads one after the other
GROUPS_PER_UNIT = 2  # that slices are to make: one computes while the other waits
# (bm, bn, tm, tn): results of a group, and of a work-item.
SHAPES = (
    (128, 128, 8, 8),
    (128, 64, 8, 8),
    (64, 128, 8, 8),
    (256, 64, 8, 8),
    (64, 64, 8, 8),
    (64, 64, 8, 4),
    (64, 64, 4, 4),
    (128, 32, 8, 4),
    (32, 128, 4, 8),
    (64, 32, 4, 4),
    (32, 64, 4, 4),
    (32, 32, 4, 4),
    (32, 32, 2, 4),
    (16, 128, 4, 4),
    (128, 16, 4, 4),
    (16, 64, 4, 4),
    (16, 64, 2, 4),
    (16, 32, 2, 4),
    (8, 128, 2, 4),
    (8, 64, 2, 4),
    (16, 16, 2, 2),
)


def widest(numbers: Iterable[int]) -> int:
    """Return the widest of 4, 2, 1 that divides all `numbers`."""
    numbers = list(numbers)
    return next(w for w in (4, 2, 1) if not any(x % w for x in numbers))


@dataclass(frozen=True)
class GroupTile:
    """bm x bn results of a work-group, tm x tn of each work-item, from chunks of bk terms.

    stages: chunks that local memory holds. pad: elements behind each row of local memory, so that
    columns of it lie in different banks. mode: what the kernel asks of registers.
    """

    bm: int
    bn: int
    tm: int
    tn: int
    bk: int
    stages: int = 1
    pad: int = 4
    mode: RegisterMode = UNASKED

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Results of a group and of a work-item."""
        return self.bm, self.bn, self.tm, self.tn

    @property
    def down(self) -> int:
        """Work-items along the rows."""
        return self.bm // self.tm

    @property
    def across(self) -> int:
        """Work-items along the columns."""
        return self.bn // self.tn

    @property
    def threads(self) -> int:
        """Work-items of a group."""
        return self.down * self.across

    @property
    def vr(self) -> int:
        """Neighbouring rows of a work-item."""
        return widest([self.tm])

    @property
    def vc(self) -> int:
        """Neighbouring columns of a work-item."""
        return widest([self.tn])

    @property
    def nv(self) -> int:
        """Vectors of columns of a work-item."""
        return self.tn // self.vc

    @property
    def local_bytes(self) -> int:
        """Bytes of local memory that a group takes."""
        return 4 * self.stages * self.bk * (self.bm + self.bn + 2 * self.pad)

    @property
    def label(self) -> str:
        """What a kernel's name says of this tile."""
        pad = f"_l{self.pad}" if self.pad else ""
        return f"t{self.bm}x{self.bn}x{self.bk}_i{self.tm}x{self.tn}_s{self.stages}{pad}{self.mode.label}"

    @property
    def loaded(self) -> int:
        """Elements of a chunk that a work-item holds until it stores them in local memory."""
        return (self.bm + self.bn) * self.bk // self.threads


@dataclass(frozen=True)
class Fetch:
    """How a group reads a chunk of one operand: `rows` x `terms` elements, `vw` neighbours at once.

    along: "terms" or "rows", whichever the neighbours lie along.
    """

    rows: int
    terms: int
    pad: int
    threads: int
    along: str
    vw: int

    @property
    def pitch(self) -> int:
        """Distance of terms in local memory."""
        return self.rows + self.pad

    @property
    def slots(self) -> int:
        """Vectors side by side along the axis that they lie along."""
        return (self.terms if self.along == "terms" else self.rows) // self.vw

    @property
    def vectors(self) -> int:
        """Vectors of a chunk."""
        return self.rows * self.terms // self.vw

    @property
    def loads(self) -> int:
        """Vectors of a work-item; the last ones may lack some."""
        return -(-self.vectors // self.threads)

    @property
    def size(self) -> int:
        """Elements of a chunk in local memory."""
        return self.terms * self.pitch


def left(tile: GroupTile, along: str, vw: int) -> Fetch:
    """Return how the rows' operand is read."""
    return Fetch(tile.bm, tile.bk, tile.pad, tile.threads, along, vw)


def right(tile: GroupTile, along: str, vw: int) -> Fetch:
    """Return how the columns' operand is read."""
    return Fetch(tile.bn, tile.bk, tile.pad, tile.threads, along, vw)


@dataclass(frozen=True)
class GemmShape:
    """A product's extents: rows x columns sums of `terms` products, `count` times.

    computed: slots that it takes a work-item to compute an element of the rows' operand, which is
    done for every block of columns again; 0 where it is read. split: whether split-K may be used.
    """

    rows: int
    columns: int
    terms: int
    count: int = 1
    computed: int = 0
    split: bool = True


@dataclass(frozen=True)
class SplitK:
    """A tile, the slices that the terms of the sums are divided into, and the estimated cycles."""

    cost: float
    tile: GroupTile
    slices: int = 1

    @property
    def label(self) -> str:
        """What a kernel's name says."""
        return self.tile.label + (f"_p{self.slices}" if self.slices > 1 else "")


def fits(tile: GroupTile, target: Target) -> bool:
    """Whether a device has the work-items and the local memory."""
    return tile.threads <= target.max_work_group and tile.local_bytes <= target.local_bytes


def holds(mode: RegisterMode, tile: GroupTile, computed: bool = False) -> bool:
    """Whether registers suffice for a tile; computed: of an operand that the kernel computes."""
    values = tile.tm * tile.tn + tile.tm + tile.tn + tile.loaded
    values += TWO_STAGES * (tile.stages == 2) + COMPUTED * computed
    return has_room(mode, values)


def has_room(mode: RegisterMode, values: int) -> bool:
    """Whether a work-item has registers for so many values, besides addresses."""
    return mode.registers == 0 or values <= (mode.room or ROOM[mode.registers])


def modes_for(tile: GroupTile, target: Target, computed: bool = False) -> list[RegisterMode]:
    """Return what a kernel of a tile may ask of registers on a device, the one to take first."""
    return [mode for mode in target.register_modes if holds(mode, tile, computed)]


def group_tiles(sums: GemmShape, target: Target) -> list[SplitK]:
    """Return the tiles that are worth a measurement, best first."""
    ranked = sorted(_tiles_with_slices(sums, target), key=lambda split: split.cost)
    chosen = few_of_each(ranked, lambda split: split.tile.shape, MAX_TILES_PER_SHAPE, MAX_TILES)
    others = [s for split in chosen[:OTHER_MODES] for s in _other_modes(sums, split, target)]
    return sorted([*chosen, *others], key=lambda split: split.cost)


def _other_modes(sums: GemmShape, split: SplitK, target: Target) -> Iterator[SplitK]:
    """Yield a tile as it is with all else that may be asked of registers."""
    for mode in modes_for(split.tile, target, bool(sums.computed)):
        if mode != split.tile.mode:
            tile = replace(split.tile, mode=mode)
            cost = OTHER_MODE_COST * _cycles(sums, tile, split.slices, target)
            yield SplitK(cost, tile, split.slices)


def few_of_each(
    ranked: Iterable[T], shape: Callable[[T], Hashable], per_shape: int, most: int
) -> list[T]:
    """Return the first `most` items, leaving out those after the first `per_shape` of one shape."""
    met: Counter[Hashable] = Counter()
    chosen = []
    for item in ranked:
        met[shape(item)] += 1
        if met[shape(item)] <= per_shape:
            chosen.append(item)
    return chosen[:most]


def _tiles_with_slices(sums: GemmShape, target: Target) -> Iterator[SplitK]:
    """Yield the tiles that suit a product, with each number of slices that is worth a try."""
    for bm, bn, tm, tn in SHAPES:
        # Three quarters of the tile would compute nothing; of small results at least one remains.
        if bm >= 4 * max(sums.rows, 4) or bn >= 4 * max(sums.columns, 8):
            continue
        for bk, (stages, pad) in product(CHUNKS, BUFFERS):
            tile = GroupTile(bm, bn, tm, tn, bk, stages, pad)
            half_empty = bk >= 2 * max(sums.terms, min(CHUNKS))
            loaded = max(bm, bn) * bk / tile.threads
            if half_empty or loaded > MAX_LOADED or not fits(tile, target):
                continue
            if not (modes := modes_for(tile, target, bool(sums.computed))):
                continue
            tile = replace(tile, mode=modes[0])
            for slices in _slices(sums, tile, target):
                yield SplitK(_cycles(sums, tile, slices, target), tile, slices)


def _groups(sums: GemmShape, tile: GroupTile) -> int:
    return -(-sums.rows // tile.bm) * -(-sums.columns // tile.bn) * sums.count


def _slices(sums: GemmShape, tile: GroupTile, target: Target) -> list[int]:
    """Return numbers of slices worth a try: one, so many that units are busy, and half of these."""
    chunks = -(-sums.terms // tile.bk)
    wanted = -(-GROUPS_PER_UNIT * target.compute_units // _groups(sums, tile)) if sums.split else 1
    most = min(wanted, sums.terms // MIN_SLICE_TERMS, MAX_SLICES)
    return sorted({1, *(even_slices(chunks, n) for n in (most, most // 2) if n > 1)})


def latency_hiding(items: float, target: Target) -> float:
    """Return the share of its rate that a GPU reaches with so many work-items in all."""
    return min(1.0, items / (target.compute_units * HIDING))


def second_launch(target: Target) -> float:
    """Return the cycles that a further launch costs."""
    if target.launch_products:
        return target.launch_products / (2 * target.vector)
    return LAUNCH * target.lanes


def element_slots(target: Target) -> float:
    """Return the slots that a float from memory takes, were all lanes to wait for theirs."""
    return min(max(target.element_products or ELEMENT, LEAST_ELEMENT), MOST_ELEMENT)


def fetch_slots(target: Target) -> float:
    """Return the slots to bring an element from global to local memory."""
    return MOVE + DELIVER * element_slots(target) / ELEMENT


def even_slices(chunks: int, most: int) -> int:
    """Return the number of slices of equal length, none of them empty, nearest below `most`."""
    return -(-chunks // -(-chunks // most))


def _cycles(sums: GemmShape, tile: GroupTile, slices: int, target: Target) -> float:
    """Return the estimated cycles of a product."""
    groups = _groups(sums, tile) * slices
    chunks = -(-sums.terms // tile.bk)
    per_slice = -(-chunks // slices)
    registers = tile.mode.registers or tile.tm * tile.tn + tile.loaded + OVERHEAD
    resident = min(
        target.local_bytes // tile.local_bytes,
        target.resident // tile.threads,
        target.unit_registers // (registers * tile.threads),
    )
    rounds = -(-groups // target.compute_units)
    active = max(1, min(resident, rounds))
    term = tile.tm * tile.tn + LOCAL * (tile.tm / tile.vr + tile.tn / tile.vc)
    term += fetch_slots(target) * (tile.bm + tile.bn) / tile.threads + BANKS * (tile.pad == 0)
    term += sums.computed * tile.bm / tile.threads
    waits = BARRIER * (2 if tile.stages == 1 else 1) / active
    item = per_slice * (tile.bk * term + waits) + START + STORE * tile.tm * tile.tn
    share = min(1.0, active * tile.threads / HIDING)
    cost = rounds * item * tile.threads / (2 * target.vector) / share
    if slices > 1:
        moved = sums.rows * sums.columns * sums.count * (2 * slices + 1)
        cost += second_launch(target) + STORE * moved / (2 * target.vector * target.compute_units)
    return cost


def sum_slices(
    target: Target,
    scratch: Scratch,
    args: Sequence[Arg],
    extents: Sequence[int],
    columns: int,
    params: dict[str, Any],
) -> Launch:
    """Return the launch that adds the partial sums which a product's slices left in `scratch`.

    args: bias, operands and dst. extents: of the loops over rows. params: the template's others.
    """
    vw = widest([columns])
    global_size, local = grid(target, columns // vw, prod(extents))
    params = params | {
        "name": f"workgroup_sum_p{params['k_slices']}_v{vw}",
        "extents": tuple(extents),
        "columns": columns,
        "vw": vw,
        "wg": local,
    }
    return Launch("shared/workgroup_sum.cl.mako", params, (scratch, *args), global_size, local)

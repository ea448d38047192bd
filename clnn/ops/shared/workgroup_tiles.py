"""Tiles of work-groups: products whose operands pass through local memory, for GPUs.

A group computes bm x bn sums, each of its work-items tm x tn of them, from slices of bk terms:

        slice of b           bk x bn, in local memory
        slice of a | sums    bm x bk | bm x bn, in registers

Costs are cycles of a compute unit that adds two vectors of Target.vector products in each, which
is what register tiles are measured in too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from clnn.ops.launch import Arg, Launch, Scratch, grid
from clnn.target import Target

MOST = 22  # tiles of a problem that are worth a measurement
ALIKE = 4  # and of these, tiles of one shape
UNSHARED = 3.0  # cost of register tiles on GPUs whose work-items fetch all operands themselves
LOADED = 16  # elements of an operand that a work-item may hold between slices
REGISTERS, OVERHEAD = 65536, 80  # of a compute unit, and of a work-item besides sums and loads
RESIDENT = 1024  # work-items of a compute unit that can be counted on
HIDING = 256  # work-items of a compute unit that hide its latencies
LOCAL, GLOBAL, BARRIER, START, STORE = 4, 6, 24, 200, 4  # slots: vector, element, barrier...
LAUNCH = 60_000  # cycles that a second launch costs: some 3 us of a unit that does 128 products at a time
LEAST = 64  # terms that are worth a part
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
    """bm x bn results of a work-group, tm x tn of each work-item, from slices of bk terms.

    stages: slices that local memory holds. pad: elements behind each row of local memory, so that
    columns of it lie in different banks.
    """

    bm: int
    bn: int
    tm: int
    tn: int
    bk: int
    stages: int = 1
    pad: int = 4

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
        return f"t{self.bm}x{self.bn}x{self.bk}_i{self.tm}x{self.tn}_s{self.stages}{pad}"


@dataclass(frozen=True)
class Fetch:
    """How a group reads a slice of one operand: `rows` x `terms` elements, `vw` neighbours at once.

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
        """Vectors of a slice."""
        return self.rows * self.terms // self.vw

    @property
    def loads(self) -> int:
        """Vectors of a work-item; the last ones may lack some."""
        return -(-self.vectors // self.threads)

    @property
    def size(self) -> int:
        """Elements of a slice in local memory."""
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
    done for every block of columns again; 0 where it is read. split: whether sums may be in parts.
    """

    rows: int
    columns: int
    terms: int
    count: int = 1
    computed: int = 0
    split: bool = True


@dataclass(frozen=True)
class Split:
    """A tile, the parts that sums are divided into, and what that is estimated to cost."""

    cost: float
    tile: GroupTile
    parts: int = 1

    @property
    def label(self) -> str:
        """What a kernel's name says."""
        return self.tile.label + (f"_p{self.parts}" if self.parts > 1 else "")


def fits(tile: GroupTile, target: Target) -> bool:
    """Whether a device has the work-items and the local memory."""
    return tile.threads <= target.max_work_group and tile.local_bytes <= target.local_bytes


def group_tiles(sums: GemmShape, target: Target) -> list[Split]:
    """Return the tiles that are worth a measurement, best first: at most ALIKE of one shape."""
    found = sorted(_every(sums, target), key=lambda split: split.cost)
    chosen: list[Split] = []
    met: dict[Sequence[int], int] = {}
    for split in found:
        t = split.tile
        shape = (t.bm, t.bn, t.tm, t.tn)
        met[shape] = met.get(shape, 0) + 1
        if met[shape] <= ALIKE:
            chosen.append(split)
    return chosen[:MOST]


def _every(sums: GemmShape, target: Target) -> Iterator[Split]:
    for bm, bn, tm, tn in SHAPES:
        if bm >= 4 * max(sums.rows, 4) or bn >= 4 * max(sums.columns, 8):
            continue
        for bk in (8, 16, 32):
            for stages, pad in ((1, 4), (2, 4), (1, 0)):
                tile = GroupTile(bm, bn, tm, tn, bk, stages, pad)
                if not fits(tile, target) or bk >= 2 * max(sums.terms, 8):
                    continue
                if max(bm, bn) * bk > LOADED * tile.threads:
                    continue
                for parts in _parts(sums, tile, target):
                    yield Split(_cycles(sums, tile, parts, target), tile, parts)


def _groups(sums: GemmShape, tile: GroupTile) -> int:
    return -(-sums.rows // tile.bm) * -(-sums.columns // tile.bn) * sums.count


def _parts(sums: GemmShape, tile: GroupTile, target: Target) -> list[int]:
    """Return numbers of parts worth a try: one, and so many that each compute unit has a group."""
    slices = -(-sums.terms // tile.bk)
    wanted = -(-2 * target.compute_units // _groups(sums, tile)) if sums.split else 1
    most = min(wanted, sums.terms // LEAST, 64)
    return sorted({1, *(whole_parts(slices, p) for p in (most, most // 2) if p > 1)})


def latency_hiding(items: float, target: Target) -> float:
    """Return the share of its rate that a GPU reaches with so many work-items in all."""
    return min(1.0, items / (target.compute_units * HIDING))


def whole_parts(slices: int, parts: int) -> int:
    """Return the number of parts of equal length, none of them empty, nearest below `parts`."""
    return -(-slices // -(-slices // parts))


def _cycles(sums: GemmShape, tile: GroupTile, parts: int, target: Target) -> float:
    """Return the estimated cycles of a product."""
    groups = _groups(sums, tile) * parts
    every = -(-sums.terms // tile.bk)
    slices = -(-every // parts)
    registers = tile.tm * tile.tn + (tile.bm + tile.bn) * tile.bk // tile.threads + OVERHEAD
    resident = min(
        target.local_bytes // tile.local_bytes,
        RESIDENT // tile.threads,
        REGISTERS // (registers * tile.threads),
    )
    rounds = -(-groups // target.compute_units)
    active = max(1, min(resident, rounds))
    term = tile.tm * tile.tn + LOCAL * (tile.tm / tile.vr + tile.tn / tile.vc)
    term += GLOBAL * (tile.bm + tile.bn) / tile.threads + 0.5 * (tile.pad == 0)
    term += sums.computed * tile.bm / tile.threads
    waits = BARRIER * (2 if tile.stages == 1 else 1) / active
    item = slices * (tile.bk * term + waits) + START + STORE * tile.tm * tile.tn
    share = min(1.0, active * tile.threads / HIDING)
    cost = rounds * item * tile.threads / (2 * target.vector) / share
    if parts > 1:
        moved = sums.rows * sums.columns * sums.count * (2 * parts + 1)
        cost += LAUNCH + STORE * moved / (2 * target.vector * target.compute_units)
    return cost


def sum_parts(
    target: Target,
    scratch: Scratch,
    args: Sequence[Arg],
    extents: Sequence[int],
    columns: int,
    params: dict[str, Any],
) -> Launch:
    """Return the launch that adds the parts which a product left in `scratch`, and applies steps.

    args: bias, operands and dst. extents: of the loops over rows. params: the template's others.
    """
    vw = widest([columns])
    global_size, local = grid(target, columns // vw, prod(extents))
    params = params | {
        "name": f"workgroup_sum_p{params['parts']}_v{vw}",
        "extents": tuple(extents),
        "columns": columns,
        "vw": vw,
        "wg": local,
    }
    return Launch("shared/workgroup_sum.cl.mako", params, (scratch, *args), global_size, local)

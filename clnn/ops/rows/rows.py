"""Rows: how kernels that take whole rows at a time (reductions, softmax, norms) walk a tensor.

The axes of a tensor are split into kept ones and row axes; each index on the kept axes is a row.
A row is walked as runs (the outer row axes) of `length` elements (the innermost row axis, cut into
chunks where it is long). Vectors lie along a row, or across rows, each lane a row of its own:

    along:   r r r r    a vector holds neighbours of one row; lanes are folded at the end
    across:  a b c d    a vector holds one element of each of the rows a, b, c, d

On GPUs the members of a work-group share a row, or `beside` rows that lie across, where there would
be too few work-items else; they fold what each found in local memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

from clnn.errors import DTypeError, ShapeError
from clnn.layout import TensorLayout
from clnn.ops.launch import Variant
from clnn.ops.problem import Problem
from clnn.ops.shared.epilogue import operand_layouts
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.loops import Loops, collapse
from clnn.records import dataclass
from clnn.target import Target
from clnn.traced import greatest, is_one, is_open, least, other
from clnn.types import F32, F64, TensorType

TERMS = 64  # elements that one accumulator takes in before it is added to the total
SHORT = 8  # elements of a row below which it is not worth a vector along it
WORK = 16384  # elements that one CPU work-item should walk
SMALL = 1 << 18  # bytes of a tensor below which CPUs do not divide rows
CACHE = 1 << 18  # bytes that stay near a CPU core between two sweeps
LEAST_PART = {"cpu": 4096, "across": 64, "along": 8192}  # elements of a part; across: per member
SHARED = 64  # work-items of a group that shares a row
LONG = 4096  # elements from which on a row is shared by more than that:
LONG_SHARED, LONE_SHARED = (
    256,
    1024,
)  # work-items; the latter where rows are fewer than the device's
MOST_BESIDE, LEAST_BESIDE = 32, 4  # rows side by side of a group whose rows lie across
ITEMS = 256  # work-items that a GPU's compute unit should have
UNROLL = 4  # accumulators of a row that vectors lie along


@dataclass(frozen=True)
class Rows:
    """Geometry of one kernel over rows; pitches are listed per operand, the source first."""

    across: bool  # whether vectors lie across rows
    outer: Loops  # over rows, but for the lanes
    lanes: int  # extent of the kept axis that vectors lie on; 1 when along
    lane_pitches: tuple[int, ...]  # distance of neighbours in a vector
    runs: Loops  # over the runs of a row, the last one over chunks
    step_pitches: tuple[int, ...]  # distance of neighbours in a run
    length: int  # elements of a run
    extent: (
        int  # of the innermost row axis: where `length` does not divide it, a last chunk is shorter
    )
    block: int  # runs per accumulator
    vw: int  # vector width
    nv: int  # vectors side by side (across), or accumulators (along)
    parts: int = 1  # shares that a row is split into
    group: int = 1  # work-items that share a row
    band: int = 1  # rows or blocks per work-item
    beside: int = 1  # rows across of a group
    subgroups: bool = False  # whether members fold by the device's subgroups first

    @property
    def width(self) -> int:
        """Rows that one block computes."""
        return self.vw * self.nv if self.across else 1

    @property
    def blocks(self) -> int:
        """Blocks along the lanes; the last one overlaps its neighbour where they do not divide."""
        return -(-self.lanes // self.width)

    @property
    def items(self) -> int:
        """Blocks in all."""
        return prod(self.outer.extents) * self.blocks

    @property
    def run_count(self) -> int:
        """Runs of a row."""
        return prod(self.runs.extents)

    @property
    def share(self) -> int:
        """Runs of a part."""
        return -(-self.run_count // self.parts)

    @property
    def row(self) -> int:
        """Elements of a row."""
        return prod(self.runs.extents[:-1]) * self.extent

    @property
    def count(self) -> int:
        """Rows in all."""
        return prod(self.outer.extents) * self.lanes

    @property
    def label(self) -> str:
        """What a kernel's name says of this geometry."""
        group = f"_g{self.group}{'s' * self.subgroups}" if self.group > 1 else ""
        return f"{'across' if self.across else 'along'}_v{self.vw}x{self.nv}{group}"

    @property
    def divided(self) -> bool:
        """Whether rows are split into parts, at some shape at least."""
        return not is_one(self.parts)

    @property
    def narrow(self) -> Rows:
        """The rows walked one element at a time."""
        return replace(self, vw=1, nv=1)

    def sizes(self, target: Target) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return (global, local) work sizes: blocks (times the group) by parts."""
        if self.group > 1 and self.across:
            return (self.items, self.parts, self.group), (self.beside, 1, self.group)
        if self.group > 1:
            return (self.items * self.group, self.parts), (self.group, 1)
        items = -(-self.items // self.band)
        local = 1
        while not target.is_cpu and local < min(64, target.max_work_group) and local < items:
            local *= 2
        return (-(-items // local) * local, self.parts), (local, 1)


def with_row_axes(layout: TensorLayout, axes: Sequence[int], shape: Sequence[int]) -> TensorLayout:
    """Return the layout of one element per row as a view of `shape`: pitch 0 on each of `axes`.

    The layout may hold the row axes with extent 1, or not at all.
    """
    kept = [a for a in range(len(shape)) if a not in axes]
    inside = layout.rank == len(shape)
    pitches = [0] * len(shape)
    for place, axis in enumerate(kept):
        pitches[axis] = layout.pitches[axis if inside else place]
    return TensorLayout.of_pitches(shape, pitches, layout.offset, layout.size)


def operands_of(
    problem: Problem, post_ops: Sequence[PostOp]
) -> tuple[dict[int, int], list[TensorLayout]]:
    """Return the operands of post-ops: node input -> number as Rows count (from 1), and layouts."""
    operands = operand_layouts(problem, post_ops)
    numbers = {k: place + 1 for k, (place, _) in operands.items()}
    return numbers, [layout for _, layout in operands.values()]


def real_rows(what: str, x: TensorType, axes: Sequence[int]) -> TensorType:
    """Return the type of an op's input. Raises ShapeError or DTypeError where rows do not fit it."""
    if any(not 0 <= a < x.rank for a in axes):
        raise ShapeError(f"{what} over axes {axes} of {x.shape}: each must be an axis.")
    if x.dtype not in (F32, F64):
        raise DTypeError(f"{what} of {x.dtype.name}: it needs float32 or float64.")
    return x


def and_plain(variant: Callable[[bool], Variant]) -> list[Variant]:
    """Return variant(False), and variant(True), the plain one, where that is another."""
    return list({v.name: v for v in (variant(False), variant(True))}.values())


def repeated(variant: Callable[[bool], Variant], before: Variant) -> Variant | None:
    """Return the one of `and_plain` that has the name of another, None where there is none."""
    found = map(variant, (False, True))
    return next((v for v in found if v.name == before.name), None)


def make_rows(
    layouts: Sequence[TensorLayout],
    axes: Sequence[int],
    target: Target,
    itemsize: int,
    *,
    plain: bool = False,
    along: bool = True,
    split: bool = False,
    share: bool = False,
    sweeps: int = 1,
) -> Rows:
    """Return the geometry for rows along `axes` of `layouts` (equal shapes, the source first).

    itemsize: bytes of the widest element. plain: one element at a time, for any pitches. along: the
    kernel can have vectors along a row. split: it can divide rows between work-items. share: it can
    share rows across between members of a group, and fold by subgroups. sweeps: how often it reads
    a row.
    """
    rank = layouts[0].rank
    kept = _loops(layouts, [a for a in range(rank) if a not in axes])
    row = _loops(layouts, sorted(axes))
    widest = 1 if plain else min(16, max(1, target.vector * 4 // itemsize))
    across = plain or not (along and _lies_along(kept, row, widest))
    lane_extent = kept.inner if across else row.inner
    vw = widest if is_open(lane_extent) else _power_below(lane_extent, widest)
    if across and not target.is_cpu and not is_one(kept.inner_pitches[0]):
        vw = 1
    nv = 1 if plain else (_vectors(kept.inner, vw) if across else UNROLL)
    most = TERMS if across else TERMS * vw * nv * (1 if target.is_cpu else SHARED)
    rows, group, beside = _assemble(kept, row, across, (vw, nv), most, most), 1, 1
    if share and across and not plain and not target.is_cpu:
        group, beside = _shared(rows, kept.inner * prod(kept.extents[:-1]), target)
    if group > 1:
        vw, nv = 1, 1
        rows = _assemble(kept, row, across, (vw, nv), most, most)
    if split:
        parts = _parts(replace(rows, group=group), target, itemsize, sweeps)
        longest = -(-row.inner * prod(row.extents[:-1]) // parts)
        longest = least(most, -(-longest // vw) * vw)
        rows = _divided(_assemble(kept, row, across, (vw, nv), most, longest), parts)
    if not across and not target.is_cpu:
        group = _group(rows, target)
    subgroups = share and not across and group > 1 and "subgroups" in target.features
    return replace(rows, band=_band(rows, target), group=group, beside=beside, subgroups=subgroups)


def _loops(layouts: Sequence[TensorLayout], axes: Sequence[int]) -> Loops:
    """Return merged loops over some axes, innermost where the source's pitch is smallest."""
    source, *others = (layout.along(axes) for layout in layouts)
    loops = collapse([*others, source])
    return Loops(loops.extents, (loops.pitches[-1], *loops.pitches[:-1]))


def _lies_along(kept: Loops, row: Loops, widest: int) -> bool:
    """Whether vectors should lie along rows rather than across them."""
    if not is_one(row.inner_pitches[0]) or (row.inner < 2 and not is_open(row.inner)):
        return False
    if is_open(row.inner):
        return True
    return row.inner >= SHORT or (kept.inner < widest and not is_open(kept.inner))


def _power_below(extent: int, widest: int) -> int:
    width = 1
    while width * 2 <= min(extent, widest):
        width *= 2
    return width


def _vectors(lanes: int, vw: int) -> int:
    """Return how many vectors a block of lanes takes: up to 4 while little is computed twice."""
    lanes = other(lanes)
    vectors = -(-lanes // vw)
    for nv in (4, 3, 2):
        if nv * vw <= lanes and -(-vectors // nv) * nv * 4 <= vectors * 5:
            return nv
    return 1


def _assemble(
    kept: Loops, row: Loops, across: bool, tile: tuple[int, int], most: int, longest: int
) -> Rows:
    """Return rows whose runs are at most `longest` elements, `most` to an accumulator."""
    length = greatest(1, longest) if is_open(row.inner) else max(1, min(row.inner, longest))
    chunks = -(-row.inner // length)
    runs = Loops((*row.extents[:-1], chunks), tuple((*p[:-1], p[-1] * length) for p in row.pitches))
    outer, lanes = kept, 1
    if across:
        outer = Loops(kept.extents[:-1] or (1,), tuple(p[:-1] or (0,) for p in kept.pitches))
        lanes = kept.inner
    return Rows(
        across,
        outer,
        lanes,
        kept.inner_pitches if across else row.inner_pitches,
        runs,
        row.inner_pitches,
        length,
        row.inner,
        greatest(1, most // length),
        *tile,
    )


def _parts(rows: Rows, target: Target, itemsize: int, sweeps: int) -> int:
    """Return how many parts a row should have, so that there is work for the whole device.

    Of open extents: so that there is at the network's other shape.
    """
    row, there = other(rows.row), other(rows.items)
    size = row * other(rows.count) * itemsize
    items, work = 4 * target.compute_units, row
    if target.is_cpu:
        fewest, work = LEAST_PART["cpu"], row * rows.width
        if size < SMALL:
            return 1
        if sweeps > 1:
            items = max(items, min(64, size // CACHE))
    elif rows.across:
        items, fewest = 64 * target.compute_units // rows.group, LEAST_PART["across"] * rows.group
    else:
        fewest = LEAST_PART["along"]
    return max(1, min(-(-items // max(there, 1)), work // fewest))


def _divided(rows: Rows, parts: int) -> Rows:
    """Return rows in at most `parts` shares of whole runs."""
    if parts == 1:
        return rows
    share = -(-rows.run_count // greatest(1, least(parts, rows.run_count)))
    return replace(rows, parts=greatest(1, -(-rows.run_count // greatest(share, 1))))


def _group(rows: Rows, target: Target) -> int:
    """Return how many work-items share a row that vectors lie along."""
    few = rows.items * rows.parts < target.compute_units
    shared = SHARED if rows.length < LONG else LONE_SHARED if few else LONG_SHARED
    most = min(shared, target.max_work_group)
    return _power_below(max(1, rows.length // rows.vw), most)


def _shared(rows: Rows, count: int, target: Target) -> tuple[int, int]:
    """Return how many work-items share a row, and how many of the `count` rows a group has.

    They are one each where a work-item for each block of rows keeps the device busy.
    """
    wanted = ITEMS * target.compute_units
    beside = next(d for d in range(min(MOST_BESIDE, count), 0, -1) if count % d == 0)
    if rows.items >= wanted or beside < LEAST_BESIDE:
        return 1, 1
    group, most = 1, min(target.max_work_group // beside, SHARED, rows.length)
    while group * 2 <= most and count * group < wanted:
        group *= 2
    return (group, beside) if group > 1 else (1, 1)


def _band(rows: Rows, target: Target) -> int:
    """Return how many blocks one CPU work-item takes."""
    if not target.is_cpu:
        return 1
    work = greatest(1, rows.row * rows.width // rows.parts)
    return greatest(1, least(WORK // work, rows.items // (8 * target.compute_units)))

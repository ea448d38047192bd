"""Borders of padded tensors: which of them others overwrite, and placements that spare more.

A geometry stands for where in its block a tensor's border lies. Blocks of equal geometry at one
offset have their borders in the same bytes; any other two blocks that share memory spoil them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Sequence
from math import lcm

from clnn.plan.placement import Budget, PlacementProblem, Span, orders, place
from clnn.records import dataclass

Geometries = Sequence[Hashable]


def dirty(spans: Sequence[Span], geometries: Geometries) -> list[bool]:
    """Tell for each block with a geometry whether one of another, or at another offset, meets it.

    To meet is to share a byte. The answer for blocks without a geometry means nothing.
    """
    starting: dict[int, list[int]] = {}
    for block, (begin, end) in enumerate(spans):
        if begin < end:
            starting.setdefault(begin, []).append(block)
    found, reached, begins = [False] * len(spans), 0, sorted(starting)
    for begin, following in zip(begins, [*begins[1:], None], strict=False):
        group = starting[begin]
        spoilt = reached > begin or len({geometries[block] for block in group}) > 1
        for block in group:
            end = spans[block][1]
            found[block] = spoilt or (following is not None and following < end)
            reached = max(reached, end)
    return found


@dataclass(frozen=True)
class Slot:
    """Blocks of one geometry, no two alive together, that can have one offset to themselves."""

    blocks: list[int]
    size: int
    align: int


def slots(problem: PlacementProblem, geometries: Geometries) -> list[Slot]:
    """Return the blocks that have a geometry in few slots, least bytes per block first."""
    slots_of: dict[Hashable, list[list[int]]] = {}
    ends: dict[Hashable, list[tuple[int, int]]] = {}
    for block in sorted(range(len(geometries)), key=problem.firsts.__getitem__):
        geometry = geometries[block]
        if geometry is None or not problem.sizes[block]:
            continue
        rows, free = slots_of.setdefault(geometry, []), ends.setdefault(geometry, [])
        place = bisect_left(free, (problem.firsts[block], -len(rows)))
        row = -free.pop(place - 1)[1] if place else len(rows)
        if row == len(rows):
            rows.append([])
        rows[row].append(block)
        insort(free, (problem.lasts[block], -row))
    made = [
        Slot(
            row,
            max(problem.sizes[b] for b in row),
            lcm(*(problem.aligns[b] for b in row)),
        )
        for rows in slots_of.values()
        for row in rows
    ]
    return sorted(made, key=lambda slot: (slot.size / len(slot.blocks), slot.blocks))


def reserve(
    problem: PlacementProblem,
    geometries: Geometries,
    spans: list[Span],
    ceiling: int,
    budget: Budget,
) -> list[Span]:
    """Return a placement up to `ceiling` where fewer blocks have dirty borders, or `spans`.

    Slots are given memory of their own for the whole run, one after the other, as long as all the
    other blocks still fit beside them.
    """
    kept: list[Slot] = []
    best, room = spans, ceiling - problem.lower_bound
    for slot in slots(problem, geometries):
        needed = 0 if _is_alive(problem, slot, problem.peak_step) else slot.size
        if needed > room or budget.left <= 0:
            continue
        tried = _beside(problem, [*kept, slot], ceiling, budget)
        if tried is not None:
            kept.append(slot)
            best, room = tried, room - needed
    return min(spans, best, key=lambda s: _dirty_count(s, geometries))


def _is_alive(problem: PlacementProblem, slot: Slot, step: int) -> bool:
    return any(problem.firsts[b] <= step <= problem.lasts[b] for b in slot.blocks)


def _dirty_count(spans: Sequence[Span], geometries: Geometries) -> int:
    flags = zip(dirty(spans, geometries), geometries, strict=True)
    return sum(spoilt and geometry is not None for spoilt, geometry in flags)


def _beside(
    problem: PlacementProblem, kept: Sequence[Slot], ceiling: int, budget: Budget
) -> list[Span] | None:
    """Place the slots on the ground and all other blocks above; None when that is too high."""
    spans: list[Span] = [(0, 0)] * len(problem.sizes)
    ground = 0
    for slot in kept:
        begin = -(-ground // slot.align) * slot.align
        ground = begin + slot.size
        for block in slot.blocks:
            spans[block] = (begin, begin + problem.sizes[block])
    fixed = {block for slot in kept for block in slot.blocks}
    rest = [block for block in range(len(spans)) if block not in fixed]
    align = lcm(*problem.aligns)
    ground = -(-ground // align) * align if rest else ground
    budget.left -= len(problem.sizes)
    placed = _fit(problem, rest, ceiling - ground, budget)
    if placed is None:
        return None
    for block, (begin, end) in zip(rest, placed, strict=True):
        spans[block] = (begin + ground, end + ground)
    return spans


def _fit(
    problem: PlacementProblem, rest: list[int], ceiling: int, budget: Budget
) -> list[Span] | None:
    """Place the blocks `rest` by a greedy order below `ceiling`."""
    part = PlacementProblem(
        [problem.sizes[b] for b in rest],
        [problem.aligns[b] for b in rest],
        [problem.firsts[b] for b in rest],
        [problem.lasts[b] for b in rest],
    )
    budget.left -= part.cost
    if part.lower_bound > ceiling:
        return None
    tries = (place(part, order, ceiling, budget) for order in orders(part))
    return next((spans for spans in tries if spans is not None), None)

"""Offsets for blocks that live in intervals of steps: heuristics, local search, exact search.

Blocks are numbered; all sizes and offsets are in granules, the unit that every alignment is a
multiple of. A placement lists the span (begin, end) of each block. Pressing any placement down
gives one that `place` makes from some order of the blocks, so a search over orders loses nothing.
Work is bounded by counted steps, never by time: the same problem always gets the same answer.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import field
from heapq import heappop, heappush
from itertools import accumulate

from clnn.records import dataclass

Span = tuple[int, int]
Start = tuple[list[int], list[Span]]

STARTS = 4  # greedy placements that are improved
CLOSE = 1.02  # times the lower bound, from which on little work is spent on less
LITTLE_WORK = 60_000  # visits of neighbours
EXACT_BLOCKS = 14  # at most, for the exact search
EXACT_NODES = 2000  # of that search
MOST_GAPS = 256  # that `first_fit` looks at for one block


@dataclass
class PlacementProblem:
    """Blocks by number: size and alignment in granules, first and last step of life.

    Derived: `neighbours` (blocks alive at a common step), `peaks` (for each block the largest sum
    of live sizes during its life), `lower_bound` (the largest of all), `peak_step` (where that is)
    and `cost` (work of one `place`).
    """

    sizes: Sequence[int]
    aligns: Sequence[int]
    firsts: Sequence[int]
    lasts: Sequence[int]
    neighbours: list[list[int]] = field(init=False)
    peaks: list[int] = field(init=False)
    lower_bound: int = field(init=False)
    peak_step: int = field(init=False)
    cost: int = field(init=False)

    def __post_init__(self) -> None:
        self.neighbours = _neighbours(self.firsts, self.lasts)
        times, live = _live(self.sizes, self.firsts, self.lasts)
        self.peaks = [
            max(live[bisect_left(times, first) : bisect_right(times, last)])
            for first, last in zip(self.firsts, self.lasts, strict=True)
        ]
        self.lower_bound = max(live, default=0)
        self.peak_step = times[live.index(self.lower_bound)] if times else 0
        self.cost = len(self.sizes) + sum(map(len, self.neighbours))


@dataclass
class Budget:
    """Work that may still be done, counted in visits of neighbours."""

    left: int


def _neighbours(firsts: Sequence[int], lasts: Sequence[int]) -> list[list[int]]:
    neighbours: list[list[int]] = [[] for _ in firsts]
    alive: list[int] = []
    for block in sorted(range(len(firsts)), key=firsts.__getitem__):
        alive = [other for other in alive if lasts[other] >= firsts[block]]
        for other in alive:
            neighbours[other].append(block)
        neighbours[block] += alive
        alive.append(block)
    return neighbours


def meetings(firsts: Sequence[int], lasts: Sequence[int]) -> int:
    """Return how many pairs of blocks are alive at a common step."""
    begins, ends = sorted(firsts), sorted(lasts)
    before = sum(bisect_left(ends, first) for first in begins)
    return len(begins) * (len(begins) - 1) // 2 - before


def first_fit(
    sizes: Sequence[int], aligns: Sequence[int], firsts: Sequence[int], lasts: Sequence[int]
) -> list[Span]:
    """Place blocks as they begin to live, each in the lowest gap that those before it leave.

    Takes no time for blocks that meet, however many do.
    """
    spans: list[Span] = [(0, 0)] * len(sizes)
    gaps: list[Span] = []
    alive: list[tuple[int, int]] = []
    top = 0
    for block in sorted(range(len(sizes)), key=firsts.__getitem__):
        while alive and alive[0][0] < firsts[block]:
            _free(gaps, spans[heappop(alive)[1]])
        if gaps and gaps[-1][1] == top:
            top = gaps.pop()[0]
        size, align = sizes[block], aligns[block]
        for place, (low, high) in enumerate(gaps[:MOST_GAPS]):
            begin = -(-low // align) * align
            if begin + size <= high:
                gaps[place : place + 1] = [
                    gap for gap in ((low, begin), (begin + size, high)) if gap[0] < gap[1]
                ]
                break
        else:
            begin = -(-top // align) * align
            if begin > top:
                gaps.append((top, begin))
            top = begin + size
        spans[block] = (begin, begin + size)
        heappush(alive, (lasts[block], block))
    return spans


def _free(gaps: list[Span], span: Span) -> None:
    """Add a span to gaps, which are sorted and do not touch."""
    low, high = span
    place = bisect_left(gaps, span)
    if place < len(gaps) and gaps[place][0] == high:
        high = gaps.pop(place)[1]
    if place and gaps[place - 1][1] == low:
        low = gaps.pop(place - 1)[0]
        place -= 1
    if low < high:
        gaps.insert(place, (low, high))


def peak_of(sizes: Sequence[int], firsts: Sequence[int], lasts: Sequence[int]) -> int:
    """Return the largest sum of sizes alive at one step."""
    return max(_live(sizes, firsts, lasts)[1], default=0)


def _live(
    sizes: Sequence[int], firsts: Sequence[int], lasts: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the steps at which blocks begin to live, and the sum of live sizes at each."""
    times = sorted(set(firsts))
    change = [0] * (len(times) + 1)
    for size, first, last in zip(sizes, firsts, lasts, strict=True):
        change[bisect_left(times, first)] += size
        change[bisect_right(times, last)] -= size
    return times, list(accumulate(change))[:-1]


def place(
    problem: PlacementProblem,
    order: Sequence[int],
    ceiling: int,
    budget: Budget,
    *,
    given: list[Span | None] | None = None,
    best_fit: bool = False,
) -> list[Span] | None:
    """Place blocks in `order`, each at the lowest offset where it meets no live block.

    Returns None when one would end above `ceiling`. `given` holds the spans of blocks that are
    placed already. With `best_fit` a block takes the tightest gap rather than the lowest.
    """
    spans: list[Span | None] = [None] * len(problem.sizes) if given is None else given
    span_of, fit = spans.__getitem__, _tightest if best_fit else _lowest
    for block in order:
        size, near = problem.sizes[block], problem.neighbours[block]
        budget.left -= len(near) + 1
        taken = sorted(filter(None, map(span_of, near)))
        begin = fit(taken, size, problem.aligns[block])
        if begin + size > ceiling:
            return None
        spans[block] = (begin, begin + size)
    return spans  # type: ignore[return-value]


def _lowest(taken: list[Span], size: int, align: int) -> int:
    at = 0
    for begin, end in taken:
        if begin - at >= size:
            break
        if end > at:
            at = end if align == 1 else -(-end // align) * align
    return at


def _tightest(taken: list[Span], size: int, align: int) -> int:
    at, best, room = 0, -1, 0
    for begin, end in taken:
        gap = begin - at
        if gap >= size and (best < 0 or gap < room):
            best, room = at, gap
        if end > at:
            at = -(-end // align) * align
    return at if best < 0 else best


def height(spans: Sequence[Span]) -> int:
    """Return where the highest block ends."""
    return max((end for _, end in spans), default=0)


def orders(problem: PlacementProblem) -> Iterator[list[int]]:
    """Yield the greedy orders: by size, by breadth (live sum), by area, by duration, by time."""
    sizes, peaks, firsts, lasts = problem.sizes, problem.peaks, problem.firsts, problem.lasts
    spent = [last - first + 1 for first, last in zip(firsts, lasts, strict=True)]
    blocks = range(len(sizes))
    yield sorted(blocks, key=lambda b: (-sizes[b], firsts[b]))
    yield sorted(blocks, key=lambda b: (-peaks[b], -sizes[b]))
    yield sorted(blocks, key=lambda b: (-sizes[b] * spent[b], -sizes[b]))
    yield sorted(blocks, key=lambda b: (-spent[b], -sizes[b]))
    yield sorted(blocks, key=lambda b: (-peaks[b], -spent[b]))
    yield sorted(blocks, key=lambda b: (-lasts[b], -sizes[b]))
    yield sorted(blocks, key=lambda b: (firsts[b], -sizes[b]))


def solve(problem: PlacementProblem, budget: Budget) -> list[Span]:
    """Return a placement as low as the budget lets find; stop at the lower bound."""
    starts = [_pressed(problem, start, budget) for start in _greedy(problem, budget)]
    best = min((spans for _, spans in starts), key=height)
    if height(best) > problem.lower_bound and len(best) <= EXACT_BLOCKS:
        best, proven = _exact(problem, best, budget)
        if proven:
            return best
    for n, (order, spans) in enumerate(starts):
        if height(best) <= problem.lower_bound * CLOSE:
            budget.left = min(budget.left, LITTLE_WORK)
        if height(best) <= problem.lower_bound or budget.left <= 0:
            break
        share = Budget(budget.left // (len(starts) - n))
        budget.left -= share.left
        best = min(best, _climb(problem, order, spans, share), key=height)
        budget.left += share.left
    return best


def _greedy(problem: PlacementProblem, budget: Budget) -> list[Start]:
    """Return the STARTS best greedy orders with their placements; only one at the lower bound."""
    starts: list[Start] = []
    ceiling = sum(problem.sizes) + sum(problem.aligns)
    for order in orders(problem):
        for best_fit in (False, True):
            spans = place(problem, order, ceiling, budget, best_fit=best_fit)
            if spans is not None and all(spans != other for _, other in starts):
                starts.append((order, spans))
                ceiling = min(ceiling, height(spans) * 5 // 4)
                if height(spans) <= problem.lower_bound:
                    return starts[-1:]
        if budget.left <= 0:
            break
    return sorted(starts, key=lambda start: height(start[1]))[:STARTS]


def _pressed(problem: PlacementProblem, start: Start, budget: Budget) -> Start:
    """Press a placement to the top, then to the bottom, as long as it gets lower."""
    order, spans = start
    while height(spans) > problem.lower_bound and budget.left > 0:
        top = height(spans)
        falling = sorted(range(len(spans)), key=lambda b: -spans[b][1])
        hung = place(problem, falling, 2 * top, budget)
        if hung is None:
            break
        rising = sorted(range(len(spans)), key=lambda b: -hung[b][1])
        lower = place(problem, rising, top - 1, budget)
        if lower is None:
            break
        order, spans = rising, lower
    return order, spans


def _climb(
    problem: PlacementProblem, order: list[int], spans: list[Span], budget: Budget
) -> list[Span]:
    """Improve a placement by moving blocks of a highest stack within the order of placing."""
    chance = random.Random(len(order))
    top = height(spans)
    position = {block: i for i, block in enumerate(order)}
    while top > problem.lower_bound and budget.left > 0:
        stack = _stack(problem, spans, top, chance)
        moved, start = _move(problem, order, position, stack, chance)
        given: list[Span | None] = [None] * len(order)
        for block in moved[:start]:
            given[block] = spans[block]
        budget.left -= len(order) // 8
        tried = place(problem, moved[start:], top, budget, given=given)
        if tried is not None:
            order, spans, top = moved, tried, height(tried)
            position = {block: i for i, block in enumerate(order)}
    return spans


def _stack(
    problem: PlacementProblem, spans: list[Span], top: int, chance: random.Random
) -> list[int]:
    """Return blocks that rest one on another, from one that ends at `top` to the ground."""
    at = chance.choice([b for b, span in enumerate(spans) if span[1] == top])
    stack = [at]
    while under := _under(problem, spans, at):
        at = chance.choice(under)
        stack.append(at)
    return stack


def _under(problem: PlacementProblem, spans: list[Span], block: int) -> list[int]:
    """Return the blocks that keep `block` from being placed one alignment lower."""
    begin = spans[block][0]
    below = max(0, begin - problem.aligns[block])
    return [b for b in problem.neighbours[block] if below < spans[b][1] <= begin]


def _move(
    problem: PlacementProblem,
    order: list[int],
    position: dict[int, int],
    stack: list[int],
    chance: random.Random,
) -> tuple[list[int], int]:
    """Return the order with a block of the stack moved or swapped, and where it first differs."""
    block = chance.choice(stack)
    near = chance.choice(problem.neighbours[chance.choice(stack)] or stack)
    here, there = position[block], position[near]
    moved = order.copy()
    if chance.random() < 0.5:
        moved[here], moved[there] = moved[there], moved[here]
        return moved, min(here, there)
    earlier = min(here, there) if chance.random() < 0.5 else chance.randrange(here + 1)
    moved.insert(earlier, moved.pop(here))
    return moved, earlier


def _exact(problem: PlacementProblem, spans: list[Span], budget: Budget) -> tuple[list[Span], bool]:
    """Search placements whose offsets rise in the order of placing, which the lowest is among.

    Stops after EXACT_NODES nodes with the best so far; tells whether that is proven the lowest.
    """
    best: Sequence[Span | None] = spans
    top, nodes = height(spans), 0
    todo: list[tuple[list[Span | None], int]] = [([None] * len(spans), 0)]
    while todo and nodes < EXACT_NODES and top > problem.lower_bound:
        given, ground = todo.pop()
        nodes += 1
        free = [
            (_lowest_of(problem, b, given, budget), b) for b in range(len(given)) if not given[b]
        ]
        if any(begin + problem.sizes[b] >= top for begin, b in free):
            continue
        if not free:
            top = height([span for span in given if span])
            best = given
        for begin, b in sorted(free, key=lambda f: (-f[0], problem.sizes[f[1]])):
            if begin >= ground:
                child = given.copy()
                child[b] = (begin, begin + problem.sizes[b])
                todo.append((child, begin))
    return [span for span in best if span is not None], not todo


def _lowest_of(
    problem: PlacementProblem, block: int, given: Sequence[Span | None], budget: Budget
) -> int:
    near = problem.neighbours[block]
    budget.left -= len(near) + 1
    taken = sorted(span for other in near if (span := given[other]))
    return _lowest(taken, problem.sizes[block], problem.aligns[block])

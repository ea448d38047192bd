"""Which of a problem's candidates is fastest: rank, measure, halve, compare the last in turns.

Nothing here knows a device or a clock: `Measurer` builds and runs, `clock` tells the seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from itertools import zip_longest

import numpy as np

from clnn.ops.launch import Variant
from clnn.records import dataclass
from clnn.tune.bench import Measurer, Trial

GAIN = 1.02  # by which another variant must beat the ranked one
CLOSE = 1.05  # times the bound of the device at which nothing more is to be won
FIRST, SECOND, ROUNDS = 1, 3, 10  # batches: of every candidate, of the better ones, of the last
KEPT = (8, 3)  # candidates: after the first look, and for the last rounds
SHARE_OF_FIRST = 0.7  # of the time, for the first look at all candidates


@dataclass(frozen=True)
class Effort:
    """How thorough a contest is: candidates that take part, and how many between two looks at the
    clock; first: those that always run, the ranked one (mostly built already) among them."""

    candidates: int = 24
    chunk: int = 4
    first: int = 3


@dataclass
class Outcome:
    """What a contest found. times: median seconds by name, the finalists first and best first.

    faults: what is wrong with those that failed. tried: candidates that were measured.
    each: seconds that a candidate took, its build included.
    """

    times: dict[str, float] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    finalists: list[str] = field(default_factory=list)
    tried: int = 0
    each: float = 0.0


def shortlist(
    ranked: Variant, candidates: Sequence[Variant], before: Sequence[str], count: int
) -> list[Variant]:
    """Return at most `count` candidates: the ranked one, those named `before`, the cheapest.

    Half of the rest is the cheapest of all; the other half goes round the families (templates), so
    that a family whose estimate is wrong gets its turn.
    """
    known = {v.name: v for v in (ranked, *candidates)}
    chosen = {name: known[name] for name in (ranked.name, *before) if name in known}
    by_cost = sorted(known.values(), key=lambda v: v.cost)
    families: dict[tuple[str, ...], list[Variant]] = {}
    for variant in by_cost:
        families.setdefault(tuple(x.template for x in variant.launches), []).append(variant)
    turns = [v for row in zip_longest(*families.values()) for v in row if v is not None]
    for pool, most in ((by_cost, (len(chosen) + count) // 2), (turns, count)):
        for variant in pool:
            if len(chosen) >= max(most, 1):
                break
            chosen.setdefault(variant.name, variant)
    return list(chosen.values())[:count]


def contest(
    measurer: Measurer,
    entries: Sequence[Variant],
    deadline: float,
    clock: Callable[[], float],
    *,
    bound: float = 0.0,
    each: float = 0.0,
    effort: Effort | None = None,
    on_trial: Callable[[str, Trial], None] = lambda name, trial: None,
) -> Outcome:
    """Measure `entries` (the ranked one first) until `deadline`; bound: seconds none can beat.

    each: seconds that a candidate took elsewhere, 0 where that is not known. The first entry is
    always measured, and stays among the finalists where it is right.
    """
    effort = effort or Effort()
    outcome, right = Outcome(), dict[str, Variant]()
    look_until = (now := clock()) + (deadline - now) * SHARE_OF_FIRST

    def measure(variant: Variant, batches: int) -> None:
        trial = measurer.trial(variant, batches)
        on_trial(variant.name, trial)
        if trial.fault:
            outcome.faults[variant.name] = trial.fault
            outcome.times.pop(variant.name, None)
            right.pop(variant.name, None)
        elif trial.seconds:
            outcome.times[variant.name] = trial.median
            right[variant.name] = variant

    def first_look(chunk: Sequence[Variant]) -> None:
        for variant in chunk:
            fault = built.get(variant.name, "")
            outcome.tried += 1
            if fault:
                outcome.faults[variant.name] = fault
                on_trial(variant.name, Trial(fault))
            else:
                measure(variant, FIRST)

    at, outcome.each = 0, each
    while at < len(entries):
        close = min(outcome.times.values(), default=1e30) <= CLOSE * bound
        if at and (clock() >= look_until or close):
            break
        chunk = _next(entries, at, effort, look_until - clock(), outcome.each)
        if not chunk:
            break
        at += len(chunk)
        began = clock()
        built = measurer.build(chunk)
        first_look(chunk)
        outcome.each = (clock() - began) / len(chunk)
    for variant in _best(outcome, right, entries[0].name, KEPT[0]):
        if clock() < deadline:
            measure(variant, SECOND)
    last = _best(outcome, right, entries[0].name, KEPT[1])
    _final(measurer, last, outcome, right, on_trial, lambda: clock() < deadline)
    return outcome


def _best(outcome: Outcome, right: dict[str, Variant], ranked: str, count: int) -> list[Variant]:
    """Return the fastest so far, at most `count`, the ranked one among them where it is right."""
    names = sorted(outcome.times, key=lambda n: outcome.times[n])[:count]
    if ranked in outcome.times and ranked not in names:
        names[-1] = ranked
    return [right[name] for name in names]


def _next(
    entries: Sequence[Variant], at: int, effort: Effort, left: float, each: float
) -> Sequence[Variant]:
    """Return the entries to look at next that fit into the seconds left; the first one does always."""
    fit = int(left / each) if each else len(entries)
    most = effort.chunk if at else effort.first
    return entries[at : at + max(min(fit, most), 0 if at else 1)]


def _final(
    measurer: Measurer,
    last: Sequence[Variant],
    outcome: Outcome,
    right: dict[str, Variant],
    on_trial: Callable[[str, Trial], None],
    go_on: Callable[[], bool],
) -> None:
    """Time the last ones in turns, round by round, and order them by their medians."""
    samples: dict[str, list[float]] = {v.name: [] for v in last}
    for _ in range(ROUNDS if len(last) > 1 else 0):
        if not go_on():
            break
        for variant in [v for v in last if v.name in right]:
            trial = measurer.trial(variant, 1)
            if trial.fault:
                outcome.faults[variant.name] = trial.fault
                outcome.times.pop(variant.name, None)
                right.pop(variant.name)
                on_trial(variant.name, trial)
            else:
                samples[variant.name] += trial.seconds
    for name, times in samples.items():
        if times and name in right:
            outcome.times[name] = float(np.median(times))
    names = [v.name for v in last if v.name in right]
    outcome.finalists = sorted(names, key=lambda n: outcome.times[n])
    others = sorted(set(outcome.times) - set(names), key=lambda n: outcome.times[n])
    outcome.times = {n: outcome.times[n] for n in (*outcome.finalists, *others)}

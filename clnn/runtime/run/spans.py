"""When the commands of a run were on the device, and the calls of a fused kernel within it."""

from __future__ import annotations

from typing import Any

from clnn.records import dataclass
from clnn.runtime.run.commands import RunEvents
from clnn.types import Array

BEGIN, END = 0, 1  # places in the last axis of stamps


@dataclass(frozen=True)
class Span:
    """One command on the device: nanoseconds on the device's clock."""

    queued: int
    submit: int
    start: int
    end: int

    @property
    def seconds(self) -> float:
        """Time that the command ran."""
        return (self.end - self.start) * 1e-9


@dataclass(frozen=True)
class TimedRun:
    """One run: host times in ns (perf_counter), each command's span, each launch's enqueue time.

    Launches that were fused into one kernel have a span each, and the kernel's enqueue time.
    """

    began: int
    ended: int
    uploads: tuple[tuple[str, Span], ...]
    launches: tuple[Span, ...]
    downloads: tuple[tuple[str, Span], ...]
    enqueued: tuple[int, ...]


def timed_run(events: RunEvents) -> TimedRun:
    """Return the times of a finished run's events."""

    def span(event: Any) -> Span:
        times = event.profile
        return Span(times.queued, times.submit, times.start, times.end)

    def copies(pairs: list[tuple[str, Any]]) -> tuple[tuple[str, Span], ...]:
        return tuple((value, span(event)) for value, event in pairs if event is not None)

    launches: list[Span] = []
    enqueued: list[int] = []
    for (at, event), stamps in zip(events.launches, events.stamps, strict=True):
        parts = _parts(span(event), stamps)
        launches += parts
        enqueued += [at] * len(parts)
    return TimedRun(
        events.began,
        events.ended,
        copies(events.uploads),
        tuple(launches),
        copies(events.downloads),
        tuple(enqueued),
    )


def _parts(whole: Span, stamps: Array | None) -> list[Span]:
    """Return the spans of a launch's parts, itself where it has none."""
    if stamps is None:
        return [whole]
    times = split(whole.start, whole.end, stamps)
    return [Span(whole.queued, whole.submit, begin, end) for begin, end in times]


def split(start: int, end: int, stamps: Array) -> list[tuple[int, int]]:
    """Return (begin, end) in ns of each call of a kernel that ran from `start` to `end`.

    stamps: cycles, (calls, groups, 2), zeros where a group had no share. A call lasts from the
    begin of its first group to the end of its last one; one that no group took part in has no
    length. The counter is set against the device's clock by the kernel's whole time, so that times
    are too long by the part of it that is not work: some microseconds, spread over all calls.
    """
    ticks = stamps.astype("int64")
    shared = ticks[..., END] > 0
    if not shared.any():
        return [(start, start)] * len(ticks)
    first = int(ticks[..., BEGIN][shared].min())
    scale = (end - start) / max(int(ticks[..., END].max()) - first, 1)
    times: list[tuple[int, int]] = []
    for call, there in zip(ticks, shared, strict=True):
        began = ended = times[-1][1] if times else start
        if there.any():
            began = start + round((int(call[there, BEGIN].min()) - first) * scale)
            ended = start + round((int(call[there, END].max()) - first) * scale)
        times.append((began, ended))
    return times

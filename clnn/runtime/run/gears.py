"""Kernels that are made while calls go on: for small images, and for shapes that are met often.

A session for any shape runs on kernels that serve all of them. What they lack is built by child
processes of low priority, and taken in when it is there, right, and faster.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from time import perf_counter

import numpy as np

from clnn.errors import ClnnError
from clnn.logs import log
from clnn.records import dataclass
from clnn.runtime.build.program import Device
from clnn.runtime.process.background import Jobs
from clnn.runtime.run.parts import Build
from clnn.runtime.run.session import Session
from clnn.types import Array

OFTEN_CALLS, OFTEN_S = 32, 5.0  # calls, and seconds in them, after which a shape is met often
MOST_SPECIAL = 4  # shapes that may have kernels of their own at once
SOON, LATER = (
    5,
    19,
)  # added to the priority of builds: a call may wait for the first, none for the second
SETTLE_S = 3.0  # after the first shape: what ends by then, or meets no other, needs no small images
ROUNDS = 7  # of both sessions in turn, to see which is faster
FASTER = 0.98  # share of the time that kernels of a shape's own may take at most to be taken
# Largest error, relative to the largest magnitude, of two sessions whose kernels sum in other orders.
TOLERANCE = {"f32": 1e-3, "tf32": 1e-2, "f16": 2e-2, "bf16": 1e-1, "int8": 1e-1}

Shapes = Mapping[str, tuple[int, ...]]
Key = tuple[tuple[int, ...], ...]


@dataclass
class _Use:
    """Of one shape: its calls, whether kernels of its own were asked for, and whether they count."""

    calls: int = 0
    seconds: float = 0.0
    asked: bool = False
    counts: bool = False


class Gears:
    """Makes kernels ahead of calls for one OpenSession.

    special: returns the session made for one shape alone, its programs built as it is told. small:
    makes the kernels for small images so. lacking: makes those that a shape lacks of the kernels for all.
    room: makes room in memory for larger shapes until it is told to stop.
    """

    def __init__(
        self,
        special: Callable[[Shapes, Build], Session],
        small: Callable[[Build], None],
        lacking: Callable[[Shapes, Build], None],
        room: Callable[[Callable[[], bool]], None],
        dtype: str,
    ) -> None:
        self._special, self._small, self._lacking = special, small, lacking
        self._room = room
        self._lacked: dict[Key, threading.Event] = {}
        self._tolerance = TOLERANCE[dtype]
        self._jobs = Jobs()
        self._uses: dict[Key, _Use] = {}
        self._is_settled = False

    def make_small(self) -> None:
        """Make the kernels for small images: a while later, or at once when there is `hurry`."""
        self._jobs.add(self._make_small, SETTLE_S)

    def make_lacking(self, key: Key, shapes: Shapes) -> threading.Event:
        """Make the kernels that a shape lacks; return what is set once they are there, or nobody makes them."""
        made = self._lacked.get(key)
        if made is None:
            made = self._lacked[key] = threading.Event()
            self._jobs.add(partial(self._make_lacking, key, shapes, made))
        return made

    def _make_lacking(self, key: Key, shapes: Shapes, made: threading.Event) -> None:
        try:
            self._lacking(shapes, partial(self._build, SOON))
        finally:
            self._lacked.pop(key, None)
            made.set()

    def later(self, work: Callable[[], None]) -> None:
        """Have work done that nothing waits for, once kernels for small images were looked at."""
        if self._is_settled:
            self._jobs.add(work)

    def hurry(self) -> None:
        """Put off nothing any more: another shape was met, which larger ones may follow."""
        self._jobs.hurry()
        if self._is_settled:
            self._jobs.add(self._make_room)

    def is_often(self, key: Key, seconds: float) -> bool:
        """Note a call; whether the shape is due for kernels of its own."""
        use = self._uses.get(key) or self._uses.setdefault(key, _Use())
        use.calls += 1
        use.seconds += seconds
        return not use.asked and use.calls >= OFTEN_CALLS and use.seconds >= OFTEN_S

    def specialise(
        self, key: Key, shapes: Shapes, general: Session, take: Callable[[Session], None]
    ) -> None:
        """Make the session for one shape alone, and `take` it where it is right and faster."""
        use = self._uses.get(key) or self._uses.setdefault(key, _Use())
        if sum(u.counts for u in list(self._uses.values())) >= MOST_SPECIAL:
            use.calls = 0  # it is looked at again after as many calls
        elif not use.asked:
            use.asked = use.counts = True

            def job() -> None:
                use.counts = self._try(shapes, general, take)

            self._jobs.add(job)

    def forget(self, key: Key) -> None:
        """Forget a shape whose session is gone."""
        self._uses.pop(key, None)

    def wait(self, timeout: float | None) -> bool:
        """Wait until nothing is being made; whether that came within `timeout` seconds."""
        self.hurry()
        return self._jobs.wait(timeout)

    def close(self) -> None:
        """Stop what is being made."""
        self._jobs.close()

    def _make_small(self) -> None:
        try:
            self._small(partial(self._build, SOON))
        finally:
            self._is_settled = True
        if self._jobs.is_hurried:
            self._make_room()

    def _make_room(self) -> None:
        self._room(self._jobs.stop.is_set)

    def _build(self, nice: int, device: Device, sources: Mapping[str, str]) -> None:
        device.build_ahead(sources, self._jobs.stop, nice)
        device.build(sources)

    def _try(self, shapes: Shapes, general: Session, take: Callable[[Session], None]) -> bool:
        special = self._special(shapes, partial(self._build, LATER))
        why = self._worse(special, general)
        if why:
            log.info("%s keeps the kernels for all shapes: those of its own %s", shapes, why)
            special.close()
        elif not self._jobs.stop.is_set():
            take(special)
        return not why

    def _worse(self, special: Session, general: Session) -> str:
        """Return why a session is not to be taken, '' where it is."""
        runs = beside(special, general)
        if other := different(runs, self._tolerance):
            return f"gave another {other}"
        times: list[list[float]] = [[], []]
        for turn in range(ROUNDS):
            for which in (0, 1) if turn % 2 else (1, 0):
                began = perf_counter()
                runs[which]()
                times[which].append(perf_counter() - began)
            if self._jobs.stop.is_set():
                raise ClnnError("stopped")
        share = median(a / b for a, b in zip(*times, strict=True))
        return "" if share <= FASTER else f"took {share:.2f} of their time"


Run = Callable[[], Mapping[str, Array]]


def beside(*sessions: Session) -> list[Run]:
    """Return what runs each session on the same values, beside all calls."""
    feeds = {info.name: _values(info.shape, info.dtype) for info in sessions[0].inputs}
    return [session.apart(feeds) for session in sessions]


def different(runs: Sequence[Run], tolerance: float) -> str:
    """Return the first output that two runs do not agree on, '' where there is none."""
    got, want = (run() for run in runs)
    return next((name for name in want if not alike(got[name], want[name], tolerance)), "")


def alike(got: Array, want: Array, tolerance: float) -> bool:
    """Whether arrays are equal; floats within `tolerance` of the largest magnitude, NaN where NaN is."""
    if got.dtype.kind != "f":
        return np.array_equal(got, want)
    finite = np.isfinite(want)
    if not np.array_equal(got[~finite], want[~finite], equal_nan=True):
        return False
    one, other = got[finite].astype(np.float64), want[finite].astype(np.float64)
    largest = np.abs(other).max(initial=0.0)
    return bool(np.abs(one - other).max(initial=0.0) <= tolerance * largest)


def _values(shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """Return values that any network takes: floats around 0, and 0 of other types."""
    if dtype.kind != "f":
        return np.zeros(shape, dtype)
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)

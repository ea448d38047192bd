"""Finalists compared where they will run: inside the whole network, in turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from clnn.graph.ir import Graph
from clnn.options import Options
from clnn.runtime.device.device import DeviceInfo
from clnn.runtime.run.profile import Profile
from clnn.runtime.run.session import Session
from clnn.tune.choose import fixed
from clnn.tune.signature import signature

Choice = Mapping[str, str]
ROUNDS, LAST_ROUNDS, LEAST_ROUNDS = 12, 30, 5
FEWEST_ROUNDS = 2  # where time is short
ENOUGH_S = 8.0  # after which a comparison ends with LEAST_ROUNDS or more
PACKED = 3  # bytes on the device for a byte of constants, packed for kernels
MEMORY_SHARE = 0.5  # of the device's, that sessions side by side may take


class Network(Protocol):
    """A network that can run with any choice (problem key -> variant)."""

    @property
    def room(self) -> int:
        """How many choices may be compared at once."""

    def profile(self, choices: Sequence[Choice], seconds: float = ...) -> list[dict[str, float]]:
        """Return seconds by problem key for each choice, all nodes of a problem together.

        seconds: for the runs, of which there are two at least.
        """

    def latency(self, choices: Sequence[Choice], seconds: float = ...) -> list[float]:
        """Return seconds of a whole run for each choice."""

    def close(self) -> None:
        """Free what the choices hold."""


class DeviceNetwork:
    """A graph on a device: one session for each choice, run in turns on the same random input."""

    def __init__(self, graph: Graph, info: DeviceInfo, options: Options) -> None:
        self._graph, self._info, self._options = graph, info, options
        self._sessions: dict[tuple[tuple[str, str], ...], Session] = {}
        self.fits = True

    def session(self, choice: Choice) -> Session:
        """Return the session of a choice, made once."""
        key = tuple(sorted(choice.items()))
        if key not in self._sessions:
            self._sessions[key] = Session(
                self._graph, self._info, self._options, fixed(dict(choice))
            )
        return self._sessions[key]

    @property
    def room(self) -> int:
        """How many choices fit beside each other in the device's memory."""
        consts = sum(a.nbytes for a in self._graph.consts.values())
        arena = self.session({}).placement.arena_bytes
        return max(2, int(MEMORY_SHARE * self._info.global_mem / (PACKED * consts + arena + 1)))

    def _feeds(self, session: Session) -> dict[str, Any]:
        random = np.random.default_rng(0)
        return {
            t.name: random.standard_normal(t.shape).astype(t.dtype)
            if t.dtype.kind == "f"
            else np.zeros(t.shape, t.dtype)
            for t in session.inputs
        }

    def _prepared(self, choices: Sequence[Choice]) -> tuple[list[Session], dict[str, Any]]:
        sessions = [self.session(c) for c in choices]
        feeds = self._feeds(sessions[0])
        for session in sessions:
            session(feeds)
        return sessions, feeds

    def profile(
        self, choices: Sequence[Choice], seconds: float = ENOUGH_S
    ) -> list[dict[str, float]]:
        """Return the median device time by problem key for each choice."""
        sessions, feeds = self._prepared(choices)
        with ExitStack() as stack:
            profiles = [stack.enter_context(s.profile()) for s in sessions]
            for _ in _rounds(ROUNDS, seconds):
                for session in sessions:
                    session(feeds)
        return [_by_key(s, p) for s, p in zip(sessions, profiles, strict=True)]

    def latency(self, choices: Sequence[Choice], seconds: float = ENOUGH_S) -> list[float]:
        """Return the median time of a call for each choice."""
        sessions, feeds = self._prepared(choices)
        times: list[list[float]] = [[] for _ in sessions]
        for _ in _rounds(LAST_ROUNDS, seconds):
            for session, mine in zip(sessions, times, strict=True):
                begin = perf_counter()
                session(feeds)
                mine.append(perf_counter() - begin)
        return [float(np.median(mine)) for mine in times]

    def close(self) -> None:
        """Close the sessions."""
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()


def _rounds(most: int, seconds: float) -> Iterator[int]:
    """Count rounds, fewer than `most` where they take longer than `seconds`."""
    begin = perf_counter()
    least = LEAST_ROUNDS if seconds >= ENOUGH_S else FEWEST_ROUNDS
    for number in range(most):
        if number >= least and perf_counter() - begin > min(seconds, ENOUGH_S):
            return
        yield number


def _by_key(session: Session, profile: Profile) -> dict[str, float]:
    """Return the seconds of a profile by problem key."""
    keys = {s.node.layer: signature(s.node.spec, s.problem).key for s in session.plan.scheduled}
    total: dict[str, float] = {}
    for row in profile.rows():
        key = keys.get(row.node, row.node)
        total[key] = total.get(key, 0.0) + row.seconds
    return total

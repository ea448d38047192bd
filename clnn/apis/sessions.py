"""A bounded store of sessions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

from clnn.runtime.process.forked import refuse
from clnn.runtime.run.keeping import MAX_LAUNCHES, Cost, Recent


class Closable(Protocol):
    """What a store keeps."""

    @property
    def lost(self) -> str:
        """Why its device cannot be used any more, empty while it can."""

    def close(self) -> None:
        """Free the device memory."""


Kept = TypeVar("Kept", bound=Closable)


class SessionStore(Generic[Kept]):
    """Sessions by a key of all that they are made of. Safe to use from several threads.

    limit: sessions that are kept; beyond it the one that was used longest ago is closed, which
    lets a run in progress end and then frees its device memory. cost: what one costs to keep; with it
    more stay, as long as they cost little (clnn.runtime.run.keeping).
    """

    def __init__(self, limit: int, cost: Callable[[Kept], Cost] | None = None) -> None:
        self._sessions: Recent[Hashable, Kept] = Recent(cost or _as_much_as_all, limit, limit)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, key: Hashable) -> Kept | None:
        """Return the session of a key, None where there is none that works. Raises ForkError."""
        refuse()
        with self._lock:
            if key in self._sessions and self._sessions[key].lost:
                self._sessions.pop(key).close()
            return self._sessions.use(key)

    def put(self, key: Hashable, session: Kept) -> Kept:
        """Keep a session and return it; where another thread was first, return that one's."""
        with self._lock:
            kept = self._sessions.setdefault(key, session)
            dropped = [] if kept is session else [session]
            dropped += [old for _, old in self._sessions.shrink()]
        for other in dropped:
            other.close()
        return kept

    def clear(self) -> None:
        """Close all sessions."""
        with self._lock:
            sessions = list(self._sessions.values())
            self._sessions.clear()
        for session in sessions:
            session.close()


def _as_much_as_all(session: Closable) -> Cost:
    """Return the cost of what may not go beyond a limit."""
    return Cost(MAX_LAUNCHES, 0)

"""A bounded store of sessions."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

from clnn.runtime.process.forked import refuse


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
    lets a run in progress end and then frees its device memory.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sessions: OrderedDict[Hashable, Kept] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, key: Hashable) -> Kept | None:
        """Return the session of a key, None where there is none that works. Raises ForkError."""
        refuse()
        with self._lock:
            if key in self._sessions and self._sessions[key].lost:
                self._sessions.pop(key).close()
            if key in self._sessions:
                self._sessions.move_to_end(key)
            return self._sessions.get(key)

    def put(self, key: Hashable, session: Kept) -> Kept:
        """Keep a session and return it; where another thread was first, return that one's."""
        with self._lock:
            kept = self._sessions.setdefault(key, session)
            dropped = [] if kept is session else [session]
            while len(self._sessions) > self._limit:
                dropped.append(self._sessions.popitem(last=False)[1])
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

"""The bounded store of sessions."""

from __future__ import annotations

from clnn.apis.sessions import SessionStore
from clnn.runtime.run import keeping
from clnn.runtime.run.keeping import Cost


class Closable:
    lost = ""

    def __init__(self):
        self.closed = False

    def close(self):
        self.closed = True


def test_the_session_used_longest_ago_is_closed():
    store, sessions = SessionStore(2), [Closable() for _ in range(3)]
    assert store.get("a") is None
    assert store.put("a", sessions[0]) is sessions[0]
    store.put("b", sessions[1])
    assert store.get("a") is sessions[0]
    store.put("c", sessions[2])
    assert [s.closed for s in sessions] == [False, True, False]
    assert store.get("b") is None and len(store) == 2
    store.clear()
    assert all(s.closed for s in sessions) and len(store) == 0


def test_of_two_sessions_of_one_key_the_first_stays():
    store, first, second = SessionStore(2), Closable(), Closable()
    store.put("a", first)
    assert store.put("a", second) is first
    assert second.closed and not first.closed


def test_with_costs_more_than_the_limit_stay(monkeypatch):
    monkeypatch.setattr(keeping, "MAX_LAUNCHES", 3)
    store = SessionStore(1, lambda session: Cost(1, 0))
    sessions = [store.put(key, Closable()) for key in "abcd"]
    assert [s.closed for s in sessions] == [True, False, False, False] and len(store) == 3

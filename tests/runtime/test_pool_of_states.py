"""Pool: nothing is lent twice, nobody waits for ever, what is warm comes first."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from clnn.runtime.run.pool import Pool


def test_last_given_back_comes_first():
    pool = Pool(lambda: None)
    for k in range(3):
        pool.give(k)
    assert [pool.take(), pool.take()] == [2, 1]
    pool.give(2)
    assert pool.take() == 2


def test_more_are_made_where_none_is_left():
    made = iter([1, 2, None])
    pool = Pool(lambda: next(made))
    assert (pool.take(), pool.take()) == (1, 2)


def test_who_waits_gets_what_is_given_back():
    pool: Pool[str] = Pool(lambda: None)
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(pool.take) for _ in range(4)]
        for k in range(4):
            pool.give(str(k))
        assert sorted(w.result(30) for w in waiting) == ["0", "1", "2", "3"]


@pytest.mark.parametrize("extra", [0, 2])
def test_nothing_is_lent_twice(extra):
    """Many threads, few things: each has one holder at a time, and all get through."""
    left, lock = [object() for _ in range(extra)], threading.Lock()

    def make():
        with lock:
            return left.pop() if left else None

    pool: Pool[object] = Pool(make)
    pool.give(object())
    held: set[int] = set()

    def work() -> None:
        for _ in range(300):
            thing = pool.take()
            assert id(thing) not in held
            held.add(id(thing))
            time.sleep(0)
            held.remove(id(thing))
            pool.give(thing)

    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(work) for _ in range(8)]:
            done.result(60)
    assert not held


def test_an_error_of_make_is_raised_and_leaves_the_pool_whole():
    def fail():
        raise MemoryError("no more")

    pool: Pool[int] = Pool(fail)
    with pytest.raises(MemoryError, match="no more"):
        pool.take()
    pool.give(1)
    assert pool.take() == 1


def test_what_is_forgotten_is_not_lent():
    pool = Pool(lambda: "new")
    pool.give("old")
    pool.clear()
    assert pool.take() == "new"

"""Pool: nothing is lent twice, nothing is lost, nobody waits for ever, what is warm comes first."""

from __future__ import annotations

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from clnn.runtime.run import pool as module
from clnn.runtime.run.pool import Loan, Pool


class Counted(Pool[int]):
    """A pool of the numbers from 1."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self._numbers = iter(range(1, most + 1))

    def next(self) -> Loan[int]:
        return self.take(lambda: next(self._numbers))


def test_last_given_back_comes_first():
    pool = Counted(3)
    loans = [pool.next() for _ in range(3)]
    for loan in loans:
        pool.give(loan)
    assert [pool.next().thing for _ in range(2)] == [3, 2]


def test_more_are_made_where_none_is_left():
    pool = Counted(2)
    first, second = pool.next(), pool.next()
    assert (first.thing, second.thing) == (1, 2) and pool.things == [1, 2]


def test_who_waits_gets_what_is_given_back():
    pool = Counted(4)
    loans = [pool.next() for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(pool.next) for _ in range(4)]
        while len(pool.waiting) < 4:
            time.sleep(0)
        while loans:
            pool.give(loans.pop())
        assert sorted(w.result(30).thing for w in waiting) == [1, 2, 3, 4]


def test_who_waits_gets_what_is_given_back_without_a_word():
    """The borrower's thread had an exception between giving back and waking the next one."""
    pool = Counted(1)
    loan = pool.next()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pool.next)
        while not pool.waiting:
            time.sleep(0)
        pool.idle.append(loan)
        assert waiting.result(30) is loan


def test_what_its_borrower_lost_is_lent_again():
    """Also to one who waits already."""
    pool = Counted(1)
    pool.next()
    loan = pool.next()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pool.next)
        while not pool.waiting:
            time.sleep(0)
        del loan
        assert waiting.result(30).thing == 1
    assert pool.things == [1]


def test_what_only_a_cycle_holds_is_lent_again():
    """As an exception whose traceback holds a frame that holds the exception."""
    pool = Counted(1)
    cycle: list[object] = [pool.next()]
    cycle.append(cycle)
    gc.disable()
    try:
        del cycle
        with ThreadPoolExecutor(1) as threads:
            assert threads.submit(pool.next).result(30).thing == 1
    finally:
        gc.enable()


def test_who_waits_is_served_in_order_and_before_newcomers(monkeypatch):
    """Who gives back and asks at once, as a thread that calls in a loop, waits behind the others."""
    monkeypatch.setattr(module, "GONE_S", 600.0)
    pool, served = Counted(1), []
    loan = pool.next()

    def work(number: int) -> None:
        for _ in range(20):
            mine = pool.next()
            served.append(number)
            pool.give(mine)
            del mine

    with ThreadPoolExecutor(3) as threads:
        done = []
        for number in range(3):
            done.append(threads.submit(work, number))
            while len(pool.waiting) <= number:
                time.sleep(0)
        pool.give(loan)
        for one in done:
            one.result(120)
    assert served == [0, 1, 2] * 20


def test_who_went_without_a_word_is_passed_by(monkeypatch):
    """An exception ended the wait between two instructions: nobody waits behind it for long."""
    monkeypatch.setattr(module, "GONE_S", 0.2)
    pool = Counted(1)
    loan = pool.next()
    pool.waiting.append(module._Bell())
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pool.next)
        while len(pool.waiting) < 2:
            time.sleep(0)
        pool.give(loan)
        assert waiting.result(30) is loan
    assert not pool.waiting


@pytest.mark.parametrize("most", [1, 3])
def test_nothing_is_lent_twice(most):
    """Many threads, few things, some of them lost: each has one holder at a time."""
    pool = Counted(most)
    held: set[int] = set()

    def work(number: int) -> None:
        for k in range(300):
            loan = pool.next()
            assert loan.thing not in held
            held.add(loan.thing)
            time.sleep(0)
            held.remove(loan.thing)
            if number or k % 30:
                pool.give(loan)
            del loan

    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(work, number) for number in range(8)]:
            done.result(120)
    assert not held and len(pool.things) <= most


def test_an_error_of_make_is_raised_and_leaves_the_pool_whole():
    errors = [MemoryError("no more")]

    def make():
        if errors:
            raise errors.pop()
        return 1

    pool: Pool[int] = Pool(1)
    with pytest.raises(MemoryError, match="no more"):
        pool.take(make)
    assert pool.take(make).thing == 1


def test_after_close_nothing_is_kept():
    """Neither what was idle nor what comes back later; who waits is told by `make`."""
    pool = Counted(2)
    idle, lent = pool.next(), pool.next()
    pool.give(idle)
    pool.close()
    assert not pool.things and not pool.idle
    pool.give(lent)
    assert not pool.idle


def test_who_waits_hears_of_the_end():
    closed = threading.Event()

    def make():
        if closed.is_set():
            raise ValueError("closed")
        return 1

    pool: Pool[int] = Pool(1)
    loan = pool.take(make)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pool.take, make)
        while not pool.waiting:
            time.sleep(0)
        closed.set()
        pool.close()
        with pytest.raises(ValueError, match="closed"):
            waiting.result(30)
    assert loan.thing == 1

"""Things that several threads borrow one at a time, and that no exception can make disappear.

Python may raise an exception of another's making, such as KeyboardInterrupt, after any call: also
when something was lent and the borrower has not noted it yet. So what is lent is a Loan, and a thing
is free again when its Loan is back or when nobody holds it any more. Borrowers do not wait for
word of that alone: they look by themselves, and have Python look for what is held by cycles alone.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Generic, TypeVar

T = TypeVar("T")
LOOK_S = 0.05  # between two looks of one who waits
GONE_S = 1.0  # without a look: an exception ended the wait before it could say so


class Loan(Generic[T]):
    """The right to use `thing`: its one holder may."""

    __slots__ = ("__weakref__", "thing")

    def __init__(self, thing: T) -> None:
        self.thing = thing


class _Bell:
    """The place of one who waits, in a queue. seen: when they looked last, by time.monotonic."""

    __slots__ = ("_lock", "seen")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.seen = monotonic()

    def ring(self) -> None:
        """Wake the one who waits."""
        with suppress(RuntimeError):  # it rang already, and they are about to look
            self._lock.release()

    def wait(self) -> bool:
        """Return True once it rang, False after LOOK_S."""
        self.seen = monotonic()
        return self._lock.acquire(timeout=LOOK_S)


class Pool(Generic[T]):
    """Lends what was given back last; where nothing is there, what the borrower makes, else waits.

    most: things at most. Those who wait are served in their order, and before newcomers. A Loan is given
    back by `idle.append(loan)`, which is one call and so is done or not begun; then by `wake()` where there
    is any `waiting`. A pool does not hold what makes its things: an owner that does, and that has the pool,
    would be a cycle, and its memory stay until Python looks for cycles.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.idle: deque[Loan[T]] = deque()
        self.waiting: deque[_Bell] = deque()
        self._made: list[tuple[T, weakref.ref[Loan[T]]]] = []
        self._lock = threading.RLock()
        self._closed = False

    @property
    def things(self) -> list[T]:
        """All that were made."""
        return [thing for thing, _ in self._made]

    def take(self, make: Callable[[], T]) -> Loan[T]:
        """Return the Loan of a thing that nobody else has while it is held. Raises what `make` does.

        make: returns a new thing; called by one thread at a time.
        """
        if not self.waiting:
            try:
                return self.idle.pop()
            except IndexError:
                pass
        return self._wait(make)

    def give(self, loan: Loan[T]) -> None:
        """Take a thing back."""
        self.idle.append(loan)
        if self.waiting:
            self.wake()

    def wake(self) -> None:
        """Let the next who waits look for what was given back; after close(), forget it."""
        if self._closed:
            self.idle.clear()
            return
        with suppress(IndexError):
            self.waiting[0].ring()  # who wakes the next, where more is there

    def close(self) -> None:
        """Forget all things; those that are lent go when they are given back."""
        self._closed = True
        self._made.clear()
        self.idle.clear()
        for bell in tuple(self.waiting):
            bell.ring()
        self.waiting.append(_Bell())  # whoever gives back calls wake()

    def _wait(self, make: Callable[[], T]) -> Loan[T]:
        bell, missed = _Bell(), 0
        self.waiting.append(bell)
        try:
            while True:
                first = self._is_first(bell)
                if first or missed:
                    self._fill(make)
                if first:
                    with suppress(IndexError):
                        return self.idle.pop()
                elif self.idle:
                    self.wake()
                if not bell.wait():
                    missed += 1
                    if missed & (missed - 1) == 0:  # ever more rarely
                        gc.collect()  # tracebacks and frames that hold each other may hold a Loan
        finally:
            self._leave(bell)

    def _is_first(self, bell: _Bell) -> bool:
        """Return whether it is the turn of this one, without those who went and left their bell."""
        if self._closed:
            return True
        late = monotonic() - GONE_S
        with suppress(IndexError):
            while self.waiting[0] is not bell:
                if self.waiting[0].seen > late:
                    return False
                self.waiting.popleft()
            return True
        self.waiting.append(bell)  # taken for gone by another, as where the process was stopped
        return self.waiting[0] is bell

    def _leave(self, bell: _Bell) -> None:
        """Forget one who waited, and pass on what word may have come meanwhile."""
        with suppress(ValueError, IndexError):  # taken for gone; others came and went meanwhile
            self.waiting.remove(bell)
        if self.idle and self.waiting:
            self.wake()

    def _fill(self, make: Callable[[], T]) -> None:
        """Make idle what nobody holds any more, else something new where there may be more."""
        with self._lock:
            for at, (thing, holder) in enumerate(self._made):
                if holder() is None:
                    self._lend_anew(thing, at)
            if not self.idle and len(self._made) < self._most:
                self._lend_anew(make(), len(self._made))

    def _lend_anew(self, thing: T, at: int) -> None:
        """Make a thing idle, with a Loan that stands for it from now on."""
        loan = Loan(thing)
        self._made[at : at + 1] = [(thing, weakref.ref(loan))]
        self.idle.append(loan)

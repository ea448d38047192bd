"""Things that several threads borrow one at a time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")


class Pool(Generic[T]):
    """Lends what was given back last; where nothing is there, what `make` returns, else waits.

    make: returns a new thing, or None where there may be no more. Called by several threads.
    """

    def __init__(self, make: Callable[[], T | None]) -> None:
        self._make = make
        self._idle: deque[T] = deque()
        self._given = threading.Condition()
        self._waiting = 0

    def take(self) -> T:
        """Return a thing that nobody else has until it is given back."""
        try:
            return self._idle.pop()
        except IndexError:
            thing = self._make()
            return self._wait() if thing is None else thing

    def give(self, thing: T) -> None:
        """Take a thing back."""
        self._idle.append(thing)
        if self._waiting:
            with self._given:
                self._given.notify()

    def clear(self) -> None:
        """Forget what is not lent."""
        self._idle.clear()

    def _wait(self) -> T:
        with self._given:
            self._waiting += 1  # before the look at what is there: one or the other is seen
            try:
                while True:
                    with suppress(IndexError):
                        return self._idle.pop()
                    self._given.wait()
            finally:
                self._waiting -= 1

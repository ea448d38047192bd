"""Work with a deadline: a thread that may hang does it, the caller does not.

A driver's call cannot be ended from outside. What takes too long is left to its thread, which is a
daemon: the end of the process does not wait for it. Nor does it let drivers clean up then, which may wait
for the same work, or abort because of it.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


class LateError(Exception):
    """Work took longer than its caller waits."""


class Request:
    """Work, and how it went. done: held until the work has ended. over: whether it has."""

    def __init__(self, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._work: Callable[..., Any] | None = work
        self._args = args
        self._value: Any = None
        self._error: BaseException | None = None
        self.over = False
        self.done = threading.Lock()
        self.done.acquire()

    def do(self) -> None:
        """Do the work, and let go of it."""
        work, args = self._work, self._args
        assert work is not None
        self._work, self._args = None, ()
        try:
            self._value = work(*args)
        except BaseException as err:
            self._error = err
        del work, args
        self.over = True
        self.done.release()

    def result(self) -> Any:
        """Return what the work returned, or raise what it raised."""
        if self._error is None:
            return self._value
        try:
            raise self._error
        finally:
            self._error = None  # whose traceback leads here
            del self


def within(seconds: float, work: Callable[..., T], *args: Any) -> T:
    """Return work(*args), done by a thread of its own; 0 seconds: by this one, without a deadline.

    Raises what the work raises, MemoryError where there may be no more threads, LateError after
    `seconds`. An interrupt waits for the end of the work, as it does for a driver's call; a second
    one does not.
    """
    if not seconds:
        return work(*args)
    request, until = Request(work, args), time.monotonic() + seconds
    thread = threading.Thread(target=request.do, name="clnn-deadline", daemon=True)
    try:
        thread.start()
    except RuntimeError as err:  # there may be no more threads
        raise MemoryError(f"{err}") from err
    try:
        ended = request.done.acquire(timeout=seconds)
    except BaseException:
        if not request.over:  # else it may have been raised with `done` taken
            request.done.acquire(timeout=max(0.0, until - time.monotonic()))
        raise
    if not ended:
        leave_behind()
        raise LateError(f"nothing came within {seconds:g} s")
    result: T = request.result()
    return result


@cache
def leave_behind() -> None:
    """Have the process end, when it does, without the destructors of libraries, with the status that it has.

    For work that a driver may never end: its library's own threads are still busy then. Python's own
    functions at exit run before. Without effect where the C library has no on_exit.
    """
    libc = ctypes.CDLL(None) if os.name == "posix" else None
    if libc is not None and hasattr(libc, "on_exit"):
        atexit.register(libc.fflush, None)
        libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)

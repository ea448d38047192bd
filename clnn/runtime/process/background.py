"""Work in a thread of its own, while calls go on: one job at a time in the whole process."""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable

from clnn.replays import behind_calls
from clnn.runtime.process import forked

log = logging.getLogger("clnn")

END_S = 5.0  # that the end of the process waits for a job, which was told to stop
NEEDED_S = 60.0  # and for one that is to be done

_turn = forked.renewed(threading.Lock())
_all: weakref.WeakSet[Jobs] = weakref.WeakSet()


class Jobs:
    """Jobs in the order in which they were added; their thread is there while there are any.

    stop: set when no job is wanted any more. A job looks at it, and returns early. needed: the end of the
    process has them done at once, in place of dropping them.
    """

    def __init__(self, needed: bool = False) -> None:
        self.stop, self._needed = threading.Event(), needed
        self._todo: deque[tuple[Callable[[], None], float]] = deque()
        self._hurried = False
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        _all.add(self)

    def add(self, job: Callable[[], None], after: float = 0.0) -> None:
        """Have a job done after those before it, `after` seconds later or once there is hurry.

        What it raises goes to the log.
        """
        with self._change:
            if self.stop.is_set():
                return
            self._todo.append((job, after))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="clnn-ahead", daemon=True)
                self._thread.start()

    @property
    def is_hurried(self) -> bool:
        """Whether no job waits before it begins."""
        return self._hurried

    def hurry(self) -> None:
        """Have no job wait any more before it begins."""
        with self._change:
            self._hurried = True
            self._change.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing is to be done; whether that came within `timeout` seconds."""
        self.hurry()
        with self._change:
            return self._change.wait_for(lambda: self._thread is None, timeout)

    def close(self) -> None:
        """Drop all jobs, and have the one that runs end early."""
        with self._change:
            self.stop.set()
            self._todo.clear()
            self._change.notify_all()

    def _work(self) -> None:
        while True:
            with self._change:
                if not self._todo:
                    self._thread = None
                    self._change.notify_all()
                    return
                job, after = self._todo.popleft()
                self._change.wait_for(lambda: self._hurried or self.stop.is_set(), after)
            with _turn:
                self._do(job)
            del job  # what it holds of a device goes before the end of the process may come

    def _do(self, job: Callable[[], None]) -> None:
        if self.stop.is_set():
            return
        try:
            with behind_calls():
                job()
        except Exception as err:
            if not self.stop.is_set():
                log.warning("nothing was made ahead of a call: %s", err)


def _end() -> None:
    """Stop all jobs but the needed ones: a thread that is in a driver at the end of Python may crash it."""
    if forked.process.refusal:  # their threads are another process's
        return
    running = [jobs for jobs in _all if jobs._thread is not None]
    for jobs in running:
        if jobs._needed:
            jobs.hurry()
        else:
            jobs.close()
    now = time.monotonic()
    for jobs in running:
        deadline = now + (NEEDED_S if jobs._needed else END_S)
        jobs.wait(max(0.0, deadline - time.monotonic()))


atexit.register(_end)

"""A deadline on whatever waits for a device: a thread that may hang does it, the caller does not.

A driver's call cannot be ended from outside. So with a timeout each execution state has a thread that
calls the driver for it; who waits for that gives up in time. What a hanging device may still write to is
then never freed, no call of the driver is made for it any more, and its thread is a daemon: neither
close() nor the end of the process waits for it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any, TypeVar

from clnn.options import Options
from clnn.plan.plan import Plan
from clnn.runtime.build.program import Device
from clnn.runtime.device.failures import lose, require
from clnn.runtime.process.deadline import Request, leave_behind
from clnn.runtime.run.arguments import at_once
from clnn.runtime.run.commands import NOT_HANDED, Handed, Memory, RunEvents
from clnn.runtime.run.constants import Constants
from clnn.runtime.run.fused_launch import FusedLaunches
from clnn.runtime.run.state import ExecutionState
from clnn.settings import setting
from clnn.types import Array

T = TypeVar("T")
_here = threading.local()


def timeout_of(options: Options) -> float | None:
    """Return the seconds that a session waits for its device at most, None where there is no end."""
    return (setting("CLNN_TIMEOUT") or None) if options.timeout is None else options.timeout


class Watch:
    """Does work for one execution state at a time, each within `seconds` of the call.

    What is called after an exception of another's making, such as KeyboardInterrupt, left a call early
    waits in the thread until that work has ended.
    """

    def __init__(self, device: Device, seconds: float) -> None:
        self._device, self._seconds = device, seconds
        self._requests: SimpleQueue[Request | None] = SimpleQueue()
        self._turn = (
            threading.Lock()
        )  # a call may be left after a thread started, before it is noted
        self._thread: threading.Thread | None = None
        weakref.finalize(self, self._requests.put, None).atexit = False

    def __call__(self, work: Callable[..., T], *args: Any) -> T:
        """Return work(*args). Raises what that raises, DeviceLostError where it takes too long."""
        require(self._device)
        if getattr(_here, "busy", False):
            return work(*args)
        if self._thread is None:
            self._begin()
        request = Request(work, args)
        self._requests.put(request)
        if not request.done.acquire(timeout=self._seconds):
            self._give_up()
        result: T = request.result()
        return result

    def _begin(self) -> None:
        thread = threading.Thread(
            target=_serve, args=(self._requests, self._turn), name="clnn-watched", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as err:  # there may be no more threads
            raise MemoryError(f"{err}") from err
        self._thread = thread

    def _give_up(self) -> None:
        """Raise DeviceLostError."""
        leave_behind()
        raise lose(
            self._device,
            f"it did not answer within {self._seconds:g} s (Options.timeout), so a kernel hangs or"
            " takes longer than that",
        )


class WatchedState(ExecutionState):
    """An execution state whose runs have a deadline."""

    may_be_helped = False  # a kernel in the thread that calls has none

    def run(
        self,
        feeds: Mapping[str, Array],
        bound: Mapping[str, Memory],
        handed: Handed = NOT_HANDED,
    ) -> dict[str, Array]:
        """Do what ExecutionState.run does. Raises DeviceLostError too."""
        outs: dict[str, Array] = self.watch(super().run, feeds, bound, handed)
        return outs

    def run_timed(
        self,
        feeds: Mapping[str, Array],
        outs: Mapping[str, Array],
        bound: Mapping[str, Memory],
        handed: Handed = NOT_HANDED,
    ) -> RunEvents:
        """Do what ExecutionState.run_timed does. Raises DeviceLostError too."""
        events: RunEvents = self.watch(super().run_timed, feeds, outs, bound, handed)
        return events


def make_state(
    seconds: float | None,
    device: Device,
    plan: Plan,
    constants: Constants,
    bound: Mapping[str, Memory],
    fused: FusedLaunches | None,
    profiling: bool,
) -> ExecutionState:
    """Return a new state, which waits for its device for `seconds` at most (None: without end)."""
    what = device, plan, constants, bound, fused, profiling
    if seconds is None:
        return ExecutionState(*what)
    watch = Watch(device, seconds)
    state = watch(WatchedState, *what)
    state.watch = watch
    return state


def watch_of(device: Device, seconds: float | None) -> Any:
    """Return what does work for a device within `seconds`, or `at_once`."""
    return at_once if seconds is None else Watch(device, seconds)


def _serve(requests: SimpleQueue[Request | None], turn: threading.Lock) -> None:
    _here.busy = True
    while True:
        request = requests.get()
        if request is None:
            return
        with turn:
            request.do()
        del request

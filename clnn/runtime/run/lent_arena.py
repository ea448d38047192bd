"""Arenas that the sessions of a family lend each other, so that a new shape needs no new memory.

What lies in an arena between two runs are the borders of its tensors, which are filled once. A state
that finds those of another one fills its own again.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from time import monotonic, sleep

from clnn.plan.plan import Plan
from clnn.replays import PAUSE_S
from clnn.runtime.build.program import Device
from clnn.runtime.drivers.loader import load
from clnn.runtime.drivers.pages import LARGE, fill_in, free_bytes, host_buffer, pages
from clnn.runtime.process import forked
from clnn.runtime.process.forked import keep
from clnn.runtime.run.arena import LARGEST_ARENA, one_arena
from clnn.runtime.run.commands import NOT_HANDED, Handed, Memory
from clnn.runtime.run.constants import Constants, allocate
from clnn.runtime.run.fused_launch import FusedLaunches
from clnn.runtime.run.state import ExecutionState
from clnn.types import Array

SPARE = 16  # times what is needed, of addresses: pages that are never written take no room
# Memory that is found before a larger shape needs it: so many times what was used, so many bytes more
# than that in all arenas of the process, and such a share of what the system has.
AHEAD, MOST_AHEAD, SHARE = 8, 2**28, 4
LOOK_S, PATIENCE_S = 5e-3, 0.2  # how often is looked whether a run has ended, and how long
_every: weakref.WeakSet[Arena] = weakref.WeakSet()
_every_lock = forked.renewed(threading.Lock())


class Arena:
    """Device memory for one run at a time. host: the same memory where it is the host's, else None.

    filled_for: the state whose borders it has. used: bytes that runs wrote to, from the first one on;
    there: bytes whose pages the system has found.
    """

    def __init__(self, device: Device, nbytes: int) -> None:
        keep(self)
        info, context = device.info, device.context
        self.host: Array | None = None
        self.filled_for: object = None
        self.used = self.there = 0
        if info.type == "cpu" and (nbytes >= LARGE or info.caps.host_memory):
            most = min(info.max_alloc or LARGEST_ARENA, LARGEST_ARENA)
            host = _roomy(nbytes, max(nbytes, min(SPARE * nbytes, most)))
            self.buffer = allocate(lambda: host_buffer(context, host), host.nbytes, device)
            self.host, self.nbytes = host, host.nbytes
            with _every_lock:
                _every.add(self)
        else:
            cl, self.nbytes = load(), max(nbytes, 4)
            self.buffer = allocate(
                lambda: cl.Buffer(context, cl.mem_flags.READ_WRITE, self.nbytes), nbytes, device
            )


def make_room(arena: Arena, stop: Callable[[], bool], is_lent: Callable[[], bool] = bool) -> None:
    """Have the system find memory for larger shapes, a page after the other, until it is there or `stop` says so.

    A page that no one had before takes a virtual machine milliseconds, in which a call would wait, for the page
    or for the processor that finds it: while memory `is_lent` to one, a page is only found where PATIENCE_S passed.
    """
    if arena.host is None or arena.host.nbytes < LARGE:
        return
    with _every_lock:
        others = sum(max(0, other.there - other.used) for other in _every if other is not arena)
    more = max(0, min(MOST_AHEAD - others, free_bytes() // SHARE))
    end = min(AHEAD * arena.used, arena.used + more, arena.host.nbytes)
    while arena.there < end and not stop():
        _let_pass(is_lent, stop)
        piece = arena.there + LARGE - arena.there % LARGE
        if not fill_in(arena.host, arena.there, min(piece, arena.host.nbytes)):
            return
        arena.there = piece
        sleep(PAUSE_S)


def _let_pass(is_lent: Callable[[], bool], stop: Callable[[], bool]) -> None:
    """Wait for the end of a run, but not for ever: they may follow each other."""
    end = monotonic() + PATIENCE_S
    while is_lent() and monotonic() < end and not stop():
        sleep(LOOK_S)


def _roomy(least: int, best: int) -> Array:
    """Return `best` bytes, fewer where the system has no addresses for them, `least` or more.

    What outgrows its arena needs another, all of whose pages the system has to find and clear.
    """
    while best > least:
        try:
            return pages(best)
        except MemoryError:
            best = max(best // 2, least)
    return pages(least)


class Arenas:
    """The arenas of a family: as many as run at once, each as large as the largest network so far.

    An arena that an exception lost on its way is freed by the last one who refers to it.
    """

    def __init__(self) -> None:
        self.idle: deque[Arena] = deque()
        self.lock = threading.RLock()
        self._borrowers: weakref.WeakSet[LentState] = weakref.WeakSet()
        self._last: Callable[[], Arena | None] = lambda: None

    def take(self, device: Device, nbytes: int) -> Arena:
        """Return an arena of at least so many bytes that nobody uses. Raises OutOfDeviceMemoryError.

        One that is too small makes room for it.
        """
        try:
            arena = self.idle.pop()
        except IndexError:
            return self._made(device, nbytes)
        if arena.nbytes >= nbytes:
            arena.used = max(arena.used, nbytes)
            return arena
        with self.lock:
            for state in list(self._borrowers):
                state.forget(arena)
        del arena
        return self._made(device, nbytes)

    def make_room(self, stop: Callable[[], bool]) -> None:
        """Have the system find memory for larger shapes in the arena that was made last."""
        arena = self._last()
        if arena is not None:
            make_room(arena, stop, lambda: not self.idle)

    def _made(self, device: Device, nbytes: int) -> Arena:
        arena = Arena(device, nbytes)
        arena.used, self._last = nbytes, weakref.ref(arena)
        return arena

    def lends_to(self, state: LentState) -> None:
        """Have a state forget what it remembers of arenas that go."""
        with self.lock:
            self._borrowers.add(state)


def is_lent(plan: Plan, device: Device) -> bool:
    """Whether a plan's memory is one arena that may have been used before."""
    return one_arena(plan, device) and not plan.guard


class LentState(ExecutionState):
    """An execution state that borrows its memory for each run."""

    def __init__(
        self,
        arenas: Arenas,
        device: Device,
        plan: Plan,
        constants: Constants,
        bound: Mapping[str, Memory],
        fused: FusedLaunches | None = None,
    ) -> None:
        self._arenas = arenas
        self._arena: Arena | None = None
        self._known: Arena | None = None  # the one that arguments of kernels refer to
        super().__init__(device, plan, constants, bound, fused)
        arenas.lends_to(self)
        self._give_back()

    def run(
        self,
        feeds: Mapping[str, Array],
        bound: Mapping[str, Memory],
        handed: Handed = NOT_HANDED,
    ) -> dict[str, Array]:
        """Do what an ExecutionState's run does, in an arena that is given back behind it."""
        self._borrow()
        outs = super().run(feeds, bound, handed)
        self._give_back()
        return outs

    def forget(self, arena: Arena) -> None:
        """Refer to an arena no more, which is not lent to this state."""
        if self._known is arena:
            self._drop()

    def _allocate(self) -> dict[str, Memory]:
        self._arena = self._arenas.take(self.device, self.plan.memory.total)
        self._arena.filled_for = self._token = object()  # which begins with that
        self._known = self._arena
        return self._lies_in(self._arena)

    def _lies_in(self, arena: Arena) -> dict[str, Memory]:
        self._host_buffers = [] if arena.host is None else [(arena.buffer, arena.host)]
        return {k: Memory(arena.buffer, at) for k, at in self.plan.memory.offsets.items()}

    def _borrow(self) -> None:
        """Have an arena, with this state's borders in it."""
        arena = self._arena
        if arena is None:
            arena = self._arena = self._arenas.take(self.device, self.plan.memory.total)
        if arena is not self._known:
            with self._arenas.lock:
                self.memory = self._own = self._lies_in(arena)
                self._seen = dict(self._views())
                self._ready_for = None  # arguments are set again
                self._known = arena
        if arena.filled_for is not self._token:
            arena.filled_for = None
            for ready in self._first():
                self.enqueue(ready)
            self.queue.finish()  # before the host writes inputs
            arena.filled_for = self._token

    def _give_back(self) -> None:
        """Let others have the arena. It is in one place at a time, wherever an exception comes."""
        arena, self._arena = self._arena, None
        if arena is not None:
            self._arenas.idle.append(arena)

    def _drop(self) -> None:
        self._known = None
        self._host_buffers, self._seen = [], {}
        self.memory = self._own = {}
        self.launches, self._enqueues = [], []
        self._ready_for = None

"""Runs in the thread that calls, with PoCL's threads for help while calls follow each other closely.

To wake a thread of PoCL's takes longer than a small network runs, and so does to sleep until others have run it. So
where calls come one after another, some of PoCL's threads stay awake behind each for as long as waking takes, about,
and share the next one with the thread that calls: both of PoCL's CPU devices run the same kernel in the same memory
(clnn.codegen.helped_kernel). They leave as soon as calls pause. Calls of others run as without: in the thread that
calls alone, or on all of PoCL's threads. Where these were sent for, a call begins in the thread that calls, and they
join it: one that waited for its end on PoCL's threads would have a thread less, and leave before.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from operator import attrgetter
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np

from clnn.codegen.kernels import (
    ALL,
    CALLER,
    CALLS,
    COUNTERS,
    DESK,
    HELPS,
    KERNEL,
    PRESENT,
    ROLE,
    TICKS,
    WAITS,
    FusedKernel,
)
from clnn.errors import ClnnError
from clnn.logs import log
from clnn.records import dataclass
from clnn.runtime.build.program import Device
from clnn.runtime.drivers.loader import load
from clnn.runtime.drivers.pages import host_buffer
from clnn.runtime.process.forked import keep
from clnn.runtime.run.arguments import set_arguments
from clnn.types import Array

CLOSE_NS = 200_000  # from a call's end to the next, where they follow each other closely
STAYS = 2**19  # ticks of the processor's clock that helpers stay for behind a call: about as long
TURN = 2  # times as long from a loop's turn to the next, of which the host has a part, and which come by the dozen
MOST_HELPERS = 3
MOST_ATTEMPTS = 3  # to make helpers ready
MOST_SKIPPED = 100  # calls for which nobody is sent, after some in vain
AFTER = 16  # calls that follow each other closely before threads are woken, which takes as long as they gain
GROUP = Path("/sys/fs/cgroup/cpu.max")
_sent: list[weakref.ref[Helpers]] = []  # those of the process that were sent for last


@dataclass(frozen=True)
class Launch:
    """A network's one kernel as a state has it: its arguments by name, for all, and the queue.

    hosts: buffers, and the host's memory that they are. times: as long as elsewhere calls may be apart.
    """

    device: Device
    queue: Any
    whole: FusedKernel
    args: Mapping[str, Any]
    hosts: Sequence[tuple[Any, Array | None]]
    times: int = 1

    def kernel(self, device: Device, args: Mapping[str, Any], role: int, ticks: int = 0) -> Any:
        """Return the kernel on a device, in one of its ways."""
        given = {**args, ROLE: np.int32(role), TICKS: np.uint32(ticks)}
        kernel = device.kernel(self.whole.source, KERNEL)
        set_arguments(kernel, (given[name] for name in self.whole.params))
        return kernel

    @property
    def _memory(self) -> dict[int, Array]:
        """The host's memory by the identity of its buffer."""
        return {id(buffer): host for buffer, host in self.hosts if host is not None}

    @property
    def is_of_hosts(self) -> bool:
        """Whether all of its memory is the host's."""
        buffers = [arg for arg in self.args.values() if isinstance(arg, load().Buffer)]
        return all(id(buffer) in self._memory for buffer in buffers)

    def args_on(self, other: Device) -> dict[str, Any]:
        """Return the arguments on another device, in the same memory."""
        theirs = {key: host_buffer(other.context, host) for key, host in self._memory.items()}
        return {name: theirs.get(id(arg), arg) for name, arg in self.args.items()}

    @property
    def desk(self) -> Array:
        """What caller and helpers tell each other."""
        counters = self._memory[id(self.args[COUNTERS])].view(np.int32)
        return counters[self.whole.counters - DESK : self.whole.counters]


class Helped:
    """Runs the one kernel of a network, which can be helped."""

    def __init__(self, launch: Launch) -> None:
        self._launch, self._queue = launch, launch.queue
        self._helpers: Helpers | None = None
        self._ended = self._close = 0
        self._attempts, self._near = 0, launch.times * CLOSE_NS
        enqueue, device, whole = load().enqueue_nd_range_kernel, launch.device, launch.whole
        in_caller = device.info.in_caller
        kernel = launch.kernel(device, launch.args, CALLS if in_caller else ALL)
        groups = 1 if in_caller else whole.groups
        self._alone = partial(enqueue, launch.queue, kernel, (groups,), (1,))

    def __call__(self) -> None:
        """Run the kernel, and wait for it."""
        is_close = perf_counter_ns() - self._ended < self._near
        helpers = self._helpers
        self._close = self._close + 1 if is_close else 0
        if helpers is not None and helpers.present:
            helpers.share()
            helpers.failed = 0
        else:
            self._run(helpers)
            if self._close >= AFTER:
                self._send(helpers)
        self._ended = perf_counter_ns()

    def _run(self, helpers: Helpers | None) -> None:
        """Run the kernel while nobody is there: in the thread that calls where others are to come."""
        if helpers is not None and helpers.come:
            helpers.share()
        else:
            self._alone()
            self._queue.finish()

    def _send(self, helpers: Helpers | None) -> None:
        """Have helpers there for the next call, after they were made ready once."""
        if helpers is not None:
            helpers.send()
        elif self._attempts < MOST_ATTEMPTS:
            self._attempts, self._close = self._attempts + 1, 0
            self._helpers = _made(self._launch)


class Helpers:
    """PoCL's threads that help the thread that calls.

    share: runs the kernel in the thread that calls, in a run that they join. enqueue: has them come, from `queue`.
    desk: what they tell, in the host's memory. held: what must stay while they are there.
    """

    # Memory that they look at must not go before them.
    __del__ = property(attrgetter("queue.finish"))

    def __init__(
        self,
        share: Callable[[], None],
        enqueue: Callable[[], Any],
        queue: Any,
        desk: Array,
        held: object,
    ) -> None:
        keep(self)
        self.share, self._enqueue, self.queue, self._held = share, enqueue, queue, held
        self._desk: Any = memoryview(desk)  # type: ignore[arg-type]
        self._event: Any = None
        self.failed = self._skipped = 0  # calls to leave out after attempts in vain

    @property
    def present(self) -> bool:
        """Whether any are there."""
        return bool(self._desk[PRESENT])

    @property
    def come(self) -> bool:
        """Whether they were sent for, and have not left."""
        done = load().command_execution_status.COMPLETE
        return self._event is not None and self._event.command_execution_status != done

    def send(self) -> None:
        """Have them come for the next call, unless they or others' are about.

        Where that was in vain, as processors are busy, the next attempts are ever fewer.
        """
        self._skipped += 1
        if self._skipped < self.failed or self._are_about():
            return
        self.failed, self._skipped = min(2 * self.failed + 1, MOST_SKIPPED), 0
        _sent[:] = [weakref.ref(self)]
        self._desk[CALLER], self._desk[WAITS] = processor(), 1
        try:
            self._event = self._enqueue()
            self.queue.flush()
        except load().Error as err:
            log.info("a call is not helped: %s", err)

    def _are_about(self) -> bool:
        if self.come:
            return True
        others = [ref() for ref in _sent]
        return any(other is not self and other.present for other in others if other is not None)


def _made(launch: Launch) -> Helpers | None:
    """Return the helpers of a kernel, None where there can be none."""
    if _few_processors(launch.device) or not launch.is_of_hosts:
        return None
    in_caller = launch.device.info.in_caller
    # Where they differ, this thread has moved since its last run, or kernels do not see where they run.
    if in_caller and int(launch.desk[CALLER]) != processor():
        return None
    from clnn.runtime.build.twin import sampled, twin_of  # few programs call so closely

    try:
        other = twin_of(launch.device, launch.whole.source)
        if other is None or not (in_caller or sampled(other) == processor()):
            return None
        return _between(launch, other)
    except (ClnnError, load().Error, MemoryError) as err:
        log.info("calls run without helpers: %s", err)
        return None


def processor() -> int:
    """Return the processor that this thread runs on, -1 where the system does not tell."""
    tell = getattr(ctypes.CDLL(None), "sched_getcpu", None)
    return -1 if tell is None else int(tell())


def _few_processors(device: Device) -> bool:
    """Whether this process may use fewer processors than PoCL has threads, or that is not known."""
    known = hasattr(os, "sched_getaffinity") and processor() >= 0
    units = device.info.compute_units
    return not known or len(os.sched_getaffinity(0)) < units or allowance() < units


def allowance() -> float:
    """Return how many processors' time a group of processes may take, as Linux has it for this process's."""
    with suppress(OSError, ValueError):
        quota, period = GROUP.read_text().split()
        return int(quota) / int(period) if quota != "max" else inf
    return inf


def _between(launch: Launch, other: Device) -> Helpers:
    """Return helpers for a kernel on both of PoCL's devices, of which the launch has one."""
    cl, device = load(), launch.device
    args = launch.args_on(other)
    ways = [(device, launch.args), (other, args)]
    caller, threads = ways if device.info.in_caller else ways[::-1]
    calls, queue = launch.kernel(*caller, CALLS), launch.queue
    at = queue if device.info.in_caller else cl.CommandQueue(other.context)
    enqueue, count = cl.enqueue_nd_range_kernel, min(device.info.compute_units, MOST_HELPERS + 1)

    def share() -> None:
        if at is not queue:
            queue.finish()  # what copies inputs
        enqueue(at, calls, (1,), (1,))
        at.finish()

    own, helps = (
        cl.CommandQueue(threads[0].context),
        launch.kernel(*threads, HELPS, launch.times * STAYS),
    )
    come = partial(enqueue, own, helps, (count,), (1,))
    return Helpers(share, come, own, launch.desk, (launch, args, other))

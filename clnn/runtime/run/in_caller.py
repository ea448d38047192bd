"""Runs of small shapes in the thread that calls, by kernels that sessions of many shapes have for PoCL's threads.

To wake threads takes longer than such a run. Sessions of one network at several shapes share kernels, which
are built for threads, as larger shapes need these. The same machine code runs in the thread that calls, too, in the
same memory (clnn.runtime.build.twin): a fused kernel as one work-group, which gets through alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from clnn.codegen.kernels import (
    CALLS,
    COUNTERS,
    KERNEL,
    NUMBERS,
    ROLE,
    SCRATCH,
    TICKS,
    FusedKernel,
    as_ints,
    input_names,
    text_of,
)
from clnn.errors import ClnnError
from clnn.logs import log
from clnn.plan.plan import ConstArg, Plan, PlannedArg, PlannedLaunch, ScratchArg
from clnn.records import dataclass
from clnn.runtime.build.program import Device
from clnn.runtime.drivers.loader import load
from clnn.runtime.drivers.pages import host_buffer, pages
from clnn.runtime.run.arguments import Place, in_order, scalar, set_arguments
from clnn.runtime.run.commands import Memory
from clnn.runtime.run.constants import ALIGNMENT, Constants
from clnn.runtime.run.fused_launch import (
    ARENA,
    CONSTANTS,
    OWN_CONSTANTS,
    FusedLaunch,
    FusedLaunches,
)
from clnn.types import Array

PATIENCE = 4  # calls of a shape before its kernels are loaded a second time


@dataclass(frozen=True)
class Held:
    """What a state runs with: constants, the arena's memory on the host, and where storages lie in it."""

    plan: Plan
    constants: Constants
    arena: Array
    memory: Mapping[str, Memory]

    @staticmethod
    def of(
        plan: Plan,
        constants: Constants,
        hosts: Sequence[tuple[Any, Array | None]],
        memory: Mapping[str, Memory],
        bound: Mapping[str, Memory],
    ) -> Held | None:
        """Return that, None where not all of it is the host's, in one arena. hosts: of the arena."""
        lent = [*hosts, *constants.hosts]
        of_host = all(host is not None for buffer, host in lent if buffer is not None)
        arena = hosts[0][1] if len(hosts) == 1 else None
        return (
            None if arena is None or bound or not of_host else Held(plan, constants, arena, memory)
        )


class InCaller:
    """Does a state's launches in place of its device's threads, once some calls were made.

    fused: the launches. threads: calls that enqueue them on `queue`. held: what they work on.
    """

    def __init__(
        self,
        device: Device,
        queue: Any,
        fused: FusedLaunches,
        threads: Sequence[Callable[[], object]],
        held: Held,
    ) -> None:
        self._device, self._queue, self._held = device, queue, held
        self._launches = [one for one in fused.run if not one.idle]
        self._threads, self._left = threads, PATIENCE
        self._enqueues: Sequence[Callable[[], object]] | None = None
        self._finish: Callable[[], object] = bool
        self._there: _There | None = None

    def __call__(self) -> None:
        """Do all launches, and wait for them."""
        if self._enqueues is None and self._left:
            self._left -= 1
            if self._left == 0:
                self._make()
        if self._enqueues is None:
            for enqueue in self._threads:
                enqueue()
        else:
            self._queue.finish()  # what copies inputs
            for enqueue in self._enqueues:
                enqueue()
        self._finish()

    def _make(self) -> None:
        """Make the launches for the thread that calls, where the driver takes the programs there."""
        from clnn.runtime.build.twin import twin_of  # most programs end before

        try:
            sources = {source for one in self._launches for source in one.sources}
            other = twin_of(self._device, *sources)
            if other is not None:
                self._there = _There(other, self._held)
                self._enqueues, self._finish = _made(self._there, self._launches)
        except (ClnnError, load().Error, MemoryError) as err:
            log.info("calls stay on the device's threads: %s", err)


def sooner(
    device: Device,
    queue: Any,
    fused: FusedLaunches,
    threads: Sequence[Callable[[], object]],
    held: Held | None,
) -> list[Callable[[], object]]:
    """Return what does a state's small run in the thread that calls, `threads` where that cannot be."""
    return [*threads] if held is None else [InCaller(device, queue, fused, threads, held)]


def _made(
    there: _There, launches: Sequence[FusedLaunch]
) -> tuple[Sequence[Callable[[], object]], Callable[[], object]]:
    """Return what enqueues launches on the device that runs them at once, and what waits for them."""
    cl = load()
    queue, enqueue = cl.CommandQueue(there.context), cl.enqueue_nd_range_kernel
    made: list[Callable[[], object]] = []
    for one in launches:
        if one.kernel is not None:
            made.append(partial(enqueue, queue, there.fused(one.kernel), (1,), (1,)))
        else:
            launch = one.launches[0].launch
            how = launch.launch.global_size, launch.launch.local_size
            made.append(partial(enqueue, queue, there.alone(launch), *how))
    return made, queue.finish


class _There:
    """Kernels on another device, with arguments in the same memory of the host.

    Kernels refer to buffers without holding them, so this has to stay.
    """

    def __init__(self, device: Device, held: Held) -> None:
        self._device, self._held, self.context = device, held, device.context
        self._buffers: list[Any] = []
        self._arena = self._buffer(held.arena)
        self._constants = [
            None if host is None else self._buffer(host) for _, host in held.constants.hosts
        ]

    def _buffer(self, host: Array) -> Any:
        self._buffers.append(host_buffer(self.context, host))
        return self._buffers[-1]

    def fused(self, whole: FusedKernel) -> Any:
        """Return a fused kernel, which is to run as one work-group."""
        kernel, given = self._device.kernel(whole.source, KERNEL), self._given(whole)
        set_arguments(kernel, (given[name] for name in whole.params))
        return kernel

    def _given(self, whole: FusedKernel) -> dict[str, Any]:
        held = self._held
        first, own = (*self._constants, None)[:2]
        args = {
            COUNTERS: self._zeros(4 * whole.counters),
            SCRATCH: self._zeros(whole.scratch),
            ARENA: self._arena,
            CONSTANTS: first,
            OWN_CONSTANTS: own,
            ROLE: np.int32(CALLS),
            TICKS: np.uint32(0),
        }
        if whole.numbers is not None:
            args[NUMBERS] = self._holding(np.array(as_ints(whole.numbers) or [0], np.int32))
        for k, port in enumerate(held.plan.inputs):
            where = held.memory[held.plan.placed[port.value].storage]
            values = self._arena, np.int32(where.start), np.int32(0)
            args |= dict(zip(input_names(k), values, strict=True))
        return args

    def alone(self, planned: PlannedLaunch) -> Any:
        """Return the kernel of a launch that is not fused."""
        text = text_of(planned.launch)
        kernel = self._device.kernel(text.source, text.name)
        more = [scalar(number) for number in text.numbers]
        set_arguments(kernel, [*in_order(self._places(planned.args), np.int32), *more])
        return kernel

    def _places(self, args: Iterable[PlannedArg]) -> list[Place]:
        return [self._place_of(arg) for arg in args]

    def _place_of(self, arg: PlannedArg) -> Place:
        held = self._held
        if isinstance(arg, ConstArg):
            return self._constant(arg), None
        if isinstance(arg, ScratchArg):
            return self._arena, held.memory[arg.key].start // arg.itemsize
        if arg.storage in held.plan.consts:
            return self._constant(arg), arg.offset
        itemsize = held.plan.storages[arg.storage].dtype.itemsize
        return self._arena, held.memory[arg.storage].start // itemsize + arg.offset

    def _constant(self, arg: Any) -> Any:
        """Return the buffer that a constant begins."""
        page = self._held.constants.place(arg)
        _, host = self._held.constants.hosts[page < 0]
        at = (~page if page < 0 else page) * ALIGNMENT
        assert host is not None
        return self._buffer(host[at:])

    def _zeros(self, nbytes: int) -> Any:
        return self._buffer(pages(max(nbytes, 4)))

    def _holding(self, data: Array) -> Any:
        host = pages(data.nbytes)
        host[: data.nbytes].view(data.dtype)[:] = data
        return self._buffer(host)

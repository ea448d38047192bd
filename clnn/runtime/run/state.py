"""Execution state: buffers, kernels with their arguments set, and a queue, for one caller."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from time import perf_counter_ns
from types import MappingProxyType
from typing import Any

import numpy as np

from clnn.codegen.kernels import (
    ALL,
    COUNTERS,
    KERNEL,
    MOST_INPUTS,
    NUMBERS,
    ROLE,
    SCRATCH,
    STAMPS,
    TICKS,
    FusedKernel,
    as_ints,
    input_names,
    text_of,
)
from clnn.plan.plan import ConstArg, Plan, PlannedArg, PlannedLaunch, ScratchArg
from clnn.runtime.build.program import Device
from clnn.runtime.drivers.eventless import launch_on
from clnn.runtime.drivers.loader import load
from clnn.runtime.drivers.pages import LARGE, host_buffer, pages
from clnn.runtime.process.forked import keep
from clnn.runtime.run.arena import one_arena
from clnn.runtime.run.arguments import Place, at_once, in_order, plain, scalar, set_arguments
from clnn.runtime.run.commands import NOT_HANDED, Enqueue, Handed, Memory, RunEvents
from clnn.runtime.run.constants import Constants, allocate
from clnn.runtime.run.fused_launch import (
    ARENA,
    CONSTANTS,
    OWN_CONSTANTS,
    FusedLaunch,
    FusedLaunches,
)
from clnn.runtime.run.given import given_inputs, leave
from clnn.runtime.run.helped import TURN, Helped, Launch
from clnn.types import Array

POISON = 0xFF  # NaN in floats, -1 in integers


class ExecutionState:
    """What one running inference needs for itself; never used by two callers at once.

    An exception of another's making, such as KeyboardInterrupt, may leave a run at any place. So a
    run notes that it runs before it begins, and the next one waits for what is still computing.
    bound: memory of inputs that are not uploaded, by name. A run is told which are, and reads the
    others that way from then on where this mapping is another than before. watch: does what waits
    for the device, when others than `run` and `run_timed` do (see clnn.runtime.run.watch).
    """

    queue: Any = None
    # Storages that lie in memory of a caller, and the nodes that are left out for it.
    elsewhere: Mapping[str, Memory] = MappingProxyType({})
    left_out: frozenset[str] = frozenset()
    watch: Any = staticmethod(at_once)
    may_be_helped = True
    # Memory that a device works on must not go with the state. No line of Python is run for this,
    # which another exception could come before.
    __del__ = property(attrgetter("queue.finish"))

    def __init__(
        self,
        device: Device,
        plan: Plan,
        constants: Constants,
        bound: Mapping[str, Memory],
        fused: FusedLaunches | None = None,
        profiling: bool = False,
    ) -> None:
        cl = load()
        keep(self)
        self.device, self.plan, self.constants, self._fused = device, plan, constants, fused
        flags = cl.command_queue_properties.PROFILING_ENABLE if profiling else 0
        self.queue = cl.CommandQueue(device.context, properties=flags)
        self._running = True
        self._host_buffers: list[tuple[Any, Array]] = []
        self._shared: list[tuple[Any, Array]] = []  # that helpers see besides
        self.memory = self._own = self._allocate()
        self._seen = dict(self._views())
        self._kernels: dict[int, Any] = {}
        self._extra: dict[FusedLaunch, tuple[Any, Any]] = {}
        self._numbers: dict[FusedLaunch, Any] = {}
        outputs = {p.host: p.type for p in plan.outputs}
        self._shown = [value for value in outputs if value in self._seen]
        self._fetched = [pair for pair in outputs.items() if pair[0] not in self._seen]
        self._rebind(bound)
        for ready in self._first():
            self.enqueue(ready)
        self.finish()

    def _allocate(self) -> dict[str, Memory]:
        """Return storage or scratch key -> memory; one arena, poisoned when guards are on."""
        plan = self.plan
        if not one_arena(plan, self.device):
            return {k: Memory(self._filled(n), plan.guard) for k, n in plan.block_bytes.items()}
        arena = self._filled(plan.memory.total)
        return {k: Memory(arena, at + plan.guard) for k, at in plan.memory.offsets.items()}

    def _buffer(self, nbytes: int) -> Any:
        cl = load()
        return allocate(
            lambda: cl.Buffer(self.device.context, cl.mem_flags.READ_WRITE, max(nbytes, 4)),
            nbytes,
            self.device,
        )

    def _filled(self, nbytes: int) -> Any:
        """Return a buffer of zeros, of poison where there are guards."""
        info = self.device.info
        in_place = info.type == "cpu" and (nbytes >= LARGE or info.caps.host_memory)
        if in_place and not self.plan.guard:
            self._host_buffers.append(
                allocate(lambda: self._host_buffer(nbytes), nbytes, self.device)
            )
            return self._host_buffers[-1][0]
        buffer = self._buffer(nbytes)
        pattern = np.uint8(POISON if self.plan.guard else 0)
        load().enqueue_fill_buffer(self.queue, buffer, pattern, 0, max(nbytes, 4))
        return buffer

    def _host_buffer(self, nbytes: int) -> tuple[Any, Array]:
        """Return a buffer of zeros and the host's memory that it is."""
        host = pages(nbytes)
        return host_buffer(self.device.context, host), host

    def _views(self) -> Iterator[tuple[str, Array]]:
        """Yield inputs and outputs that lie in memory which the device shares with the host."""
        if not self.device.info.caps.host_memory:
            return
        for port in (*self.plan.inputs, *self.plan.outputs):
            where, start = self._place(port.host)
            host = next((h for buffer, h in self._host_buffers if buffer is where.buffer), None)
            if host is not None and port.type.size:
                flat = host[start : start + port.type.nbytes].view(port.type.dtype.numpy)
                yield port.host, flat.reshape(port.type.shape)

    def _first(self) -> list[Enqueue]:
        """Return what fills borders once."""
        if self._fused is not None:
            return [self._ready_fused(one) for one in self._fused.first if not one.idle]
        fills = self.plan.first_fills
        return [self._ready(planned, "border") for planned in fills if not planned.idle]

    def _ready_fused(self, fused: FusedLaunch) -> Enqueue:
        """Return a fused kernel with its arguments set, or its one launch."""
        whole = fused.kernel
        if whole is None:
            return self._ready(fused.launches[0].launch, fused.launches[0].node)
        kernel = self._kernel(fused, whole.source, KERNEL)
        args = self._fused_arguments(fused, whole)
        set_arguments(kernel, (args[name] for name in whole.params))
        cached = whole.source in self.device.from_cache
        groups = (whole.groups_on(self.device.info.in_caller),)
        ready = Enqueue(kernel, groups, (1,), fused.launches[0].node, fused.title, cached)
        if not whole.stamps:
            return ready
        ready.parts = tuple(
            Enqueue(
                kernel,
                launch.global_size,
                launch.local_size,
                one.node,
                str(launch.params["name"]),
                cached,
            )
            for one in fused.launches
            for launch in (one.launch.launch,)
        )
        ready.stamps = args[STAMPS], (len(ready.parts), whole.groups, 2)
        return ready

    def _fused_arguments(self, fused: FusedLaunch, whole: FusedKernel) -> dict[str, Any]:
        """Return the arguments of a fused kernel by the names of its parameters."""
        if fused not in self._extra:
            self._extra[fused] = self._extra_of(whole)
        counters, scratch = self._extra[fused]
        arena = next((memory.buffer for memory in self._own.values()), None)
        args = {COUNTERS: counters, SCRATCH: scratch, ARENA: arena, CONSTANTS: self.constants.whole}
        if whole.numbers is not None:
            args[OWN_CONSTANTS] = self.constants.own
            if fused not in self._numbers:
                ints = np.array(as_ints(whole.numbers) or [0], np.int32)
                self._numbers[fused] = self._holding(ints, whole.is_helped)
            args[NUMBERS] = self._numbers[fused]
        if whole.is_helped:
            args |= {ROLE: np.int32(ALL), TICKS: np.uint32(0)}
        if whole.stamps:
            args[STAMPS] = self._zeros(whole.stamps, np.uint64)
        for k, port in enumerate(self.plan.inputs):
            where = self.memory[self.plan.placed[port.value].storage]
            values = where.buffer, np.int32(where.start), np.int32(port.name in self.bound)
            args |= dict(zip(input_names(k), values, strict=True))
        for k in range(len(self.plan.inputs), MOST_INPUTS):  # which the universal set has anyway
            args |= dict(zip(input_names(k), (arena, np.int32(0), np.int32(0)), strict=True))
        return args

    def _extra_of(self, whole: FusedKernel) -> tuple[Any, Any]:
        """Return a fused kernel's counters and scratch memory, the host's where helpers are to see them."""
        sizes = 4 * whole.counters, whole.scratch * whole.groups
        if whole.is_helped and self.device.info.caps.host_memory:
            made = [self._seen_by_helpers(n) for n in sizes]
            return made[0][0], made[1][0]
        return self._zeros(whole.counters, np.int32), self._buffer(sizes[1])

    def _seen_by_helpers(self, nbytes: int) -> tuple[Any, Array]:
        """Return a buffer of zeros that helpers see, and the host's memory that it is."""
        self._shared.append(allocate(partial(self._host_buffer, nbytes), nbytes, self.device))
        return self._shared[-1]

    def _zeros(self, count: int, dtype: Any) -> Any:
        """Return a buffer of zeros."""
        return self._holding(np.zeros(count, dtype))

    def _holding(self, data: Array, is_helped: bool = False) -> Any:
        """Return a buffer that begins with this data. is_helped: helpers are to see it, too."""
        if is_helped and self.device.info.caps.host_memory:
            buffer, host = self._seen_by_helpers(data.nbytes)
            host[: data.nbytes].view(data.dtype)[:] = data
            return buffer
        cl = load()
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        return allocate(
            lambda: cl.Buffer(self.device.context, flags, hostbuf=data), data.nbytes, self.device
        )

    def _prepare(self) -> None:
        """Set the launches of a run, and calls that enqueue them."""
        kind, self.launches = self.device.info.type, self._launches()
        self._enqueues: list[Callable[[], object]] = [
            launch_on(kind, self.queue, ready.kernel, ready.global_size, ready.local_size)
            for ready in self.launches
        ]
        self._given = given_inputs(self, self._fused)
        self._help()

    def _help(self) -> None:
        """Have the one kernel of a run be helped, where it can be."""
        fused, is_one = self._fused, len(self.launches) == 1
        alone = is_one and not self.bound and self.may_be_helped
        if fused is not None and fused.is_small and self.may_be_helped and not self.elsewhere:
            from clnn.runtime.run.in_caller import Held, sooner  # most programs end without

            lies = self.plan, self.constants, self._host_buffers, self.memory, self.bound
            self._enqueues = sooner(self.device, self.queue, fused, self._enqueues, Held.of(*lies))
        if fused is None or fused.is_long or not alone:
            return
        one = next(one for one in fused.run if not one.idle)
        if one.kernel is not None and one.kernel.is_helped:
            what = self.device, self.queue, one.kernel, self._fused_arguments(one, one.kernel)
            hosts = [*self._host_buffers, *self._shared, *self.constants.hosts]
            self._enqueues = [Helped(Launch(*what, hosts, TURN if fused.in_turns else 1))]

    def _launches(self) -> list[Enqueue]:
        if self._fused is not None:
            return [self._ready_fused(one) for one in self._fused.run if not one.idle]
        skipped = {f"io:{name}" for name in self.bound} | self.left_out
        return [
            self._ready(planned, step.node.layer)
            for step in self.plan.scheduled
            if step.node.name not in skipped
            for planned in (*step.fills, *step.launches)
            if not planned.idle
        ]

    def _kernel(self, what: FusedLaunch | PlannedLaunch, source: str, name: str) -> Any:
        """Return the kernel of a launch of the plan, which is made once."""
        kernel = self._kernels.get(id(what))
        if kernel is None:
            kernel = self._kernels[id(what)] = self.device.kernel(source, name)
        return kernel

    def _ready(self, planned: PlannedLaunch, node: str) -> Enqueue:
        launch = planned.launch
        text = text_of(launch)
        kernel = self._kernel(planned, text.source, text.name)
        more = [scalar(number) for number in text.numbers]
        set_arguments(kernel, [*in_order(map(self._place_of, planned.args), np.int32), *more])
        return Enqueue(
            kernel,
            launch.global_size,
            launch.local_size,
            node,
            str(launch.params["name"]),
            text.source in self.device.from_cache,
        )

    def _place_of(self, arg: PlannedArg) -> Place:
        """Return where an argument lies."""
        if isinstance(arg, ConstArg):
            return self.constants.buffer(arg), None
        if isinstance(arg, ScratchArg):
            where = self.memory[arg.key]
            return where.buffer, where.start // arg.itemsize
        if arg.storage in self.plan.consts:
            return self.constants.buffer(arg), arg.offset
        where = self.memory[arg.storage]
        itemsize = self.plan.storages[arg.storage].dtype.itemsize
        return where.buffer, where.start // itemsize + arg.offset

    def begin(self, bound: Mapping[str, Memory]) -> None:
        """Get ready for a run: wait for one that was left early, and read what is bound."""
        if self._running:
            self.queue.finish()
            leave(self._given)
        self._running = True
        if bound is not self._ready_for:
            self._rebind(bound)

    def finish(self) -> None:
        """Wait for the run."""
        self.queue.finish()
        self._running = False

    def _rebind(self, bound: Mapping[str, Memory]) -> None:
        """Read inputs from memory that is laid out as the network wants, and upload the others."""
        self._ready_for: Mapping[str, Memory] | None = None
        ports = {p.name: p for p in self.plan.inputs}
        places = {self.plan.placed[ports[n].value].storage: m for n, m in bound.items()}
        self.memory = {**self._own, **self.elsewhere, **places}
        self.bound = bound
        self._prepare()
        self._ready_for = bound

    def enqueue(self, ready: Enqueue, waits: Sequence[Any] | None = None) -> Any:
        """Enqueue one launch, behind the events `waits` too; returns its event."""
        return load().enqueue_nd_range_kernel(
            self.queue, ready.kernel, ready.global_size, ready.local_size, wait_for=waits
        )

    def upload(self, value: str, array: Array) -> Any:
        """Copy a dense host array to a value's storage; return the event, None without elements."""
        cl = load()
        where, start = self._place(value)
        if not array.size:
            return None
        return cl.enqueue_copy(
            self.queue, where.buffer, plain(array), dst_offset=start, is_blocking=False
        )

    def download(self, value: str, out: Array, wait: bool = True) -> Any:
        """Copy a dense value to a host array, and wait for it; return as upload does."""
        cl = load()
        where, start = self._place(value)
        if not out.size:
            return None
        return cl.enqueue_copy(
            self.queue, plain(out), where.buffer, src_offset=start, is_blocking=wait
        )

    def copy(self, value: str, other: Memory, nbytes: int, *, inwards: bool) -> Any:
        """Copy a dense value from other device memory, or to it; return the event."""
        where, start = self._place(value)
        here = Memory(where.buffer, start)
        source, target = (other, here) if inwards else (here, other)
        offsets = {"src_offset": source.start, "dst_offset": target.start}
        return load().enqueue_copy(
            self.queue, target.buffer, source.buffer, byte_count=nbytes, **offsets
        )

    def _place(self, value: str) -> tuple[Memory, int]:
        placed = self.plan.placed[value]
        where = self.memory[placed.storage]
        itemsize = self.plan.storages[placed.storage].dtype.itemsize
        return where, where.start + placed.layout.offset * itemsize

    def run(
        self,
        feeds: Mapping[str, Array],
        bound: Mapping[str, Memory],
        handed: Handed = NOT_HANDED,
    ) -> dict[str, Array]:
        """Copy `feeds` (host value -> array) in, run every launch, return copies of all outputs.

        handed: inputs that are not in `feeds`, and outputs that are not returned. Nothing else may run
        meanwhile: what is shared with the host is written and read directly.
        The device's threads have taken the nearest caches, so each line here costs microseconds.
        """
        if self._running or bound is not self._ready_for:
            self.begin(bound)
        self._running = True
        seen, given = self._seen, self._given
        for value, array in feeds.items():
            if value in given and given[value].take(array):
                pass
            elif value in seen:
                seen[value][...] = array
            else:
                self.upload(value, array)
        taken, kept = handed.taken, handed.kept
        if taken:
            for value, (memory, nbytes) in taken.items():
                self.copy(value, memory, nbytes, inwards=True)
        for enqueue in self._enqueues:
            enqueue()
        outs: dict[str, Array] = {}
        if kept or self._fetched:
            for value, (memory, nbytes) in kept.items():
                self.copy(value, memory, nbytes, inwards=False)
            fetched = [pair for pair in self._fetched if pair[0] not in kept]
            outs = {value: np.empty(kind.shape, kind.dtype.numpy) for value, kind in fetched}
            for value, out in outs.items():
                self.download(value, out)
        self.queue.finish()
        leave(self._given)
        self._running = False
        for value in self._shown:
            if value not in kept:
                outs[value] = seen[value].copy()
        return outs

    def run_timed(
        self,
        feeds: Mapping[str, Array],
        outs: Mapping[str, Array],
        bound: Mapping[str, Memory],
        handed: Handed = NOT_HANDED,
    ) -> RunEvents:
        """Do what run does and return the events; the state must have been made for profiling."""
        self.begin(bound)
        began = perf_counter_ns()
        uploads = [(value, self.upload(value, array)) for value, array in feeds.items()]
        uploads += [(v, self.copy(v, *m, inwards=True)) for v, m in handed.taken.items()]
        launches = [(perf_counter_ns(), self.enqueue(ready)) for ready in self.launches]
        downloads = [(value, self.download(value, out)) for value, out in outs.items()]
        downloads += [(v, self.copy(v, *m, inwards=False)) for v, m in handed.kept.items()]
        self.finish()
        ended = perf_counter_ns()
        stamps = [self._noted(ready) for ready in self.launches]
        return RunEvents(began, ended, uploads, launches, downloads, stamps)

    def _noted(self, ready: Enqueue) -> Array | None:
        """Return what the work-groups of a finished launch noted."""
        if ready.stamps is None:
            return None
        buffer, shape = ready.stamps
        noted = np.empty(shape, np.uint64)
        load().enqueue_copy(self.queue, noted, buffer)
        return noted

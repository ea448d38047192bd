"""Execution state: buffers, kernels with their arguments set, and a queue, for one caller."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import numpy as np

from clnn.codegen.render import render
from clnn.errors import OutOfDeviceMemoryError
from clnn.layout import TensorLayout
from clnn.ops._base import Array
from clnn.plan.schedule import ConstArg, Plan, PlannedLaunch, Port, ScratchArg, TensorArg
from clnn.runtime.loader import load
from clnn.runtime.program import Device

LARGEST_ARENA = 2**31 - 1  # bytes; kernels take offsets as int
POISON = 0xFF  # NaN in floats, -1 in integers


@dataclass(frozen=True)
class Memory:
    """A device buffer and where in it, in bytes, something begins."""

    buffer: Any
    start: int


@dataclass
class Enqueue:
    """One launch ready to go: kernel with arguments set, its work sizes, and what it is.

    cached: whether its program came from the cache.
    """

    kernel: Any
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    node: str
    title: str
    cached: bool = False


@dataclass(frozen=True)
class RunEvents:
    """Events of one run: (value, event) of each copy, (time of the enqueue, event) of each launch.

    Times are time.perf_counter_ns of the host; `began` and `ended` bound the run.
    """

    began: int
    ended: int
    uploads: list[tuple[str, Any]]
    launches: list[tuple[int, Any]]
    downloads: list[tuple[str, Any]]


class Constants:
    """Packed weights and constant tensors on the device, shared by all states of a session."""

    def __init__(self, device: Device, plan: Plan) -> None:
        self._device = device
        self._packed: dict[int, Any] = {}
        self._keep: list[Callable[[], Array]] = []
        self._tensors = {
            name: self._upload(lay_out(array, plan.placed[name].layout))
            for name, array in plan.consts.items()
            if _is_read(plan, name)
        }

    def tensor(self, name: str) -> Any:
        """Return the buffer of a constant used as a tensor."""
        return self._tensors[name]

    def packed(self, make: Callable[[], Array]) -> Any:
        """Return the buffer of data that `make` returns; made and uploaded once."""
        if id(make) not in self._packed:
            self._keep.append(make)
            self._packed[id(make)] = self._upload(np.ascontiguousarray(make()))
        return self._packed[id(make)]

    def _upload(self, array: Array) -> Any:
        cl = load()
        flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
        data = array if array.size else np.zeros(1, array.dtype)
        return allocate(lambda: cl.Buffer(self._device.context, flags, hostbuf=data),
                        data.nbytes, self._device)  # fmt: skip


def _is_read(plan: Plan, name: str) -> bool:
    return any(
        isinstance(arg, TensorArg) and arg.storage == name
        for step in plan.steps
        for launch in step.launches
        for arg in launch.args
    )


def lay_out(array: Array, layout: TensorLayout, fill: float = 0.0) -> Array:
    """Return a flat array of the layout's storage with `array` placed in it."""
    flat = np.full(max(layout.size, 1), fill, dtype=array.dtype)
    view_of(flat, layout)[...] = array
    return flat


def view_of(flat: Array, layout: TensorLayout) -> Array:
    """Return the strided numpy view of `layout` over a flat storage array."""
    step = flat.itemsize
    if 0 in layout.shape:
        return np.empty(layout.shape, flat.dtype)
    return np.lib.stride_tricks.as_strided(
        flat[layout.offset :], layout.shape, tuple(p * step for p in layout.pitches)
    )


def allocate(make: Callable[[], Any], nbytes: int, device: Device) -> Any:
    """Return make()'s buffer. Raises OutOfDeviceMemoryError with what was asked and what there is."""
    cl = load()
    info = device.info
    try:
        if nbytes > info.max_alloc > 0:
            raise cl.MemoryError(f"{nbytes} bytes are over the device's limit for one buffer")
        return make()
    except (cl.MemoryError, cl.RuntimeError, cl.LogicError) as err:
        raise OutOfDeviceMemoryError(
            f"{info.title} gave no buffer of {nbytes} bytes ({err}): it has {info.global_mem} bytes "
            f"in all, {info.max_alloc} for one buffer. Use a smaller batch or image, or another device."
        ) from err


class ExecutionState:
    """What one running inference needs for itself; never used by two callers at once."""

    def __init__(
        self, device: Device, plan: Plan, constants: Constants, profiling: bool = False
    ) -> None:
        cl = load()
        self.device, self.plan, self.constants = device, plan, constants
        flags = cl.command_queue_properties.PROFILING_ENABLE if profiling else 0
        self.queue = cl.CommandQueue(device.context, properties=flags)
        self.memory = self._own = self._allocate()
        self.bound: dict[str, Memory] = {}
        self.launches = self._prepare()
        for planned in plan.first_fills:
            self.enqueue(self._ready(planned, "border"))
        self.queue.finish()

    def _allocate(self) -> dict[str, Memory]:
        """Return storage or scratch key -> memory; one arena, poisoned when guards are on."""
        cl = load()
        plan = self.plan

        def buffer(nbytes: int) -> Any:
            flags = cl.mem_flags.READ_WRITE
            made = allocate(lambda: cl.Buffer(self.device.context, flags, max(nbytes, 4)), nbytes,
                            self.device)  # fmt: skip
            pattern = np.uint8(POISON if plan.guard else 0)
            cl.enqueue_fill_buffer(self.queue, made, pattern, 0, max(nbytes, 4))
            return made

        if plan.separate or plan.memory.total > min(self.device.info.max_alloc, LARGEST_ARENA):
            return {k: Memory(buffer(n), plan.guard) for k, n in plan.block_bytes.items()}
        arena = buffer(plan.memory.total)
        return {k: Memory(arena, at + plan.guard) for k, at in plan.memory.offsets.items()}

    def _prepare(self) -> list[Enqueue]:
        found = []
        skipped = {f"io:{name}" for name in self.bound}
        for step in self.plan.steps:
            if step.node.name in skipped:
                continue
            for planned in step.fills:
                found.append(self._ready(planned, step.node.name))
            for planned in step.launches:
                found.append(self._ready(planned, step.node.name))
        return found

    def _ready(self, planned: PlannedLaunch, node: str) -> Enqueue:
        launch = planned.launch
        source = render(launch.template, launch.params)
        kernel = self.device.kernel(source, str(launch.params["name"]))
        args: list[Any] = []
        for arg in planned.args:
            args += self._arguments(arg)
        kernel.set_args(*args)
        return Enqueue(kernel, launch.global_size, launch.local_size, node,
                       str(launch.params["name"]), source in self.device.from_cache)  # fmt: skip

    def _arguments(self, arg: TensorArg | ConstArg | ScratchArg) -> list[Any]:
        if isinstance(arg, ConstArg):
            return [self.constants.packed(arg.make)]
        if isinstance(arg, ScratchArg):
            where = self.memory[arg.key]
            return [where.buffer, np.int32(where.start // 4)]
        if arg.storage in self.plan.consts:
            return [self.constants.tensor(arg.storage), np.int32(arg.offset)]
        where = self.memory[arg.storage]
        itemsize = self.plan.storages[arg.storage].dtype.itemsize
        return [where.buffer, np.int32(where.start // itemsize + arg.offset)]

    def bind(self, port: Port, memory: Memory) -> None:
        """Read an input from `memory`, laid out as the network wants, instead of uploading it."""
        self._rebind({**self.bound, port.name: memory})

    def unbind(self, port: Port) -> None:
        """Undo bind."""
        self._rebind({n: m for n, m in self.bound.items() if n != port.name})

    def _rebind(self, bound: dict[str, Memory]) -> None:
        self.queue.finish()
        ports = {p.name: p for p in self.plan.inputs}
        places = {self.plan.placed[ports[n].value].storage: m for n, m in bound.items()}
        self.memory = {**self._own, **places}
        self.bound = bound
        self.launches = self._prepare()

    def enqueue(self, ready: Enqueue) -> Any:
        """Enqueue one launch; returns its event."""
        return load().enqueue_nd_range_kernel(
            self.queue, ready.kernel, ready.global_size, ready.local_size
        )

    def upload(self, value: str, array: Array) -> Any:
        """Copy a dense host array to a value's storage; return the event, None without elements."""
        cl = load()
        where, start = self._place(value)
        if not array.size:
            return None
        return cl.enqueue_copy(self.queue, where.buffer, array, dst_offset=start, is_blocking=False)

    def download(self, value: str, out: Array) -> Any:
        """Copy a dense value to a host array and wait for it; return as upload does."""
        cl = load()
        where, start = self._place(value)
        if not out.size:
            return None
        return cl.enqueue_copy(self.queue, out, where.buffer, src_offset=start, is_blocking=True)

    def _place(self, value: str) -> tuple[Memory, int]:
        placed = self.plan.placed[value]
        where = self.memory[placed.storage]
        itemsize = self.plan.storages[placed.storage].dtype.itemsize
        return where, where.start + placed.layout.offset * itemsize

    def run(self, feeds: Mapping[str, Array], outs: Mapping[str, Array]) -> None:
        """Upload `feeds` (host value -> array), run every launch, download `outs`."""
        for value, array in feeds.items():
            self.upload(value, array)
        enqueue, queue = load().enqueue_nd_range_kernel, self.queue
        for ready in self.launches:
            enqueue(queue, ready.kernel, ready.global_size, ready.local_size)
        for value, out in outs.items():
            self.download(value, out)
        queue.finish()

    def run_timed(self, feeds: Mapping[str, Array], outs: Mapping[str, Array]) -> RunEvents:
        """Do what run does and return the events; the state must have been made for profiling."""
        began = perf_counter_ns()
        uploads = [(value, self.upload(value, array)) for value, array in feeds.items()]
        launches = [(perf_counter_ns(), self.enqueue(ready)) for ready in self.launches]
        downloads = [(value, self.download(value, out)) for value, out in outs.items()]
        self.queue.finish()
        return RunEvents(began, perf_counter_ns(), uploads, launches, downloads)

    def storage_bytes(self, key: str) -> Array:
        """Return all bytes of a storage with its guards (for checks)."""
        cl = load()
        where = self.memory[key]
        guard = self.plan.guard
        flat = np.empty(self.plan.block_bytes[key], np.uint8)
        start = where.start - guard
        cl.enqueue_copy(self.queue, flat, where.buffer, src_offset=start, is_blocking=True)
        return flat

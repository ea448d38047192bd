"""Runs whose inputs and outputs lie in memory of the caller, in the layouts of the network."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from clnn.errors import InputNameError, SettingError, ShapeError
from clnn.plan.plan import Plan, Port
from clnn.runtime.build.program import Device
from clnn.runtime.device.failures import explained
from clnn.runtime.drivers.loader import load
from clnn.runtime.drivers.pages import SMALL, host_buffer
from clnn.runtime.process.forked import keep
from clnn.runtime.run.commands import Memory
from clnn.runtime.run.constants import Constants, allocate
from clnn.runtime.run.feeds import arrays_of, names_message
from clnn.runtime.run.session import Session
from clnn.runtime.run.state import ExecutionState
from clnn.runtime.run.watch import watch_of
from clnn.types import Array


class InPlaceState(ExecutionState):
    """An execution state some of whose outputs are written to memory of the caller."""

    def __init__(
        self,
        device: Device,
        plan: Plan,
        constants: Constants,
        inputs: Mapping[str, Memory],
        outputs: Mapping[str, Memory],
    ) -> None:
        ports = [p for p in plan.outputs if p.name in outputs]
        self.elsewhere = {plan.placed[p.value].storage: outputs[p.name] for p in ports}
        self.left_out = frozenset(f"io:{p.name}" for p in ports if p.host != p.value)
        super().__init__(device, plan, constants, inputs)
        kept = {p.host for p in plan.outputs if p.name not in outputs}
        self._shown = [value for value in self._shown if value in kept]
        self._fetched = [pair for pair in self._fetched if pair[0] in kept]


class InPlaceRun:
    """A network bound to memory of the caller; made by `in_place`. Threads take turns.

    shared: the names of inputs and outputs whose memory the device works in; others are copied from
    and to it at each run.
    """

    def __init__(
        self,
        device: Device,
        plan: Plan,
        constants: Constants,
        memory: tuple[Mapping[str, Array], Mapping[str, Array]],
        timeout: float | None,
    ) -> None:
        keep(self)
        self._device, self._plan = device, plan
        self._lock, self._watch = threading.Lock(), watch_of(device, timeout)
        self._given, self._wanted = (dict(part) for part in memory)
        self.shared: set[str] = set()
        with explained(device, "the memory of a run in place"):
            self._watch(self._make, constants)

    def _make(self, constants: Constants) -> None:
        plan = self._plan
        self._inputs = self._buffers(plan.inputs, self._given)
        self._outputs = self._buffers(plan.outputs, self._wanted)
        self._state = InPlaceState(self._device, plan, constants, self._inputs, self._outputs)
        self._ports = {p.name: p for p in plan.inputs if p.name not in self._given}

    def _buffers(self, ports: tuple[Port, ...], arrays: Mapping[str, Array]) -> dict[str, Memory]:
        known = {p.name: p for p in ports}
        unknown = [name for name in arrays if name not in known]
        if unknown:
            raise InputNameError(names_message("input or output", unknown, [], list(known)))
        return {name: Memory(self._buffer(known[name], a), 0) for name, a in arrays.items()}

    def _buffer(self, port: Port, array: Array) -> Any:
        device, cl = self._device, load()
        need = self._plan.placed[port.value].layout.size * port.type.dtype.itemsize
        if array.dtype != np.uint8 or not array.flags.c_contiguous or array.size < need:
            raise ShapeError(
                f"memory of {port.name!r} is {array.dtype} {array.shape}, must be at least {need}"
                " contiguous bytes (uint8)."
            )
        info = device.info
        whole = array.ctypes.data % SMALL == 0 and array.flags.writeable
        if info.type == "cpu" and info.caps.host_memory and whole:
            self.shared.add(port.name)
            return allocate(lambda: host_buffer(device.context, array), array.nbytes, device)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        return allocate(
            lambda: cl.Buffer(device.context, flags, hostbuf=array), array.nbytes, device
        )

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """Run once; return the outputs that lie in no memory of the caller.

        feeds: the inputs that are not bound. Raises what a call of a session raises.
        """
        arrays = arrays_of(feeds, self._ports, self._given)
        with self._lock, explained(self._device, "a run in place"):
            outs: dict[str, Array] = self._watch(self._run, arrays)
        return {p.name: outs[p.host] for p in self._plan.outputs if p.name not in self._wanted}

    def _run(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        cl, state = load(), self._state
        for name, memory in self._inputs.items():
            if name not in self.shared:
                cl.enqueue_copy(state.queue, memory.buffer, self._given[name], is_blocking=False)
        outs = state.run(arrays, self._inputs)
        for name, memory in self._outputs.items():
            if name not in self.shared:
                cl.enqueue_copy(state.queue, self._wanted[name], memory.buffer)
        return outs


def in_place(
    session: Session, inputs: Mapping[str, Array], outputs: Mapping[str, Array]
) -> InPlaceRun:
    """Return what runs a session's network on memory of the caller.

    inputs, outputs: by name, contiguous bytes (uint8) that hold the layout which the plan has for the
    value (`plan.placed`), its padding included. Memory that begins at a page and that the device
    shares with the host is worked in; other memory is copied at each run. Not for sessions whose
    launches are fused (Options.merge). Raises InputNameError, ShapeError, SettingError,
    DeviceLostError, or OutOfDeviceMemoryError.
    """
    session._alive()
    if session._fused is not None:
        raise SettingError("launches are fused: compile with Options(merge=False) to run in place.")
    memory = inputs, outputs
    with session._device.lock:
        return InPlaceRun(session._device, session.plan, session._weights, memory, session._timeout)

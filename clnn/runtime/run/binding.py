"""Zero-copy input: a device buffer in the network's own padded layout that a caller fills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clnn.errors import DTypeError, ShapeError
from clnn.layout import TensorLayout, lay_out, view_of
from clnn.plan.plan import Plan, Port
from clnn.runtime.build.program import Device
from clnn.runtime.device.failures import explained
from clnn.runtime.drivers.loader import load
from clnn.runtime.process.forked import keep, refuse
from clnn.runtime.run.commands import Memory
from clnn.runtime.run.constants import allocate
from clnn.runtime.run.watch import watch_of
from clnn.types import Array


class InputBinding:
    """A padded device buffer that replaces one input of a session.

    layout: where element (i0, i1, ...) lies, in elements; the padding around it holds the value
    that the network wants and must not be changed. buffer: the pyopencl Buffer, to be written by
    kernels of the caller. map() gives the real elements as a numpy view of device memory.
    """

    def __init__(self, device: Device, plan: Plan, port: Port, timeout: float | None) -> None:
        keep(self)
        self.port, self.device = port, device
        self._watch = watch_of(device, timeout)
        with explained(device, f"the buffer of input {port.name!r}"):
            self._watch(self._make, plan)

    def _make(self, plan: Plan) -> None:
        cl, port, device = load(), self.port, self.device
        where = plan.placed[port.value]
        self.layout: TensorLayout = where.layout
        self._queue = cl.CommandQueue(device.context)
        fill = plan.storages[where.storage].fill or 0.0
        zero = np.zeros(port.type.shape, port.type.dtype.numpy)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR | cl.mem_flags.COPY_HOST_PTR
        data = lay_out(zero, self.layout, fill)
        self.buffer = allocate(
            lambda: cl.Buffer(device.context, flags, hostbuf=data), data.nbytes, device
        )

    def copy_from(self, array: Array) -> None:
        """Copy a dense host array of the input's shape and type into the buffer.

        Raises ShapeError or DTypeError where it does not fit.
        """
        want = self.port.type
        if array.shape != want.shape:
            raise ShapeError(f"array is {array.shape}, input {self.port.name!r} is {want.shape}.")
        if array.dtype != want.dtype.numpy:
            raise DTypeError(f"array is {array.dtype}, input wants {want.dtype.name}.")
        with self.map() as view:
            view[...] = array

    def map(self) -> _MappedInput:
        """Return a context manager whose value is the real elements, writable in place.

        Its two ends raise DeviceLostError or OutOfDeviceMemoryError.
        """
        refuse()
        return _MappedInput(self)

    def _map(self) -> Array:
        """Map the buffer and return it as an array."""
        cl = load()
        flags = cl.map_flags.WRITE | cl.map_flags.READ
        size, dtype = (self.layout.size,), self.port.type.dtype.numpy
        mapped: Array = cl.enqueue_map_buffer(
            self._queue, self.buffer, flags, 0, size, dtype, is_blocking=True
        )[0]
        return mapped

    def _unmap(self, mapped: Any) -> None:
        mapped.base.release(self._queue)
        self._queue.finish()


class Bindings:
    """Which inputs runs read from buffers (`bound`), and which from feeds (`ports`), by name.

    Never changed once it is made: a run uses one from its begin to its end.
    """

    def __init__(self, ports: Sequence[Port], bound: Mapping[str, InputBinding]) -> None:
        self.bound = bound
        self.ports = {p.name: p for p in ports if p.name not in bound}
        self.memory = {name: Memory(binding.buffer, 0) for name, binding in bound.items()}


class _MappedInput:
    def __init__(self, binding: InputBinding) -> None:
        self._binding = binding
        self._mapped: Any = None

    def __enter__(self) -> Array:
        b = self._binding
        with explained(b.device, f"the mapping of input {b.port.name!r}"):
            self._mapped = b._watch(b._map)
        view: Array = view_of(self._mapped, b.layout)
        return view

    def __exit__(self, *error: object) -> None:
        b, mapped, self._mapped = self._binding, self._mapped, None
        with explained(b.device, f"the mapping of input {b.port.name!r}"):
            b._watch(b._unmap, mapped)

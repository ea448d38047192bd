"""Zero-copy input: a device buffer in the network's own padded layout that a caller fills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clnn.errors import DTypeError, ShapeError
from clnn.layout import TensorLayout, lay_out, view_of
from clnn.plan.schedule import Plan, Port
from clnn.runtime.build.program import Device
from clnn.runtime.drivers.loader import load
from clnn.runtime.process.forked import keep, refuse
from clnn.runtime.run.state import Memory
from clnn.types import Array


class InputBinding:
    """A padded device buffer that replaces one input of a session.

    layout: where element (i0, i1, ...) lies, in elements; the padding around it holds the value
    that the network wants and must not be changed. buffer: the pyopencl Buffer, to be written by
    kernels of the caller. map() gives the real elements as a numpy view of device memory.
    """

    def __init__(self, device: Device, plan: Plan, port: Port) -> None:
        cl = load()
        keep(self)
        self.port = port
        where = plan.placed[port.value]
        self.layout: TensorLayout = where.layout
        self._queue = cl.CommandQueue(device.context)
        fill = plan.storages[where.storage].fill or 0.0
        zero = np.zeros(port.type.shape, port.type.dtype.numpy)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR | cl.mem_flags.COPY_HOST_PTR
        self.buffer = cl.Buffer(device.context, flags, hostbuf=lay_out(zero, self.layout, fill))

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
        """Return a context manager whose value is the real elements, writable in place."""
        refuse()
        return _MappedInput(self)


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
        cl = load()
        b = self._binding
        flags = cl.map_flags.WRITE | cl.map_flags.READ
        dtype = b.port.type.dtype.numpy
        flat, _ = cl.enqueue_map_buffer(
            b._queue, b.buffer, flags, 0, (b.layout.size,), dtype, is_blocking=True
        )
        self._mapped = flat
        view: Array = view_of(flat, b.layout)
        return view

    def __exit__(self, *error: object) -> None:
        self._mapped.base.release(self._binding._queue)
        self._binding._queue.finish()

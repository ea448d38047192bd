"""Tensors that stay in device memory from a run of one session to that of another."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any
from weakref import WeakSet

import numpy as np

from clnn.runtime.build.program import Device
from clnn.runtime.device.failures import explain, explained, lose
from clnn.runtime.drivers.loader import load
from clnn.runtime.process.forked import keep
from clnn.runtime.run.arguments import plain
from clnn.runtime.run.commands import Handed, Memory
from clnn.runtime.run.constants import allocate
from clnn.runtime.run.feeds import arrays_of, require_fit
from clnn.runtime.run.session import Session
from clnn.runtime.run.watch import watch_of
from clnn.types import Array


class DeviceArray:
    """A dense tensor that an Exchange keeps, on the device, on the host, or on both.

    It is never written to again. `fetch` and `memory` copy it to where it is not, once.
    """

    __slots__ = ("__weakref__", "_exchange", "_host", "_memory", "_whole", "dtype", "shape")

    def __init__(
        self,
        exchange: Exchange,
        shape: tuple[int, ...],
        dtype: Any,
        host: Array | None = None,
        memory: Memory | None = None,
        whole: DeviceArray | None = None,
    ) -> None:
        """host, memory: where it is. whole: what it is a part of, while that is in use."""
        self.shape, self.dtype = shape, np.dtype(dtype)
        self._exchange, self._host, self._memory, self._whole = exchange, host, memory, whole

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return prod(self.shape) * int(self.dtype.itemsize)

    def fetch(self) -> Array:
        """Return it as an array, which must not be changed."""
        if self._host is None:
            self._host = self._exchange.download(self)
        return self._host

    def memory(self) -> Memory:
        """Return where it lies on the device."""
        if self._memory is None:
            assert self._host is not None
            self._memory = self._exchange.upload(self._host)
        return self._memory

    def row(self, place: int) -> DeviceArray:
        """Return the slice at a place of axis 0."""
        shape, host = self.shape[1:], None if self._host is None else self._host[place]
        memory = self.memory()
        start = memory.start + place * prod(shape) * self.dtype.itemsize
        at = Memory(memory.buffer, start)
        return DeviceArray(self._exchange, shape, self.dtype, host, at, self)

    def __len__(self) -> int:
        return self.shape[0]


def fetched(value: Any) -> Any:
    """Return a value as the host reads it."""
    return value.fetch() if isinstance(value, DeviceArray) else value


class Exchange:
    """Device memory through which sessions on one context hand tensors on.

    Any thread may use it. read_back: bytes that were copied from it to the host so far; sent: bytes
    that were copied to it.
    """

    def __init__(self, device: Device, timeout: float | None) -> None:
        keep(self)
        self.device, self._watch = device, watch_of(device, timeout)
        self.read_back = self.sent = 0
        self._live: WeakSet[DeviceArray] = WeakSet()
        self._kept: list[DeviceArray] = []
        with explained(device, "a queue"):
            self._queue = self._watch(lambda: load().CommandQueue(device.context))

    def empty(self, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        """Return a tensor to be written by a run. Raises OutOfDeviceMemoryError."""
        nbytes = prod(shape) * np.dtype(dtype).itemsize
        made = DeviceArray(self, shape, dtype, memory=Memory(self._buffer(nbytes), 0))
        self._live.add(made)
        return made

    def shared(self, array: Array) -> DeviceArray:
        """Return a tensor that is on the host, and that is copied to the device at its first use."""
        return DeviceArray(self, array.shape, array.dtype, np.ascontiguousarray(array))

    def stacked(self, rows: Sequence[DeviceArray]) -> DeviceArray:
        """Return tensors of one shape as one with a new axis 0."""
        out = self.empty((len(rows), *rows[0].shape), rows[0].dtype)
        with explained(self.device, "the outputs of a loop"):
            self._watch(self._stack, rows, out.memory())
        return out

    def abandon(self, why: str) -> None:
        """Free nothing any more: a device that was lost may still write to it."""
        self._kept += self._live
        lose(self.device, why)

    def upload(self, array: Array) -> Memory:
        """Return a copy on the device."""
        self.sent += array.nbytes
        cl, context = load(), self.device.context
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        make = partial(cl.Buffer, context, flags, hostbuf=plain(array))
        with explained(self.device, "a tensor of a stage"):
            return Memory(self._watch(allocate, make, array.nbytes, self.device), 0)

    def download(self, tensor: DeviceArray) -> Array:
        """Return a copy on the host."""
        out = np.empty(tensor.shape, tensor.dtype)
        memory = tensor.memory()
        copy = partial(load().enqueue_copy, src_offset=memory.start, is_blocking=True)
        with explained(self.device, "a tensor of a stage"):
            self._watch(copy, self._queue, plain(out), memory.buffer)
        self.read_back += out.nbytes
        return out

    def _buffer(self, nbytes: int) -> Any:
        cl = load()
        make = partial(cl.Buffer, self.device.context, cl.mem_flags.READ_WRITE, nbytes)
        with explained(self.device, "a tensor of a stage"):
            return self._watch(allocate, make, nbytes, self.device)

    def _stack(self, rows: Sequence[DeviceArray], out: Memory) -> None:
        for place, row in enumerate(rows):
            source = row.memory()
            load().enqueue_copy(
                self._queue,
                out.buffer,
                source.buffer,
                byte_count=row.nbytes,
                src_offset=source.start,
                dst_offset=place * row.nbytes,
            )
        self._queue.finish()


def exchange_of(device: Device, timeout: float | None) -> Exchange | None:
    """Return an exchange, None where the device works in the host's memory: arrays do there."""
    return None if device.info.caps.host_memory else Exchange(device, timeout)


def run_handed(
    session: Session,
    feeds: Mapping[str, Array | DeviceArray],
    kept: Collection[str],
    exchange: Exchange,
) -> dict[str, Array | DeviceArray]:
    """Do what a call of a session does; the outputs named in `kept` stay on the device.

    The session must have the exchange's context, and no input bound. Tensors without elements are
    arrays. Raises as a call does.
    """
    session._alive()
    try:
        ports, plan = session._bindings.ports, session.plan
        here = {name: feed for name, feed in feeds.items() if isinstance(feed, DeviceArray)}
        rest = {name: feed for name, feed in feeds.items() if name not in here}
        arrays = arrays_of(rest, {n: p for n, p in ports.items() if n not in here}, ())
        for name, tensor in here.items():
            require_fit(ports[name], tensor.shape, tensor.dtype)
        stay = {
            port.host: exchange.empty(port.type.shape, port.type.dtype.numpy)
            for port in plan.outputs
            if port.name in kept and port.type.size
        }
        handed = Handed(
            {ports[n].host: (t.memory(), t.nbytes) for n, t in here.items()},
            {value: (tensor.memory(), tensor.nbytes) for value, tensor in stay.items()},
        )
        outs: dict[str, Array | DeviceArray] = {**session._run(arrays, handed), **stay}
        return {port.name: outs[port.host] for port in plan.outputs}
    except (load().Error, MemoryError) as err:
        explain(err, session._device, "a run")

"""Constants of a plan on the device: packed weights and tensors, each made and uploaded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from clnn.errors import OutOfDeviceMemoryError
from clnn.layout import TensorLayout
from clnn.ops._base import Array
from clnn.plan.schedule import ConstArg, Plan, PlannedArg, TensorArg
from clnn.runtime.loader import load
from clnn.runtime.pages import lent, pages
from clnn.runtime.program import Device
from clnn.types import narrow

GROWTH = 3  # times the model's constants that packed ones may take before they are moved
APART = 4096  # bytes that constants begin at multiples of, in one buffer: at least any sub-buffer's


class Constants:
    """Packed weights and constant tensors on the device, shared by all states of a session.

    together: in one buffer, where the device has one of that size. whole: that buffer, else None.
    """

    def __init__(self, device: Device, plan: Plan, together: bool = False) -> None:
        self._device, self._plan = device, plan
        self._buffers: dict[object, Any] = {}
        self._places: dict[object, tuple[int, int]] = {}
        self._keep: list[Callable[[], Array]] = []
        self.whole: Any = None
        args = {self._key(a): a for launch in plan.launches for a in launch.args if self._has(a)}
        if together and args:
            self._upload_together(args)
        for arg in args.values():
            self.buffer(arg)

    def _has(self, arg: PlannedArg) -> bool:
        return isinstance(arg, ConstArg) or (
            isinstance(arg, TensorArg) and arg.storage in self._plan.consts
        )

    def _key(self, arg: PlannedArg) -> object:
        return id(arg.make) if isinstance(arg, ConstArg) else getattr(arg, "storage", None)

    def buffer(self, arg: PlannedArg) -> Any:
        """Return the buffer that a constant begins; a part of the whole where there is one."""
        key = self._key(arg)
        if key not in self._buffers:
            if key in self._places:
                self._buffers[key] = self.whole.get_sub_region(*self._places[key])
            else:
                self._buffers[key] = self._upload(self._made(arg))
        return self._buffers[key]

    def place(self, arg: PlannedArg) -> int:
        """Return the byte of the whole at which a constant begins."""
        return self._places[self._key(arg)][0]

    def _made(self, arg: PlannedArg) -> Array:
        if isinstance(arg, ConstArg):
            self._keep.append(arg.make)
            data = np.ascontiguousarray(arg.make())
        else:
            assert isinstance(arg, TensorArg)
            plan, name = self._plan, arg.storage
            values = (
                narrow(plan.consts[name], plan.graph.stored[name])
                if name in plan.graph.stored
                else plan.consts[name]
            )
            data = lay_out(values, plan.placed[name].layout)
        return data if data.size else np.zeros(1, data.dtype)

    def _upload(self, data: Array) -> Any:
        cl = load()
        flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
        return allocate(lambda: cl.Buffer(self._device.context, flags, hostbuf=data),
                        data.nbytes, self._device)  # fmt: skip

    def _upload_together(self, args: dict[object, PlannedArg]) -> None:
        """Make all constants in one piece of host memory, which becomes the device's own."""
        host, end, places = pages(GROWTH * sum(c.nbytes for c in self._plan.consts.values())), 0, {}
        for key, arg in args.items():
            data = self._made(arg)
            if end + data.nbytes > host.size:
                more = pages(2 * (end + data.nbytes))
                more[:end] = host[:end]
                host = more
            host[end : end + data.nbytes] = data.reshape(-1).view(np.uint8)
            places[key] = (end, data.nbytes)
            end += -(-data.nbytes // APART) * APART
        if end > self._device.info.max_alloc > 0:
            self._buffers = {k: self._upload(host[at : at + n]) for k, (at, n) in places.items()}
            return
        context = self._device.context
        self.whole = allocate(lambda: lent(context, host[: max(end, APART)]), end, self._device)
        self._places = places


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

"""Constants of a plan on the device: packed weights and tensors, each made and uploaded once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from clnn.errors import OutOfDeviceMemoryError, PlanError
from clnn.graph.mapped import forget, mapped_files, one_of_each, require_unchanged
from clnn.layout import TensorLayout
from clnn.ops.launch import Const, Launch
from clnn.plan.schedule import ConstArg, Plan, PlannedArg, PlannedLaunch, ScheduledNode, TensorArg
from clnn.runtime.build.program import Device
from clnn.runtime.drivers.loader import load
from clnn.runtime.drivers.pages import lent, pages
from clnn.types import Array, narrow

GROWTH = 8  # times the model's constants that packed ones may take before they are moved
PIECE = 2**23  # bytes that are copied from a mapped file at once
APART = 4096  # bytes that constants begin at multiples of, in one buffer: at least any sub-buffer's


class Uploaded:
    """Stands where a constant's data, or what makes it, was before it was uploaded."""

    def __call__(self) -> Array:
        """Raise PlanError."""
        raise PlanError("constants of a session lie on its device only. Load the model again.")


class NamesOnly(Mapping[str, Any]):
    """Names of constants whose data lies on the device only."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = dict.fromkeys(names)

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        return Uploaded()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Constants:
    """Packed weights and constant tensors on the device, shared by all states of a session.

    together: in one buffer, where the device has one of that size. whole: that buffer, else None.
    """

    def __init__(self, device: Device, plan: Plan, together: bool = False) -> None:
        self._device, self._plan = device, plan
        self._buffers: dict[object, Any] = {}
        self._places: dict[object, tuple[int, int]] = {}
        self._makers: dict[int, Callable[[], Array]] = {}
        self._files = mapped_files(plan.consts.values())
        self._sources = one_of_each(self._files)
        self.whole: Any = None
        args = {self._key(a): a for launch in plan.launches for a in launch.args if self._has(a)}
        if together and args:
            self._upload_together(args)
        for arg in args.values():
            self.buffer(arg)
        require_unchanged(self._sources)
        forget(self._files)

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
                self._buffers[key] = self._upload(np.ascontiguousarray(self._made(arg)))
                forget(self._files)
        return self._buffers[key]

    def place(self, arg: PlannedArg) -> int:
        """Return the byte of the whole at which a constant begins."""
        return self._places[self._key(arg)][0]

    def release(self) -> Plan:
        """Return the plan without the data of its constants, which these no longer hold either."""
        tokens: dict[int, Uploaded] = {key: Uploaded() for key in self._makers}

        def moved(kept: dict[object, Any]) -> dict[object, Any]:
            return {id(tokens[k]) if isinstance(k, int) else k: v for k, v in kept.items()}

        self._buffers, self._places = moved(self._buffers), moved(self._places)
        self._makers = {id(token): token for token in tokens.values()}
        self._files, self._sources = [], []
        self._plan = without_data(self._plan, tokens)
        return self._plan

    def _made(self, arg: PlannedArg) -> Array:
        require_unchanged(self._sources)
        if isinstance(arg, ConstArg):
            self._makers[id(arg.make)] = arg.make
            data = arg.make()
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
        return allocate(
            lambda: cl.Buffer(self._device.context, flags, hostbuf=data), data.nbytes, self._device
        )

    def _upload_together(self, args: dict[object, PlannedArg]) -> None:
        """Make all constants in one piece of host memory, which becomes the device's own."""
        host, end, places = pages(GROWTH * sum(c.nbytes for c in self._plan.consts.values())), 0, {}
        for key, arg in args.items():
            data = self._made(arg)
            if end + data.nbytes > host.size:
                more = pages(2 * (end + data.nbytes))
                more[:end] = host[:end]
                host = more
            self._place_at(host[end : end + data.nbytes], data)
            places[key] = (end, data.nbytes)
            end += -(-data.nbytes // APART) * APART
        if end > self._device.info.max_alloc > 0:
            self._buffers = {k: self._upload(host[at : at + n]) for k, (at, n) in places.items()}
            return
        context = self._device.context
        self.whole = allocate(lambda: lent(context, host[: max(end, APART)]), end, self._device)
        self._places = places

    def _place_at(self, host: Array, data: Array) -> None:
        """Copy data to host memory, and give back what that read of mapped files."""
        to = host.view(data.dtype).reshape(data.shape)
        rows = max(1, PIECE * len(to) // max(data.nbytes, 1)) if data.ndim else 1
        for row in range(0, len(to) if data.ndim else 0, rows):
            require_unchanged(self._sources)
            piece = data[row : row + rows]
            # Copies that change the order take twice as long from addresses that are not aligned.
            to[row : row + rows] = piece if piece.flags.aligned else piece.copy(order="K")
            forget(self._files)
        if not data.ndim:
            to[...] = data


def without_data(plan: Plan, tokens: Mapping[int, Uploaded]) -> Plan:
    """Return a plan in which `tokens` stand for the makers of constants, by the makers' ids."""

    def token(const: Any) -> Any:
        found = isinstance(const, (Const, ConstArg)) and id(const.make) in tokens
        return replace(const, make=tokens[id(const.make)]) if found else const

    def bare(launch: Launch) -> Launch:
        return replace(launch, args=tuple(map(token, launch.args)))

    def planned(made: Sequence[PlannedLaunch]) -> tuple[PlannedLaunch, ...]:
        return tuple(PlannedLaunch(bare(p.launch), tuple(map(token, p.args))) for p in made)

    def step(made: ScheduledNode) -> ScheduledNode:
        gone: Any = Uploaded()
        inputs = tuple(
            o if o is None or o.const is None else replace(o, const=gone)
            for o in made.problem.inputs
        )
        variant = replace(made.variant, launches=tuple(map(bare, made.variant.launches)))
        problem = replace(made.problem, inputs=inputs)
        return ScheduledNode(
            made.node, problem, variant, planned(made.launches), planned(made.fills)
        )

    graph = replace(plan.graph, consts=NamesOnly(plan.graph.consts))
    scheduled = tuple(map(step, plan.scheduled))
    return replace(plan, graph=graph, scheduled=scheduled, first_fills=planned(plan.first_fills))


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
    except (cl.MemoryError, cl.RuntimeError, cl.LogicError, OSError) as err:
        raise OutOfDeviceMemoryError(
            f"{info.title} gave no buffer of {nbytes} bytes ({err}): it has {info.global_mem} bytes "
            f"in all, {info.max_alloc} for one buffer. Use a smaller batch or image, or another device."
        ) from err

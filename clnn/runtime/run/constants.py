"""Constants of a plan on the device: packed weights and tensors, each made and uploaded once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from clnn.errors import DeviceLostError, OutOfDeviceMemoryError, PlanError
from clnn.graph.mapped import forget, mapped_files, one_of_each, require_unchanged
from clnn.layout import TensorLayout, lay_out
from clnn.ops.launch import Const, Launch
from clnn.ops.problem import Problem
from clnn.plan.plan import ConstArg, Plan, PlannedLaunch, ScheduledNode, TensorArg
from clnn.records import changed
from clnn.runtime.build.program import Device
from clnn.runtime.device.failures import meaning
from clnn.runtime.drivers.loader import load
from clnn.runtime.drivers.pages import host_buffer, pages
from clnn.runtime.run.recipes import recipe
from clnn.types import Array, DType, narrow

GROWTH = 8  # times the model's constants that packed ones may take before they are moved
PIECE = 2**23  # bytes that are copied from a mapped file at once
ALIGNMENT = 4096  # bytes, of constants in one buffer: at least any sub-buffer's


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


Maker = Callable[[], Array]
Key = Maker | str  # of a constant on the device: what stands for its maker, or its storage


class Constants:
    """Packed weights and constant tensors on the device, shared by all states of a session.

    plan: the given one without the data of its constants; its arguments are those that are found
    here. together: in one buffer, where the device has one of that size. whole: that buffer, else
    None, and `host` the host's memory that it is. before: those of a session at other extents, of
    which equal ones are taken; `whole` is theirs then, and `own` has what they lack. shared, `is_shared`:
    others may do so with these.
    """

    def __init__(
        self,
        device: Device,
        plan: Plan,
        together: bool = False,
        before: Constants | None = None,
        shared: bool = False,
    ) -> None:
        self._device, self.is_shared = device, shared
        self._buffers: dict[Key, Any] = {}
        self._places: dict[Key, tuple[int, int]] = {}
        self._found: dict[Key, Key] = {}
        self._before = before
        self.recipes: dict[Hashable, Key] = {}
        self.own: Any = None
        self.host: Array | None = None
        # What is in one buffer, and the host's memory that it is; that of all sessions first.
        self.hosts: list[tuple[Any, Array | None]]
        self._files = mapped_files(plan.consts.values())
        self._sources = one_of_each(self._files)
        makers, tokens = _makers(plan)
        if shared:
            makers = self._take(makers, before)
        alone = [key for key in makers if isinstance(key, str)]
        unpacked = alone if len(alone) == len(makers) else plan.consts
        nbytes = sum(plan.consts[name].nbytes for name in unpacked)
        self.whole: Any = self._upload_together(makers, nbytes) if together and makers else None
        if before is not None:
            self.whole, self.own = before.whole, self.whole
        earlier = [] if before is None else before.hosts[:1]
        self.hosts = [*earlier, (self.whole if before is None else self.own, self.host)]
        for key, make in makers.items():
            if key not in self._buffers:
                self._buffers[key] = self._upload(np.ascontiguousarray(self._data(make)))
                forget(self._files)
        require_unchanged(self._sources)
        forget(self._files)
        self._files, self._sources = [], []
        self.plan = without_data(plan, tokens)

    def _take(self, makers: Mapping[Key, Maker], before: Constants | None) -> dict[Key, Maker]:
        """Note what makes each constant, and return those of which there is no equal one before."""
        missing: dict[Key, Maker] = {}
        for key, make in makers.items():
            known = recipe(make)
            if known is None:
                missing[key] = make
                continue
            self.recipes[known] = key
            place = None if before is None else before.recipes.get(known)
            if place is None:
                missing[key] = make
            else:
                self._found[key] = place
        return missing

    def buffer(self, arg: ConstArg | TensorArg) -> Any:
        """Return the buffer that a constant begins; a part of the whole where there is one."""
        key = _key(arg)
        if key in self._found and self._before is not None:
            return self._before._buffers[self._found[key]]
        return self._buffers[key]

    @property
    def first(self) -> tuple[Any, Array | None]:
        """What all sessions have, in one buffer, and the host's memory that it is."""
        return self.hosts[0]

    @property
    def nbytes(self) -> int:
        """Bytes of all that were packed for it."""
        return sum(int(buffer.size) for buffer in self._buffers.values())

    def place(self, arg: ConstArg | TensorArg) -> int:
        """Return the page of the whole at which a constant begins, ~page for one of `own`."""
        key = _key(arg)
        if self._before is None:
            return self._places[key][0] // ALIGNMENT
        if key in self._found:
            return self._before._places[self._found[key]][0] // ALIGNMENT
        return ~(self._places[key][0] // ALIGNMENT)

    def _data(self, make: Maker) -> Array:
        require_unchanged(self._sources)
        data = make()
        return data if data.size else np.zeros(1, data.dtype)

    def _upload(self, data: Array) -> Any:
        cl = load()
        flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
        return allocate(
            lambda: cl.Buffer(self._device.context, flags, hostbuf=data), data.nbytes, self._device
        )

    def _upload_together(self, makers: Mapping[Key, Maker], nbytes: int) -> Any:
        """Make all constants in one piece of host memory, and return the buffer that it becomes.

        Where the device takes no such buffer, each gets its own. nbytes: of all before packing.
        """
        host, end, places = pages(GROWTH * nbytes), 0, dict[Key, tuple[int, int]]()
        for key, make in makers.items():
            data = self._data(make)
            if end + data.nbytes > host.size:
                more = pages(2 * (end + data.nbytes))
                more[:end] = host[:end]
                host = more
            self._place_at(host[end : end + data.nbytes], data)
            places[key] = (end, data.nbytes)
            end += -(-data.nbytes // ALIGNMENT) * ALIGNMENT
        if end > self._device.info.max_alloc > 0:
            self._buffers = {k: self._upload(host[at : at + n]) for k, (at, n) in places.items()}
            return None
        self._places = places
        context = self._device.context
        self.host = used = host[: max(end, ALIGNMENT)]
        whole = allocate(lambda: host_buffer(context, used), end, self._device)
        self._buffers = {key: whole.get_sub_region(*place) for key, place in places.items()}
        return whole

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


class StoredConstants(Constants):
    """Constants that were packed before.

    data: all of them, in memory that may be mapped from a file. makers, tensors: places in it, bytes
    from and how many, of packed constants by what stands for their makers, and of tensors by name.
    first: what sessions of other shapes have, too, in which `in_first` lie; all lie together then.
    """

    def __init__(
        self,
        device: Device,
        plan: Plan,
        data: Array,
        makers: Mapping[Uploaded, tuple[int, int]],
        tensors: Mapping[str, tuple[int, int]],
        together: bool,
        first: tuple[Any, Array | None] | None = None,
        in_first: frozenset[Key] = frozenset(),
    ) -> None:
        self._device, self.plan, self.is_shared = device, plan, first is not None
        self._in_first = in_first
        self._places = dict(chain[tuple[Key, tuple[int, int]]](makers.items(), tensors.items()))
        self._found, self._before, self.recipes = {}, None, {}
        self.whole = self.own = self.host = None
        self.hosts = []
        is_cpu, context = device.info.type == "cpu", device.context
        if first is not None:
            self._lie_behind(first, data)
            return
        if together and data.size and (data.size <= device.info.max_alloc or not is_cpu):
            make = partial(host_buffer, context, data) if is_cpu else partial(self._upload, data)
            self.whole = allocate(make, data.size, device)
            self.host = data if is_cpu else None
            self._buffers = {key: self.whole.get_sub_region(*p) for key, p in self._places.items()}
            self.hosts = [(self.whole, self.host)]
            return
        self._buffers = {}
        for key, (at, nbytes) in self._places.items():
            part = data[at : at + nbytes]
            make = partial(host_buffer, context, part) if is_cpu else partial(self._upload, part)
            self._buffers[key] = allocate(make, nbytes, device)

    def _lie_behind(self, first: tuple[Any, Array | None], data: Array) -> None:
        """Lie in `first`, and what it lacks in a buffer of its own."""
        device = self._device
        self.whole, is_cpu = first[0], device.info.type == "cpu"
        if data.size:
            make = partial(host_buffer, device.context, data)
            make = make if is_cpu else partial(self._upload, data)
            self.own, self.host = allocate(make, data.size, device), data if is_cpu else None
        self.hosts = [first, (self.own, self.host)]
        self._buffers = {
            key: (self.whole if key in self._in_first else self.own).get_sub_region(*place)
            for key, place in self._places.items()
        }

    def place(self, arg: ConstArg | TensorArg) -> int:
        """Return the page of the whole at which a constant begins, ~page for one of `own`."""
        key = _key(arg)
        page = self._places[key][0] // ALIGNMENT
        return ~page if self.is_shared and key not in self._in_first else page


def _key(arg: ConstArg | TensorArg) -> Key:
    return arg.make if isinstance(arg, ConstArg) else arg.storage


def _makers(plan: Plan) -> tuple[dict[Key, Maker], dict[Maker, Maker]]:
    """Return key -> maker of every constant that launches read, and maker -> what stands for it."""
    makers: dict[Key, Maker] = {}
    tokens: dict[Maker, Maker] = {}
    for arg in (arg for planned in plan.launches for arg in planned.args):
        if isinstance(arg, ConstArg):
            makers[tokens.setdefault(arg.make, Uploaded())] = arg.make
        elif isinstance(arg, TensorArg) and arg.storage in plan.consts:
            name = arg.storage
            parts = plan.consts[name], plan.graph.stored.get(name), plan.placed[name].layout
            makers[name] = partial(_laid_out, *parts)
    return makers, tokens


def _laid_out(values: Array, stored: DType | None, layout: TensorLayout) -> Array:
    """Return a constant tensor as it lies in its storage."""
    return lay_out(values if stored is None else narrow(values, stored), layout)


def without_data(plan: Plan, tokens: Mapping[Maker, Maker]) -> Plan:
    """Return a plan without constants, in which `tokens` stand for what makes packed ones."""

    gone: Any = Uploaded()

    def is_gone(arg: Any) -> bool:
        return isinstance(arg, (Const, ConstArg)) and arg.make in tokens

    def token(arg: Any) -> Any:
        return type(arg)(tokens[arg.make]) if is_gone(arg) else arg

    known: dict[
        int, tuple[Any, ...]
    ] = {}  # by id: a variant's launch and its planned one have the same

    def bare_args(args: tuple[Any, ...]) -> tuple[Any, ...]:
        found = known.get(id(args))
        if found is None:
            is_bare = not any(map(is_gone, args))
            found = known[id(args)] = args if is_bare else tuple(map(token, args))
        return found

    def bare(launch: Launch) -> Launch:
        args = bare_args(launch.args)
        return launch if args is launch.args else changed(launch, args=args)

    def bare_planned(planned: PlannedLaunch) -> PlannedLaunch:
        launch, args = bare(planned.launch), bare_args(planned.args)
        if launch is planned.launch and args is planned.args:
            return planned
        return changed(planned, launch=launch, args=args)

    def bare_problem(problem: Problem) -> Problem:
        if all(o is None or o.const is None for o in problem.inputs):
            return problem
        inputs = tuple(
            o if o is None or o.const is None else changed(o, const=gone) for o in problem.inputs
        )
        return changed(problem, inputs=inputs)

    def bare_node(step: ScheduledNode) -> ScheduledNode:
        launches = tuple(map(bare, step.variant.launches))
        return changed(
            step,
            problem=bare_problem(step.problem),
            variant=changed(step.variant, launches=launches, again=None, cost_at=None),
            launches=tuple(map(bare_planned, step.launches)),
            fills=tuple(map(bare_planned, step.fills)),
        )

    return changed(
        plan,
        graph=changed(plan.graph, consts=NamesOnly(plan.graph.consts)),
        scheduled=tuple(map(bare_node, plan.scheduled)),
        first_fills=tuple(map(bare_planned, plan.first_fills)),
    )


def allocate(make: Callable[[], Any], nbytes: int, device: Device) -> Any:
    """Return make()'s buffer. Raises OutOfDeviceMemoryError with what was asked and what there is."""
    cl = load()
    info = device.info
    try:
        if nbytes > info.max_alloc > 0:
            raise cl.MemoryError(f"{nbytes} bytes are over the device's limit for one buffer")
        return make()
    except (cl.Error, MemoryError) as err:
        told = meaning(err, device, f"a buffer of {nbytes} bytes")
        if isinstance(told, DeviceLostError):
            raise told from err
        raise OutOfDeviceMemoryError(
            f"{info.title} gave no buffer of {nbytes} bytes ({err}): it has {info.global_mem} bytes "
            f"in all, {info.max_alloc} for one buffer. Use a smaller batch or image, or another device."
        ) from err

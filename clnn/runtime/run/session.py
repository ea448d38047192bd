"""Session: a compiled model that any thread may call with numpy arrays."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from clnn.errors import DeviceLostError, InputNameError, SettingError
from clnn.graph.ir import Graph
from clnn.layout import TensorLayout
from clnn.options import Options
from clnn.plan.layouts import Hints
from clnn.plan.schedule import (
    Chooser,
    ConstArg,
    Plan,
    Port,
    Repeat,
    describe,
    first_variant,
    make_plan,
)
from clnn.runtime.build.program import Device
from clnn.runtime.device.device import DeviceInfo
from clnn.runtime.device.target import allowed, products, target_of
from clnn.runtime.drivers.trim import trim
from clnn.runtime.run.binding import InputBinding
from clnn.runtime.run.constants import Constants
from clnn.runtime.run.debug import log_compiled, log_run
from clnn.runtime.run.family import Family
from clnn.runtime.run.feeds import arrays_of, names_message
from clnn.runtime.run.fused_launch import (
    FusedLaunches,
    NodeLaunch,
    Places,
    fuse_launches,
    launches_of,
    sources_of,
)
from clnn.runtime.run.placement import Placement
from clnn.runtime.run.pool import Pool
from clnn.runtime.run.profile import Profile
from clnn.runtime.run.spills import replace_spilling_kernels
from clnn.runtime.run.state import ExecutionState, Memory, one_arena
from clnn.runtime.run.stream import Stream
from clnn.settings import setting
from clnn.types import Array


@dataclass(frozen=True)
class TensorInfo:
    """An input or output: name, shape, dtype, and the layout that the network itself uses."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    layout: TensorLayout


class Session:
    """A model compiled for one device. Safe to call from several threads.

    Made by clnn.compile_model. Call it with {input: array} for {output: array}, or run() in the
    form of onnxruntime. `inputs`, `outputs`: TensorInfo of each. A context manager; close() frees
    the device memory.
    """

    def __init__(
        self,
        graph: Graph,
        info: DeviceInfo,
        options: Options,
        choose: Chooser = first_variant,
        hints: Hints | None = None,
        family: Family | None = None,
    ) -> None:
        started = time.perf_counter()
        self._options = options
        separate = (options.arena or setting("CLNN_ARENA")) == "separate"
        target = allowed(target_of(info), options)
        self._products = products(target, options)

        def plan_of(graph: Graph, choose: Chooser, repeat: Repeat | None = None) -> Plan:
            return make_plan(
                graph,
                target,
                choose,
                separate=separate,
                guard=options.guard,
                hints=hints,
                repeat=repeat,
            )

        def plan_by(choose: Chooser) -> Plan:
            return family.plan(plan_of, graph, choose) if family else plan_of(graph, choose)

        self._family = family
        self._plan = plan_by(choose)
        planned = time.perf_counter()
        self._device = family.open(info) if family else Device.open(info)
        counts = self._device.counts
        before_counts = counts.cached, counts.built
        if not (counts.cached or counts.built):
            trim()
        self._plan = replace_spilling_kernels(self._plan, plan_by, choose, self._device)
        self._bindings: dict[str, InputBinding] = {}
        self._local = threading.local()
        self._timed = int(setting("CLNN_DEBUG")) >= 2
        merge = options.merge and not (self._timed or options.guard) and target.is_cpu
        merge = merge and one_arena(self._plan, self._device)
        before = family.constants if family else None
        self._constants = Constants(self._device, self._plan, merge, before, family is not None)
        if family and family.constants is None:
            family.constants = self._constants
        self._plan = self._constants.plan
        packed = time.perf_counter()
        self._fused = self._fuse() if merge else None
        self._fused_with_stamps: FusedLaunches | None = None
        self._device.build(sources_of(self._plan, self._fused))
        self._counts = counts.cached - before_counts[0], counts.built - before_counts[1]
        self._call_states = [self._new_state()]
        self._states = Pool(self._another)
        self._states.give(self._call_states[0])
        self._note_unbound()
        first = {p.host: p.name for p in reversed(self._plan.outputs)}
        # Names of one value get an array each.
        self._named_outputs = [
            (p.name, p.host, first[p.host] == p.name) for p in self._plan.outputs
        ]
        self._stream_states: list[ExecutionState] = []
        self._pid = os.getpid()
        self._closed = False
        times = (started, planned, packed, time.perf_counter())
        self._compiled = dict(zip(("plan", "pack", "build"), pairwise(times), strict=True))
        self._seconds = {what: end - begin for what, (begin, end) in self._compiled.items()}
        log_compiled(self._plan, self.placement, self._device.counts)

    def _fuse(self, timed: bool = False) -> FusedLaunches | None:
        """Return the launches as few kernels, None where the device takes no buffer for that."""
        plan, constants = self._plan, self._constants
        places = Places(lambda key: plan.memory.offsets[key] + plan.guard, constants.place)
        is_open = self._family is not None
        run, fills = launches_of(plan), [NodeLaunch(f, "border") for f in plan.first_fills]
        if constants.whole is None and any(
            isinstance(a, ConstArg) for one in run for a in one.launch.args
        ):
            return None
        return FusedLaunches(
            fuse_launches(plan, fills, places, open_=is_open),
            fuse_launches(plan, run, places, timed, is_open),
        )

    def _fused_timed(self) -> FusedLaunches | None:
        """Return fused launches that note their times, None where nothing is fused or no clock."""
        if self._fused is None or not self.device.caps.clock:
            return None
        if self._fused_with_stamps is None:
            self._fused_with_stamps = self._fuse(timed=True)
        return self._fused_with_stamps

    def _new_state(self, profiling: bool = False, separate: bool = False) -> ExecutionState:
        timed = profiling or self._timed
        fused = self._fused
        if timed:
            fused = None if separate else self._fused_timed()
            self._device.build(sources_of(self._plan, fused))
        state = ExecutionState(self._device, self._plan, self._constants, fused, timed)
        for binding in self._bindings.values():
            state.bind(binding.port, Memory(binding.buffer, 0))
        return state

    @property
    def plan(self) -> Plan:
        """The plan: graph, layouts, variants, memory; without the data of constants."""
        return self._plan

    @property
    def device(self) -> DeviceInfo:
        """The device this session runs on."""
        return self._device.info

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """What the model wants."""
        return tuple(self._tensor_info(p) for p in self._plan.inputs)

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """What the model gives."""
        return tuple(self._tensor_info(p) for p in self._plan.outputs)

    def _tensor_info(self, port: Port) -> TensorInfo:
        layout = self._plan.placed[port.value].layout
        return TensorInfo(port.name, port.type.shape, port.type.dtype.numpy, layout)

    @property
    def placement(self) -> Placement:
        """Device, chosen variant per node, memory and compile times."""
        plan = self._plan
        return Placement(
            self._device.info.title,
            tuple(describe(plan)),
            len(plan.launches),
            plan.memory.total,
            plan.memory.lower_bound,
            plan.copied_bytes,
            dict(self._seconds),
            self._products,
        )

    @property
    def build_counts(self) -> tuple[int, int]:
        """Programs taken from the cache, and programs built."""
        if self._family is not None:  # whose sessions share a device
            return self._counts
        return self._device.counts.cached, self._device.counts.built

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """Return {output name: array} for {input name: array}.

        Raises InputNameError, ShapeError or DTypeError where `feeds` does not fit the model, and
        DeviceLostError after close() or in a forked child.
        """
        arrays = self._check(feeds)
        self._alive()
        if self._is_profiled:
            outs = self._run_profiled(arrays)
        else:
            state = self._states.take()
            try:
                outs = state.run(arrays)
            finally:
                self._states.give(state)
        return {
            name: outs[host] if first else outs[host].copy()
            for name, host, first in self._named_outputs
        }

    def _run_profiled(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Run once, in this thread's profile where there is one, else into the log."""
        ports = self._plan.outputs
        hosts = {p.host: np.empty(p.type.shape, p.type.dtype.numpy) for p in ports}
        profile: Profile | None = getattr(self._local, "profile", None)
        if profile is not None:
            profile.record(arrays, hosts)
            return hosts
        with self._state() as state:
            log_run(state, state.run_timed(arrays, hosts))
        return hosts

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Array]:
        """Return the arrays of the outputs `names` (None: all), as onnxruntime's run does."""
        known = [p.name for p in self._plan.outputs]
        wanted = known if names is None else list(names)
        unknown = [n for n in wanted if n not in known]
        if unknown:
            raise InputNameError(names_message("output", unknown, [], known))
        outs = self(feeds)
        return [outs[n] for n in wanted]

    def stream(
        self, feeds: Iterable[Mapping[str, Any]], depth: int = 2
    ) -> Generator[dict[str, Array], None, None]:
        """Return a generator of outputs for an iterable of feeds, in the same order.

        Up to `depth` items are in flight: while one runs, the next is taken and uploaded. Each has
        an execution state of its own, made for this stream whatever Options.states says and freed
        at its end, so calls of the session go on beside it. A feed's arrays may be used again as
        soon as the next feed is asked for. Where an input is bound, or a profile is taken, items
        run one by one. An error of the iterable, of a feed or of the device is raised in the place
        of its item, after the outputs before it, and ends the stream. Closing the generator early
        waits for what is in flight and drops it; feeds taken ahead, fewer than `depth`, are gone.
        Several streams may run at once, each read by one thread at a time.
        Raises SettingError for a depth below 1, else what a call raises.
        """
        self._alive()
        if depth < 1:
            raise SettingError(f"stream(depth={depth}): depth must be at least 1.")
        if isinstance(feeds, Mapping):
            raise InputNameError(
                "stream takes an iterable of feeds. For one feed call the session."
            )
        return Stream(self, iter(feeds), depth, pinned=self.device.type != "cpu")()

    def _stream_state(self) -> ExecutionState:
        with self._device.lock:
            state = self._new_state()
            self._stream_states.append(state)
            return state

    def _end_stream(self, states: Sequence[ExecutionState]) -> None:
        with self._device.lock:
            self._stream_states = [s for s in self._stream_states if s not in states]

    @property
    def _is_profiled(self) -> bool:
        """Whether runs of this thread are timed launch by launch."""
        return self._timed or getattr(self._local, "profile", None) is not None

    @property
    def _is_bound(self) -> bool:
        """Whether an input is read from a buffer of the caller."""
        return bool(self._bindings)

    @contextmanager
    def profile(
        self, trace: str | os.PathLike[str] | None = None, separate: bool = False
    ) -> Iterator[Profile]:
        """Measure every launch of the runs that this thread makes in the `with` block.

        trace: file that the Chrome trace of these runs is written to at the end of the block.
        separate: launch by launch, where runs otherwise fuse launches into few kernels; devices
        without a cycle counter always do.
        """
        self._alive()
        compiled = {
            what: (round(begin * 1e9), round(end * 1e9))
            for what, (begin, end) in self._compiled.items()
        }
        state = self._new_state(profiling=True, separate=separate)
        profile = Profile(self._plan, state, self._device.info.title, compiled)
        before = getattr(self._local, "profile", None)
        self._local.profile = profile
        try:
            yield profile
        finally:
            self._local.profile = before
        if trace:
            profile.write_chrome(trace)

    def bind_input(self, name: str) -> InputBinding:
        """Return a device buffer in the layout that the network itself reads for input `name`.

        Runs take that input from the buffer instead of from `feeds`, without a copy. Raises
        InputNameError for a name that is not an input.
        """
        self._alive()
        ports = {p.name: p for p in self._plan.inputs}
        if name not in ports:
            raise InputNameError(names_message("input", [name], [], list(ports)))
        if name not in self._bindings:
            binding = InputBinding(self._device, self._plan, ports[name])
            for state in (*self._call_states, *self._stream_states):
                state.bind(binding.port, Memory(binding.buffer, 0))
            self._bindings[name] = binding
            self._note_unbound()
        return self._bindings[name]

    def unbind_input(self, name: str) -> None:
        """Take input `name` from `feeds` again."""
        binding = self._bindings.pop(name, None)
        if binding is not None:
            for state in (*self._call_states, *self._stream_states):
                state.unbind(binding.port)
            self._note_unbound()

    def _note_unbound(self) -> None:
        """Note which inputs are not bound, and so are taken from feeds."""
        self._unbound = {p.name: p for p in self._plan.inputs if p.name not in self._bindings}

    def _check(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        return arrays_of(feeds, self._unbound, self._bindings)

    def _alive(self) -> None:
        if self._closed:
            raise DeviceLostError("this session is closed. Compile the model again.")
        if os.getpid() != self._pid:
            raise DeviceLostError(
                f"this session was made in process {self._pid} and is used in its fork "
                f"{os.getpid()}: OpenCL contexts do not survive a fork. Compile in the child."
            )

    @contextmanager
    def _state(self) -> Iterator[ExecutionState]:
        """Lend an execution state: an idle one, a new one while there may be more, else wait."""
        self._alive()
        state = self._states.take()
        try:
            yield state
        finally:
            self._states.give(state)

    def _another(self) -> ExecutionState | None:
        """Return a new state while there may be more, or None."""
        with self._device.lock:
            if len(self._call_states) >= self._options.states:
                return None
            state = self._new_state()
            self._call_states.append(state)
            return state

    def close(self) -> None:
        """Free the device memory; later calls raise DeviceLostError."""
        self._closed = True
        self._call_states.clear()
        self._stream_states.clear()
        self._bindings.clear()
        self._states.clear()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        ins = ", ".join(f"{p.name}: {p.type!r}" for p in self._plan.inputs)
        outs = ", ".join(f"{p.name}: {p.type!r}" for p in self._plan.outputs)
        return f"<clnn.Session on {self._device.info.title}: ({ins}) -> ({outs})>"

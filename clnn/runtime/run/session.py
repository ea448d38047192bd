"""Session: a compiled model that any thread may call with numpy arrays."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from clnn.errors import DeviceLostError, InputNameError, SettingError
from clnn.options import Options
from clnn.plan.plan import Plan
from clnn.runtime.build.program import Device
from clnn.runtime.device.device import DeviceInfo
from clnn.runtime.device.failures import explain, explained, explains, require
from clnn.runtime.drivers.loader import load
from clnn.runtime.process import forked
from clnn.runtime.run.binding import Bindings, InputBinding
from clnn.runtime.run.commands import NOT_HANDED, Handed, Memory
from clnn.runtime.run.constants import Constants
from clnn.runtime.run.debug import log_compiled, log_run
from clnn.runtime.run.feeds import arrays_of, names_message
from clnn.runtime.run.fused_launch import FusedLaunches, sources_of
from clnn.runtime.run.keeping import Cost
from clnn.runtime.run.named import NamedSession, check_stream
from clnn.runtime.run.parts import Build, Parts
from clnn.runtime.run.placement import Placement, placement_of
from clnn.runtime.run.pool import Pool
from clnn.runtime.run.state import ExecutionState
from clnn.runtime.run.tensor_info import TensorInfo, tensor_info
from clnn.runtime.run.watch import make_state, timeout_of
from clnn.settings import setting
from clnn.timeline import mark
from clnn.types import Array

if TYPE_CHECKING:
    from clnn.graph.ir import Graph
    from clnn.plan.layouts import Hints
    from clnn.plan.schedule import Chooser
    from clnn.runtime.run.family import Family
    from clnn.runtime.run.lent_arena import Arenas
    from clnn.runtime.run.profile import Profile, ProfileBlock


class Session(NamedSession):
    """A model compiled for one device. Safe to call from several threads.

    Made by clnn.compile_model. Call it with {input: array} for {output: array}, or run() in the form of
    onnxruntime. `inputs`, `outputs`: TensorInfo of each. A context manager; close() frees the device memory.
    """

    _output_names: Sequence[str] = ()

    @explains("the compilation of the model")
    def __init__(
        self,
        graph: Graph,
        info: DeviceInfo,
        options: Options,
        choose: Chooser | None = None,
        hints: Hints | None = None,
        family: Family | None = None,
        device: Device | None = None,
        build: Build | None = None,
    ) -> None:
        """choose: picks variants, as in make_plan. device: an opened one, for programs of this session
        alone. build: builds these.
        """
        from clnn.runtime.run.planning import planned  # stored networks need nothing that plans

        made = planned(graph, info, options, choose, hints, family, device)
        self._hold(made.parts, options, family.arenas if family else None)
        build = family.builder(graph) if build is None and family is not None else build
        self._begin(build, made.before, made.times)

    @classmethod
    def of_parts(
        cls, parts: Parts, options: Options, build: Build | None, arenas: Arenas | None = None
    ) -> Session:
        """Return the session of what another one was made of. arenas: of sessions of other shapes, too."""
        session, now = cls.__new__(cls), [time.perf_counter()]
        session._hold(parts, options, arenas)
        session._begin(build, parts.device.counts.pair, 3 * now)
        return session

    def _hold(self, parts: Parts, options: Options, arenas: Arenas | None) -> None:
        self._device, self._plan, self._products = parts.device, parts.plan, parts.products
        self._arenas, self._options, self._timeout = arenas, options, timeout_of(options)
        self._constants: Constants | None = parts.constants
        self._bindings, self._local = Bindings(parts.plan.inputs, {}), threading.local()
        self._timed = int(setting("CLNN_DEBUG")) >= 2
        self._fused = None if self._timed else parts.fused

    def _begin(self, build: Build | None, before: tuple[int, int], times: Sequence[float]) -> None:
        """Build the programs and make the first state. times: when plan and constants were begun and there."""
        self._fused_with_stamps: FusedLaunches | None = None
        sources = sources_of(self._plan, self._fused)
        mark("texts")
        build(self._device, sources) if build else self._device.build(sources)
        mark("binaries")
        cached, built = self._device.counts.pair
        self._counts, self._closed = (cached - before[0], built - before[1]), False
        self._states: Pool[ExecutionState] = Pool(self._options.states)
        self._states.give(self._states.take(self._call_state))
        mark("memory")
        first = {p.host: p.name for p in reversed(self._plan.outputs)}
        # Names of one value get an array each.
        self._named_outputs = [(p.name, p.host, first[p.host] == p.name) for p in self.plan.outputs]
        self._output_names = [p.name for p in self._plan.outputs]
        spans = pairwise((*times, time.perf_counter()))
        self._compiled = dict(zip(("plan", "pack", "build"), spans, strict=True))
        self._seconds = {what: end - begin for what, (begin, end) in self._compiled.items()}
        log_compiled(self._plan, self.placement, self._device.counts)

    @cached_property
    def cost(self) -> Cost:
        """What keeping this session costs beside others of its network."""
        alone = not self.is_of_many and self._constants is not None
        return Cost.of_plan(self._plan, self.is_lent, self._weights.nbytes if alone else 0)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the compiled network to a file, which `clnn.load` needs nothing else for.

        One in its place is replaced whole or not at all. Raises OSError, SettingError as `parts` or with guards.
        """
        from clnn.runtime.run.saved import save_network

        save_network(Path(path).absolute(), self.parts)

    @property
    def parts(self) -> Parts:
        """What this session is made of. Raises SettingError for a session of an OpenSession."""
        parts = self.all_parts
        if self.is_of_many:
            raise SettingError("sessions of open shapes are not saved: give compile_model shapes=.")
        return parts

    @property
    def all_parts(self) -> Parts:
        """What this session is made of, whoever else has it."""
        self._alive()
        return Parts(self._device, self._plan, self._weights, self._fused, self._products)

    @property
    def is_of_many(self) -> bool:
        """Whether it shares kernels, constants and memory with sessions of other shapes."""
        return self._arenas is not None

    def _fused_timed(self) -> FusedLaunches | None:
        """Return fused launches that note their times, None where nothing is fused or no clock."""
        if self._fused is None or not self.device.caps.clock:
            return None
        if self._fused_with_stamps is None:
            from clnn.runtime.run.fusing import fuse_plan

            self._fused_with_stamps = fuse_plan(self._plan, self._weights, True, self.is_of_many)
        return self._fused_with_stamps

    def _new_state(self, profiling: bool = False, separate: bool = False) -> ExecutionState:
        timed = profiling or self._timed
        fused, bound = self._fused, self._bindings.memory
        with explained(self._device, "the memory of a run"):
            if timed:
                fused = None if separate else self._fused_timed()
                self._device.build(sources_of(self._plan, fused))
            return make_state(
                self._timeout, self._device, self._plan, self._weights, bound, fused, timed
            )

    @property
    def plan(self) -> Plan:
        """The plan: graph, layouts, variants, memory; without the data of constants."""
        return self._plan

    @property
    def device(self) -> DeviceInfo:
        """The device it runs on."""
        return self._device.info

    @property
    def lost(self) -> str:
        """Why the device cannot be used any more (every call says so), empty while it can."""
        return self._device.lost

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """What the model wants."""
        return tuple(tensor_info(self._plan, p) for p in self._plan.inputs)

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """What the model gives."""
        return tuple(tensor_info(self._plan, p) for p in self._plan.outputs)

    @property
    def is_lent(self) -> bool:
        """Whether calls run in memory that sessions of the same network at other extents use, too.

        With a timeout they do not: what a hanging device writes to is of no more use to anyone.
        """
        alone = not self.is_of_many or self._timed or self._timeout is not None
        if alone:
            return False
        from clnn.runtime.run.lent_arena import is_lent

        return is_lent(self._plan, self._device)

    @property
    def placement(self) -> Placement:
        """Device, chosen variant per node, memory and compile times."""
        return placement_of(self._plan, self._device.info.title, self._seconds, self._products)

    @property
    def build_counts(self) -> tuple[int, int]:
        """Programs taken from the cache, and programs built."""
        if self.is_of_many:  # which share a device
            return self._counts
        return self._device.counts.pair

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """Return {output name: array} for {input name: array}.

        Raises InputNameError, ShapeError or DTypeError where `feeds` does not fit, DeviceLostError after
        close() or where the device is lost, HostMemoryError or OutOfDeviceMemoryError where memory is
        short, and ForkError in a forked child.
        """
        if self._closed or forked.process.refusal or self._device.lost:
            self._alive()
        try:
            bindings = self._bindings
            outs = self._run(arrays_of(feeds, bindings.ports, bindings.bound), NOT_HANDED, bindings)
            return {
                name: outs[host] if first else outs[host].copy()
                for name, host, first in self._named_outputs
            }
        except (load().Error, MemoryError) as err:
            explain(err, self._device, "a run")

    def _run(
        self, arrays: Mapping[str, Array], handed: Handed, bindings: Bindings | None = None
    ) -> dict[str, Array]:
        """Return the outputs by value, except those that are handed on."""
        bound, block = (bindings or self._bindings).memory, self._block
        if self._timed or block is not None:
            return self._run_profiled(arrays, bound, block, handed)
        states = self._states
        loan = states.take(self._call_state)
        try:
            outs: dict[str, Array] = loan.thing.run(arrays, bound, handed)
        finally:
            states.idle.append(loan)
            del loan  # a traceback that someone keeps holds it no more
            if states.waiting:
                states.wake()
        return outs

    def _run_profiled(
        self,
        arrays: Mapping[str, Array],
        bound: Mapping[str, Memory],
        block: ProfileBlock | None,
        handed: Handed,
    ) -> dict[str, Array]:
        """Run once, in this thread's profile where there is one, else into the log."""
        ports = [p for p in self._plan.outputs if p.host not in handed.kept]
        hosts = {p.host: np.empty(p.type.shape, p.type.dtype.numpy) for p in ports}
        if block is not None:
            block.profile.record(arrays, hosts, bound, handed)
            return hosts
        loan = self._states.take(self._call_state)
        try:
            log_run(loan.thing, loan.thing.run_timed(arrays, hosts, bound, handed))
        finally:
            self._states.idle.append(loan)
            del loan
            self._states.wake()
        return hosts

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
        check_stream(feeds, depth)
        from clnn.runtime.run.stream import Stream

        return Stream(self, iter(feeds), depth, pinned=self.device.type != "cpu")()

    def ready(self, timeout: float | None = None) -> bool:
        """Wait for kernels that are made in the background, `timeout` seconds at most; return whether all are there.

        For a model of known shapes they are only with Options(specialise="background"), else it is True.
        """
        return True

    def once_settled(self, then: Callable[[Session], object]) -> None:
        """Call `then` with the session that calls run on from then on: at once where that is this one."""
        then(self)

    def apart(self, feeds: Mapping[str, Any]) -> Callable[[], Mapping[str, Array]]:
        """Return what runs these feeds, of bound inputs too, and returns outputs, beside all calls."""
        state, bindings = self._stream_state(), Bindings(self._plan.inputs, {})
        arrays = arrays_of(feeds, bindings.ports, bindings.bound)

        def run() -> dict[str, Array]:
            outs = state.run(arrays, bindings.memory)
            return {port.name: outs[port.host] for port in self._plan.outputs}

        return run

    def _stream_state(self) -> ExecutionState:
        with self._device.lock:
            return self._new_state()

    def _explain(self, err: Exception) -> NoReturn:
        explain(err, self._device, "an item of a stream")

    @property
    def _block(self) -> ProfileBlock | None:
        """The `with` block of a profile that this thread is in."""
        ref = getattr(self._local, "block", None)
        return None if ref is None else ref()

    @property
    def _is_profiled(self) -> bool:
        """Whether runs of this thread are timed launch by launch."""
        return self._timed or self._block is not None

    @property
    def _is_bound(self) -> bool:
        """Whether an input is read from a buffer of the caller."""
        return bool(self._bindings.bound)

    @contextmanager
    def profile(
        self, trace: str | os.PathLike[str] | None = None, separate: bool = False
    ) -> Iterator[Profile]:
        """Measure every launch of the runs that this thread makes in the `with` block.

        trace: file that the Chrome trace of these runs is written to at the end of the block.
        separate: launch by launch, where runs otherwise fuse launches into few kernels; devices
        without a cycle counter always do.
        """
        from clnn.runtime.run.profile import Profile, ProfileBlock

        self._alive()
        compiled = {w: (round(a * 1e9), round(b * 1e9)) for w, (a, b) in self._compiled.items()}
        state = self._new_state(profiling=True, separate=separate)
        profile = Profile(self._plan, state, self._device.info.title, compiled)
        block = ProfileBlock(profile, self._block)
        self._local.block = weakref.ref(block)
        try:
            yield profile
        finally:
            if self._block is block:
                self._local.block = None if block.outer is None else weakref.ref(block.outer)
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
        with self._device.lock:
            if name not in self._bindings.bound:
                made = InputBinding(self._device, self._plan, ports[name], self._timeout)
                self._bindings = Bindings(self._plan.inputs, {**self._bindings.bound, name: made})
            return self._bindings.bound[name]

    def unbind_input(self, name: str) -> None:
        """Take input `name` from `feeds` again."""
        self._alive()
        with self._device.lock:
            if name in self._bindings.bound:
                bound = {n: b for n, b in self._bindings.bound.items() if n != name}
                self._bindings = Bindings(self._plan.inputs, bound)

    def _check(self, feeds: Mapping[str, Any]) -> tuple[dict[str, Array], Mapping[str, Memory]]:
        bindings = self._bindings
        return arrays_of(feeds, bindings.ports, bindings.bound), bindings.memory

    def _alive(self) -> None:
        forked.refuse()
        require(self._device)
        if self._closed:
            raise DeviceLostError("this session is closed. Compile the model again.")

    @property
    def _call_states(self) -> list[ExecutionState]:
        """The states of calls that were made so far."""
        return self._states.things

    @property
    def _weights(self) -> Constants:
        constants = self._constants
        if constants is None:  # close() was faster
            self._alive()
        assert constants is not None
        return constants

    def _call_state(self) -> ExecutionState:
        self._alive()
        with self._device.lock:
            if self._arenas is None or not self.is_lent:
                return self._new_state()
            from clnn.runtime.run.lent_arena import LentState

            parts = self._device, self._plan, self._weights, self._bindings.memory, self._fused
            with explained(self._device, "the memory of a run"):
                return LentState(self._arenas, *parts)

    def close(self) -> None:
        """Free the device memory; later calls raise DeviceLostError. A forked child frees nothing."""
        self._closed = True
        self._bindings = Bindings(self._plan.inputs, {})
        self._states.close()
        if not forked.process.refusal:
            self._constants = None

    def __repr__(self) -> str:
        ins = ", ".join(f"{p.name}: {p.type!r}" for p in self._plan.inputs)
        outs = ", ".join(f"{p.name}: {p.type!r}" for p in self._plan.outputs)
        return f"<clnn.Session on {self._device.info.title}: ({ins}) -> ({outs})>"

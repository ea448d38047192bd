"""StagedSession: a model whose shapes, or what runs, depend on data."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import numpy as np

from clnn.budget import host_memory
from clnn.errors import (
    DeviceLostError,
)
from clnn.importers.onnx.stages.program import (
    DeviceStage,
    Program,
    Repeat,
    StageInput,
    Sweep,
)
from clnn.importers.onnx.stages.read_back import bodies_of, read_by_host
from clnn.ops.host.registry import HostFunction, Value
from clnn.records import dataclass
from clnn.runtime.process import forked
from clnn.runtime.run.handed import DeviceArray, Exchange, fetched, run_handed
from clnn.runtime.run.keeping import Cost, Recent
from clnn.runtime.run.named import NamedSession, given_by_name
from clnn.runtime.run.open_ports import OpenTensorInfo
from clnn.runtime.run.open_session import OpenSession, wait_for_all
from clnn.runtime.run.placement import Placement
from clnn.runtime.run.session import Session
from clnn.runtime.stages.checks import check_shape, checked
from clnn.runtime.stages.execute import Execution
from clnn.runtime.stages.profile import StagedProfile
from clnn.runtime.stages.quick import Last, RunStage, quick, seen
from clnn.types import Array

FEW_PLANS = 16  # of one stage, for the values seen last that decide its shapes, which stay whatever they cost

Compile = Callable[[Any, bool], "Session | OpenSession"]


@dataclass
class StageInfo:
    """What a device stage did so far. why: what it waits for.

    read_back: bytes of its last run that the host reads. crossed: others, for later stages only, which
    stay on a device that has memory of its own. plans: how many were compiled for values and types; each
    has kernels for the shapes met.
    """

    name: str
    why: str
    nodes: tuple[str, ...]
    runs: int = 0
    read_back: int = 0
    crossed: int = 0
    plans: int = 0


class StagedSession(NamedSession):
    """A model compiled for one device, of which values decide shapes, or what runs.

    Made by clnn.compile_model where a model holds such nodes. Call it as a Session. Stages whose
    shapes are known are compiled at once, others in the first run that has their shapes.
    """

    def __init__(
        self,
        program: Program,
        inputs: Sequence[OpenTensorInfo],
        outputs: Sequence[OpenTensorInfo],
        compile_stage: Compile,
        device: str,
        exchange: Exchange | None = None,
        own: Mapping[str, HostFunction] = MappingProxyType({}),
    ) -> None:
        """compile_stage: the model of a stage, and whether its runs follow each other closely, as turns of
        a loop do -> its session. device: the title of what runs them.

        exchange: what keeps values on the device between stages; without it they are arrays. own: functions of
        the host's steps in the registry's place, by ONNX op type.
        """
        self._program = program
        self._inputs, self._outputs = tuple(inputs), tuple(outputs)
        self._compile, self._device = compile_stage, device
        self._exchange = exchange
        self._execution = Execution(self._run_stage, self._quick, exchange, own, self._profile)
        self._lock, self._making = threading.Lock(), threading.Lock()
        self._plans: dict[str, Recent[Hashable, Session | OpenSession]] = {}
        self._info: dict[str, StageInfo] = {}
        self._builds = [0, 0]
        self._closed, self._lost = False, ""
        self._local = threading.local()
        self._read_by_host: dict[str, frozenset[str]] = {}
        self._last: dict[str, Last] = {}
        self._close: set[str] = set()
        for stage, read, is_close in _all_stages(program, read_by_host(program)):
            self._read_by_host[stage.name] = read
            if is_close:
                self._close.add(stage.name)
            self._plans[stage.name] = Recent(attrgetter("cost"), FEW_PLANS, FEW_PLANS)
            self._info[stage.name] = StageInfo(stage.name, stage.why, stage.nodes)
            if not stage.fixed and all(read.is_static for read in stage.reads):
                self._session(stage, {read.name: read for read in stage.reads}, {})

    @property
    def program(self) -> Program:
        """The steps of a run."""
        return self._program

    @property
    def inputs(self) -> tuple[OpenTensorInfo, ...]:
        """What the model wants; open dimensions by their names."""
        return self._inputs

    @property
    def outputs(self) -> tuple[OpenTensorInfo, ...]:
        """What the model gives, as far as the model says it."""
        return self._outputs

    @property
    def device(self) -> str:
        """The title of the device that runs the stages."""
        return self._device

    @property
    def stages(self) -> tuple[StageInfo, ...]:
        """What each stage of the device did so far."""
        forked.refuse()
        with self._lock:
            return tuple(replace(info) for info in self._info.values())

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return {output name: array} for {input name: array}; sequences are lists of arrays.

        Raises as a Session does, and ModelError where values make no sense to a node.
        """
        forked.refuse()
        values = self._read(feeds)
        if self._closed:
            raise DeviceLostError("this session is closed. Compile the model again.")
        if self._lost:
            raise DeviceLostError(self._lost)
        with host_memory("a run"), np.errstate(all="ignore"):
            read = [values[n] for n in self._program.inputs]
            profile = self._profile()
            with self._noting_loss(), nullcontext() if profile is None else profile.whole_run():
                made = self._execution.run(self._program, read, {})
            return dict(zip(self._program.outputs, map(_given, made), strict=True))

    def prepare(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Make what runs with inputs of these shapes need, as far as no value decides it.

        shapes: input name -> shape, of all inputs that stages read. Plans behind a value that decides
        are made in the first run that has it. Raises InputNameError for a name that is no input or
        is missing, ShapeError for a shape that the model does not take.
        """
        forked.refuse()
        known = {info.name: info for info in self._inputs}
        given_by_name(shapes, self._inputs)
        extents: dict[str, int] = {}
        for name, shape in shapes.items():
            check_shape(known[name], tuple(shape), extents)
        for step in self._program.steps:
            if not isinstance(step, DeviceStage) or step.fixed:
                continue
            infos = [known.get(read.name) for read in step.reads]
            if any(info is None or info.dtype is None for info in infos):
                continue
            found = {read.name: tuple(shapes[read.name]) for read in step.reads}
            types = {
                read.name: _typed(read, np.dtype(known[read.name].dtype), len(found[read.name]))
                for read in step.reads
            }
            session = self._session(step, types, {})
            if isinstance(session, OpenSession):
                session.prepare(found)

    @contextmanager
    def profile(
        self, trace: str | os.PathLike[str] | None = None, separate: bool = False
    ) -> Iterator[StagedProfile]:
        """Measure every launch and every step on the host of the runs that this thread makes in the `with` block.

        trace, separate: as of Session.profile.
        """
        forked.refuse()
        outer, profile = self._profile(), StagedProfile(separate=separate)
        self._local.profile = profile
        try:
            with profile.open():
                yield profile
        finally:
            self._local.profile = outer
        if trace:
            profile.write_chrome(trace)

    def _profile(self) -> StagedProfile | None:
        """Return what measures this thread's runs, if anything."""
        return getattr(self._local, "profile", None)

    @property
    def lost(self) -> str:
        """Why the device cannot be used any more (every call says so), empty while it can."""
        return self._lost

    def ready(self, timeout: float | None = None) -> bool:
        """Wait for what is being made in the background, as an OpenSession does."""
        forked.refuse()
        with self._lock:
            plans = [plan for kept in self._plans.values() for plan in kept.values()]
        return wait_for_all(plans, timeout)

    @property
    def placement(self) -> Placement:
        """Device, kernels and memory of all plans that are ready."""
        forked.refuse()
        with self._lock:
            plans = [p for kept in self._plans.values() for p in kept.values()]
        found = [p.placement for p in plans if isinstance(p, Session) or p.shapes]
        seconds: dict[str, float] = {}
        for one in found:
            for what, spent in one.seconds.items():
                seconds[what] = seconds.get(what, 0.0) + spent
        return Placement(
            self._device,
            tuple(row for one in found for row in one.nodes),
            sum(one.launches for one in found),
            sum(one.arena_bytes for one in found),
            sum(one.arena_lower_bound for one in found),
            sum(one.copied_bytes for one in found),
            seconds,
            found[0].products if found else "float32",
        )

    @property
    def build_counts(self) -> tuple[int, int]:
        """Programs taken from the cache, and programs built, for all plans so far."""
        forked.refuse()
        with self._lock:
            live = [p.build_counts for kept in self._plans.values() for p in kept.values()]
            cached, built = (sum(column) for column in zip(*live, self._builds, strict=True))
            return cached, built

    @property
    def cost(self) -> Cost:
        """What keeping this session costs, with all plans that are there."""
        with self._lock:
            return Cost.of_all([p.cost for kept in self._plans.values() for p in kept.values()])

    def close(self) -> None:
        """Free the device memory; later calls raise DeviceLostError. A forked child frees nothing."""
        if forked.process.refusal:
            return
        with self._lock:
            self._closed = True
            self._compile = _closed  # which has the context
            self._last.clear()
            for kept in self._plans.values():
                for session in kept.values():
                    session.close()
                kept.clear()

    def __repr__(self) -> str:
        ins = ", ".join(f"{info.name}: {info.shape}" for info in self._inputs)
        return f"<clnn.StagedSession {ins}; {len(self._info)} stages>"

    @contextmanager
    def _noting_loss(self) -> Iterator[None]:
        """Remember that the device is lost where anything inside finds that."""
        try:
            yield
        except DeviceLostError as err:
            self._lost = "" if self._closed else str(err)
            if self._lost and self._exchange is not None:
                self._exchange.abandon("it was lost in a run")
            raise

    def _read(self, feeds: Mapping[str, Any]) -> dict[str, Value]:
        """Return the values of a call. Raises where they do not fit the model."""
        given = given_by_name(feeds, self._inputs)
        extents: dict[str, int] = {}
        return {info.name: checked(info, given[info.name], extents) for info in self._inputs}

    def _run_stage(self, stage: DeviceStage, values: Mapping[str, Value]) -> Mapping[str, Value]:
        feeds = {read.name: _as_feed(values[read.name]) for read in stage.reads}
        outputs = self._ran(stage, self._session_for(stage, feeds, values), feeds)
        self._note(stage, outputs)
        return outputs

    def _quick(
        self, stage: DeviceStage, fixed: Mapping[str, Array], read: Mapping[str, Any]
    ) -> RunStage:
        """Return what runs a stage in turns that do the same."""

        def last() -> Last | None:
            return None if self._profile() is not None else self._last.get(stage.name)

        def slow(feeds: Mapping[str, Array]) -> Mapping[str, Value]:
            return self._run_stage(stage, {**fixed, **feeds})

        return quick(fixed, read, last, slow, partial(self._note, stage))

    def _note(self, stage: DeviceStage, outputs: Mapping[str, Value]) -> None:
        """Count a run."""
        with self._lock:
            info, read = self._info[stage.name], self._read_by_host[stage.name]
            info.runs += 1
            info.read_back = sum(a.nbytes for n, a in outputs.items() if n in read)
            info.crossed = sum(a.nbytes for n, a in outputs.items() if n not in read)

    def _ran(
        self,
        stage: DeviceStage,
        session: Session | OpenSession,
        feeds: Mapping[str, Array | DeviceArray],
    ) -> Mapping[str, Value]:
        """Run a stage, in this thread's profile where there is one."""
        whole = self._profile()
        if whole is None:
            return self._handed(stage, session, feeds)
        if isinstance(session, OpenSession):
            session = session.at({name: array.shape for name, array in feeds.items()})
        return whole.run(stage.name, session, partial(self._handed, stage, session, feeds))

    def _handed(
        self,
        stage: DeviceStage,
        session: Session | OpenSession,
        feeds: Mapping[str, Array | DeviceArray],
    ) -> Mapping[str, Value]:
        """Run a session; what the host does not read stays on the device."""
        exchange = self._exchange
        if exchange is None:
            return session(feeds)
        read = self._read_by_host[stage.name]
        kept = [name for name in stage.outputs if name not in read]
        if isinstance(session, OpenSession):
            return session.run_handed(feeds, kept, exchange)
        return run_handed(session, feeds, kept, exchange)

    def _session_for(
        self,
        stage: DeviceStage,
        feeds: Mapping[str, Array | DeviceArray],
        values: Mapping[str, Value],
    ) -> Session | OpenSession:
        """Return the session of a stage for what it reads: in turns of a loop, the one of the turn before."""
        fixed = {n: np.asarray(fetched(values[n])) for n in stage.fixed}
        values_now = seen(fixed)
        kinds = [(feed.dtype, len(feed.shape)) for feed in feeds.values()]
        last = self._last.get(stage.name)
        if last is not None and kinds == last.kinds and values_now == last.fixed:
            return last.session
        types = {r.name: _typed(r, *kind) for r, kind in zip(stage.reads, kinds, strict=True)}
        session = self._session(stage, types, fixed)
        self._last[stage.name] = Last(kinds, values_now, session)
        return session

    def _session(
        self, stage: DeviceStage, types: Mapping[str, StageInput], fixed: Mapping[str, Array]
    ) -> Session | OpenSession:
        key = (
            tuple((t.dtype, t.shape) for t in types.values()),
            tuple((a.dtype, a.shape, a.tobytes()) for a in fixed.values()),
        )
        ready = self._ready(stage, key)
        if ready is not None:
            return ready
        with self._making:  # one at a time; runs whose plans are ready go on
            ready = self._ready(stage, key)
            if ready is None:
                model = stage.make_model(types, fixed)
                ready = self._compile(model, stage.name in self._close)
                self._keep(stage, key, ready)
        return ready

    def _ready(self, stage: DeviceStage, key: Hashable) -> Session | OpenSession | None:
        with self._lock:
            if self._closed:
                raise DeviceLostError("this session is closed. Compile the model again.")
            return self._plans[stage.name].use(key)

    def _keep(self, stage: DeviceStage, key: Hashable, session: Session | OpenSession) -> None:
        """Keep a plan; drop what was used longest ago, whose memory goes with its last run."""
        with self._lock:
            kept = self._plans[stage.name]
            kept[key] = session
            self._info[stage.name].plans += 1
            self._last.pop(stage.name, None)
            for _, old in kept.shrink():
                self._builds = [a + b for a, b in zip(self._builds, old.build_counts, strict=True)]


def _closed(model: Any, close: bool) -> Session:
    raise DeviceLostError("this session is closed. Compile the model again.")


def _all_stages(
    program: Program, read: frozenset[str], in_turn: bool = False
) -> list[tuple[DeviceStage, frozenset[str], bool]]:
    """Return the stages of a program, those of programs inside included, what the host reads, and
    whether they run in each turn of a loop.

    read: what it reads of this program. in_turn: whether a loop around it runs it in each turn.
    """
    found: list[tuple[DeviceStage, frozenset[str], bool]] = []
    for step in program.steps:
        if isinstance(step, DeviceStage):
            found.append((step, read, in_turn and not step.once))
        is_loop = isinstance(step, (Repeat, Sweep))
        for inner, wanted in bodies_of(step, read):
            found += _all_stages(inner, read_by_host(inner, wanted), is_loop or in_turn)
    return found


def _as_feed(value: Value) -> Array | DeviceArray:
    return value if isinstance(value, DeviceArray) else np.asarray(value)


def _given(value: Value) -> Value:
    """Return an output as a caller may keep and change it."""
    value = fetched(value)
    if isinstance(value, list):
        return [dict(v) if isinstance(v, dict) else np.array(v) for v in value]
    return None if value is None else np.array(value)


def _typed(read: StageInput, dtype: Any, rank: int) -> StageInput:
    """Return what a plan is compiled for: extents that the model fixes, others open."""
    shape = ("",) * rank if read.shape is None else read.shape
    return replace(read, dtype=dtype, shape=shape)

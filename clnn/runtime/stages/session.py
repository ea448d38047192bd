"""StagedSession: a model whose shapes, or what runs, depend on data."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from clnn.budget import host_memory
from clnn.errors import (
    DeviceLostError,
    DTypeError,
    InputNameError,
    PickleError,
    SettingError,
    ShapeError,
)
from clnn.importers.onnx.stages.program import DeviceStage, Program, StageInput, inner_programs
from clnn.ops.host.registry import Value
from clnn.runtime.process import forked
from clnn.runtime.process.forked import not_pickled
from clnn.runtime.run.awaitable import AwaitableCalls
from clnn.runtime.run.feeds import as_array, names_message
from clnn.runtime.run.open_session import OpenSession, OpenTensorInfo, wait_for_all
from clnn.runtime.run.placement import Placement
from clnn.runtime.run.session import Session
from clnn.runtime.stages.execute import Execution
from clnn.types import Array

MAX_PLANS = 16  # of one stage, for the values seen last that decide its shapes

Compile = Callable[[Any], "Session | OpenSession"]


@dataclass
class StageInfo:
    """What a device stage did so far. why: what it waits for.

    read_back: bytes of the last run that the host reads. crossed: others, for later stages only.
    plans: how many were compiled for values and types; each has kernels for the shapes met.
    """

    name: str
    why: str
    nodes: tuple[str, ...]
    runs: int = 0
    read_back: int = 0
    crossed: int = 0
    plans: int = 0


class StagedSession(AwaitableCalls):
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
    ) -> None:
        """compile_stage: the model of a stage -> its session. device: the title of what runs them."""
        self._program = program
        self._inputs, self._outputs = tuple(inputs), tuple(outputs)
        self._compile, self._device = compile_stage, device
        self._execution = Execution(self._run_stage)
        self._lock, self._making = threading.Lock(), threading.Lock()
        self._plans: dict[str, OrderedDict[Hashable, Session | OpenSession]] = {}
        self._info: dict[str, StageInfo] = {}
        self._builds = [0, 0]
        self._closed, self._lost = False, ""
        self._read_by_host: dict[str, frozenset[str]] = {}
        for stage, read in _all_stages(program):
            self._read_by_host[stage.name] = read
            self._plans[stage.name] = OrderedDict()
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
        with host_memory("a run"):
            read = [values[n] for n in self._program.inputs]
            made = self._execution.run(self._program, read, {})
            return dict(zip(self._program.outputs, map(_given, made), strict=True))

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """Return the arrays of the outputs `names` (None: all), as onnxruntime's run does."""
        known = [info.name for info in self._outputs]
        wanted = known if names is None else list(names)
        unknown = [n for n in wanted if n not in known]
        if unknown:
            raise InputNameError(names_message("output", unknown, [], known))
        made = self(feeds)
        return [made[n] for n in wanted]

    def stream(
        self, feeds: Iterable[Mapping[str, Any]], depth: int = 2
    ) -> Generator[dict[str, Any], None, None]:
        """Return a generator of outputs for an iterable of feeds, one after the other."""
        if depth < 1:
            raise SettingError(f"stream(depth={depth}): depth must be at least 1.")
        if isinstance(feeds, Mapping):
            raise InputNameError(
                "stream takes an iterable of feeds. For one feed call the session."
            )
        for feed in feeds:
            yield self(feed)

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

    def close(self) -> None:
        """Free the device memory; later calls raise DeviceLostError. A forked child frees nothing."""
        if forked.process.refusal:
            return
        with self._lock:
            self._closed = True
            for kept in self._plans.values():
                for session in kept.values():
                    session.close()
                kept.clear()

    def __reduce__(self) -> NoReturn:
        raise PickleError(not_pickled("session"))

    def __enter__(self) -> StagedSession:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        ins = ", ".join(f"{info.name}: {info.shape}" for info in self._inputs)
        return f"<clnn.StagedSession {ins}; {len(self._info)} stages>"

    def _read(self, feeds: Mapping[str, Any]) -> dict[str, Value]:
        """Return the values of a call. Raises where they do not fit the model."""
        known = [info.name for info in self._inputs]
        if not isinstance(feeds, Mapping):
            raise InputNameError(
                f"a session takes {{input name: array}}, not {type(feeds).__name__}."
            )
        missing = [n for n in known if n not in feeds]
        unknown = [n for n in feeds if n not in known]
        if missing or unknown:
            raise InputNameError(names_message("input", unknown, missing, known))
        extents: dict[str, int] = {}
        return {info.name: _checked(info, feeds[info.name], extents) for info in self._inputs}

    def _run_stage(self, stage: DeviceStage, values: Mapping[str, Value]) -> Mapping[str, Array]:
        fixed = {n: np.asarray(values[n]) for n in stage.fixed}
        feeds = {read.name: np.asarray(values[read.name]) for read in stage.reads}
        types = {read.name: _typed(read, feeds[read.name]) for read in stage.reads}
        try:
            outputs = self._session(stage, types, fixed)(feeds)
        except DeviceLostError as err:
            self._lost = "" if self._closed else str(err)
            raise
        with self._lock:
            info = self._info[stage.name]
            info.runs += 1
            read = self._read_by_host[stage.name]
            info.read_back = sum(a.nbytes for n, a in outputs.items() if n in read)
            info.crossed = sum(a.nbytes for n, a in outputs.items() if n not in read)
        return outputs

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
                ready = self._compile(stage.make_model(types, fixed))
                self._keep(stage, key, ready)
        return ready

    def _ready(self, stage: DeviceStage, key: Hashable) -> Session | OpenSession | None:
        with self._lock:
            if self._closed:
                raise DeviceLostError("this session is closed. Compile the model again.")
            kept = self._plans[stage.name]
            if key in kept:
                kept.move_to_end(key)
            return kept.get(key)

    def _keep(self, stage: DeviceStage, key: Hashable, session: Session | OpenSession) -> None:
        """Keep a plan; drop what was used longest ago, whose memory goes with its last run."""
        with self._lock:
            kept = self._plans[stage.name]
            kept[key] = session
            self._info[stage.name].plans += 1
            while len(kept) > MAX_PLANS:
                _, old = kept.popitem(last=False)
                self._builds = [a + b for a, b in zip(self._builds, old.build_counts, strict=True)]


def _all_stages(program: Program) -> list[tuple[DeviceStage, frozenset[str]]]:
    """Return the stages of a program, those of programs inside included, and what the host reads."""
    found: list[tuple[DeviceStage, frozenset[str]]] = []
    for step in program.steps:
        if isinstance(step, DeviceStage):
            found.append((step, program.read_by_host))
        for inner in inner_programs(step):
            found += _all_stages(inner)
    return found


def _given(value: Value) -> Value:
    """Return an output as a caller may keep and change it."""
    if isinstance(value, list):
        return [np.array(v) for v in value]
    return None if value is None else np.array(value)


def _typed(read: StageInput, array: Array) -> StageInput:
    """Return what a plan is compiled for: extents that the model fixes, others open."""
    if read.shape is not None:
        return replace(read, dtype=array.dtype)
    return replace(read, dtype=array.dtype, shape=("",) * array.ndim)


def _checked(info: OpenTensorInfo, value: Any, extents: dict[str, int]) -> Value:
    """Return an input. Raises ShapeError or DTypeError where it does not fit the model."""
    if isinstance(value, (list, tuple)) and info.dtype is None:
        return [as_array(v) for v in value]
    if value is None and info.dtype is None:
        return None
    array = as_array(value)
    if info.dtype is not None and array.dtype != info.dtype:
        raise DTypeError(
            f"input {info.name!r} is {array.dtype}, model wants {info.dtype}. "
            f"Pass x.astype(np.{info.dtype})."
        )
    if info.shape is None:
        return array
    fits = len(array.shape) == len(info.shape) and all(
        got == (want if isinstance(want, int) else extents.setdefault(want, got))
        for got, want in zip(array.shape, info.shape, strict=True)
    )
    if not fits:
        raise ShapeError(f"input {info.name!r} is {array.shape}, model wants {info.shape}.")
    return array

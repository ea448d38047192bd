"""A session for inputs of any extents: calls find the session for theirs, which is made once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, count, groupby
from operator import attrgetter
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from clnn.budget import host_memory
from clnn.errors import (
    DeviceLostError,
    ShapeError,
    UnsupportedOpError,
)
from clnn.runtime.process import forked
from clnn.runtime.run.feeds import as_array, check_dtype
from clnn.runtime.run.gears import Gears
from clnn.runtime.run.handed import DeviceArray, Exchange, fetched, run_handed
from clnn.runtime.run.keeping import Cost, Recent, constant_bytes
from clnn.runtime.run.named import NamedSession, check_stream, given_by_name
from clnn.runtime.run.not_ready import KernelsNotReadyError
from clnn.runtime.run.open_ports import OpenTensorInfo, check_shapes
from clnn.runtime.run.placement import Placement
from clnn.runtime.run.session import Session
from clnn.types import Array

if TYPE_CHECKING:
    from clnn.graph.ir import Graph
    from clnn.runtime.run.kept_shapes import KeptShapes

T = TypeVar("T")
FEW_SHAPES = 32  # those used last, which stay whatever their plans cost


def _closed(shapes: Mapping[str, tuple[int, ...]], wait: bool = True) -> NoReturn:
    raise DeviceLostError("this session is closed. Compile the model again.")


def wait_for_all(sessions: Iterable[Any], timeout: float | None) -> bool:
    """Wait until all sessions are ready; whether that came within `timeout` seconds."""
    end = None if timeout is None else monotonic() + timeout
    left = (None if end is None else max(0.0, end - monotonic()) for _ in count())
    ready = [session.ready(time) for session, time in zip(sessions, left, strict=False)]
    return all(ready)


class OpenSession(NamedSession):
    """A model compiled for one device, whose inputs may have another shape in each call.

    Made by clnn.compile_model where a model leaves dimensions open. Call it as a Session. What a shape
    needs is made in the first call with it, or before by `prepare`, and kept for the shapes seen last.
    Options.specialise says what is made besides that while calls go on; `ready` waits for it.
    """

    _output_names: Sequence[str] = ()

    def __init__(
        self,
        inputs: Sequence[OpenTensorInfo],
        outputs: Sequence[OpenTensorInfo],
        compile_at: Callable[..., Session],
        gears: Gears | None = None,
        doubt: UnsupportedOpError | None = None,
        free: Callable[[], object] = bool,
    ) -> None:
        """`compile_at`: input name -> shape -> session for these shapes.

        Where there are gears, it takes wait=False (see Family.patience).
        gears: what makes kernels while calls go on.
        doubt: which nodes may not run, unless shapes decide that they need not.
        free: frees memory that all sessions share, once they are closed.
        """
        self._free = free
        self.doubt = doubt
        self._inputs, self._outputs = tuple(inputs), tuple(outputs)
        self._output_names = [info.name for info in self._outputs]
        self._compile_at = compile_at
        self._sessions: Recent[tuple[tuple[int, ...], ...], Session]
        self._sessions = Recent(attrgetter("cost"), few=FEW_SHAPES, large=1)
        self._lock, self._making = threading.RLock(), threading.Lock()
        # Shapes that lack kernels: the network there, and what is set once they may be there.
        self._unready: dict[tuple[tuple[int, ...], ...], tuple[Graph, threading.Event]] = {}
        self._builds = [0, 0]
        self._closed, self._lost = False, ""
        self._gears, self._compiled = gears, False
        self._kept: KeptShapes | None = None

    def keep_in(self, kept: KeptShapes) -> None:
        """Take sessions for shapes from the cache where they are there, and keep those that are made."""
        self._kept = kept

    @property
    def inputs(self) -> tuple[OpenTensorInfo, ...]:
        """What the model wants; open dimensions by their names."""
        return self._inputs

    @property
    def outputs(self) -> tuple[OpenTensorInfo, ...]:
        """What the model gives; dimensions that the model names, or leaves out (""), as they are."""
        return self._outputs

    def at(self, shapes: Mapping[str, Sequence[int] | int]) -> Session:
        """Return the session for `shapes`: input name -> shape, or dimension name -> extent.

        Raises ShapeError for shapes that the model does not take, and what compile_model raises.
        """
        return self._session(tuple(self._shape(info, shapes) for info in self._inputs))

    def prepare(self, shapes: Mapping[str, Sequence[int] | int]) -> None:
        """Make what calls with `shapes` need, as `at` does."""
        self.at(shapes)

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """Return {output name: array} for {input name: array}. Raises as a Session does."""
        arrays, shapes = self._read(feeds)
        return self._run_at(shapes, lambda session: session(arrays), lambda: arrays)

    def run_fitting(
        self, arrays: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]
    ) -> dict[str, Array]:
        """Do what a call does for arrays of all inputs, whose shapes are these."""
        key = tuple(shapes[info.name] for info in self._inputs)
        return self._run_at(key, lambda session: session(arrays), lambda: arrays)

    def _run_at(
        self,
        shapes: tuple[tuple[int, ...], ...],
        run: Callable[[Session], dict[str, T]],
        arrays: Callable[[], Mapping[str, Array]],
    ) -> dict[str, T] | dict[str, Array]:
        """Return what `run` does in the session for shapes; `arrays` are for a run on the host."""
        gears = self._gears
        if gears is None:
            return run(self._session(shapes))
        found = self._session_or_outputs(shapes, arrays)
        if isinstance(found, dict):
            return found
        began = perf_counter()
        outs = run(found)
        if found.is_of_many and gears.is_often(shapes, perf_counter() - began):
            self._specialise(shapes, found)
        return outs

    def run_handed(
        self, feeds: Mapping[str, Array | DeviceArray], kept: Collection[str], exchange: Exchange
    ) -> dict[str, Any]:
        """Run with tensors on the device, as clnn.runtime.run.handed does.

        Outputs in `kept` are arrays where kernels are still being made.
        """
        given = given_by_name(feeds, self._inputs)
        return self._run_at(
            tuple(value.shape for value in given.values()),
            lambda session: run_handed(session, feeds, kept, exchange),
            lambda: {name: fetched(value) for name, value in given.items()},
        )

    def ready(self, timeout: float | None = None) -> bool:
        """Make kernels of its own for each shape that is there, and wait until nothing is being made.

        timeout: seconds to wait at most. Returns whether all is made. There is nothing to wait for
        where Options.specialise is not "background".
        """
        forked.refuse()
        gears = self._gears
        if gears is None:
            return True
        with self._lock:
            there = list(self._sessions.items())
        for key, session in reversed(there):
            if session.is_of_many:
                self._specialise(key, session)
        return gears.wait(timeout)

    def _specialise(self, key: tuple[tuple[int, ...], ...], general: Session) -> None:
        """Have a session made for one shape alone, which takes the place of one for any shape."""

        def take(special: Session) -> None:
            with self._lock:
                if self._sessions.get(key) is general:
                    self._sessions[key] = special
                    self._builds = [
                        a + b for a, b in zip(self._builds, general.build_counts, strict=True)
                    ]
            self._keep(key, special, is_special=True)

        if (gears := self._gears) is not None:
            gears.specialise(key, self._by_name(key), general, take)

    def stream(
        self, feeds: Iterable[Mapping[str, Any]], depth: int = 2
    ) -> Generator[dict[str, Array], None, None]:
        """Return a generator of outputs for an iterable of feeds, in the same order.

        Neighbouring feeds of one shape overlap as in a Session's stream. Raises as that does.
        """
        check_stream(feeds, depth)
        return self._streamed(feeds, depth)

    def _streamed(
        self, feeds: Iterable[Mapping[str, Any]], depth: int
    ) -> Generator[dict[str, Array], None, None]:
        read: Iterator[tuple[dict[str, Array], tuple[tuple[int, ...], ...]]] = map(
            self._read, feeds
        )
        for shapes, group in groupby(read, key=lambda pair: pair[1]):
            yield from self._streamed_alike(shapes, (arrays for arrays, _ in group), depth)

    def _streamed_alike(
        self,
        shapes: tuple[tuple[int, ...], ...],
        group: Iterator[Mapping[str, Array]],
        depth: int,
    ) -> Iterator[dict[str, Array]]:
        """Yield outputs for feeds of one shape: those of the host until its kernels are made."""
        for arrays in group:
            found = self._session_or_outputs(shapes, partial(dict, arrays))
            if isinstance(found, dict):
                yield found
            else:
                yield from found.stream(chain([arrays], group), depth)

    @property
    def shapes(self) -> list[dict[str, tuple[int, ...]]]:
        """The shapes of inputs that are ready, the one used last at the end."""
        forked.refuse()
        with self._lock:
            return [self._by_name(key) for key in self._sessions]

    @property
    def lost(self) -> str:
        """Why the device cannot be used any more (every call says so), empty while it can."""
        with self._lock:
            return next((s.lost for s in self._sessions.values() if s.lost), self._lost)

    @property
    def placement(self) -> Placement:
        """Device, kernels and memory of the shapes used last. Raises ShapeError where there are none."""
        forked.refuse()
        with self._lock:
            if not self._sessions:
                raise ShapeError("nothing is placed before shapes are known. Call prepare(shapes).")
            return next(reversed(self._sessions.values())).placement

    @property
    def build_counts(self) -> tuple[int, int]:
        """Programs taken from the cache, and programs built, for all shapes so far."""
        forked.refuse()
        with self._lock:
            live = [session.build_counts for session in self._sessions.values()]
            cached, built = (sum(column) for column in zip(*live, self._builds, strict=True))
            return cached, built

    @property
    def cost(self) -> Cost:
        """What keeping this session costs, with all shapes that are there."""
        with self._lock:
            sessions = list(self._sessions.values())
        if not sessions:
            return Cost(0, 0)
        own = Cost.of_all(session.cost for session in sessions)
        arena = max(session.plan.memory.total for session in sessions)
        return Cost(own.launches, own.nbytes + arena + constant_bytes(sessions[-1].plan))

    def close(self) -> None:
        """Free the device memory; later calls raise DeviceLostError. A forked child frees nothing."""
        if forked.process.refusal:
            return
        with self._lock:
            self._closed = True
            if self._gears is not None:
                self._gears.close()
                self._gears = None  # which has it too
            for session in self._sessions.values():
                session.close()
            self._sessions.clear()
            self._unready.clear()
            if self._kept is not None:
                self._kept.close()
            self._free()
            self._free, self._compile_at = bool, _closed  # which has the memory that sessions share

    def __repr__(self) -> str:
        ins = ", ".join(f"{info.name}: {info.shape}" for info in self._inputs)
        return f"<clnn.OpenSession {ins}; {len(self._sessions)} shapes ready>"

    def _by_name(self, key: tuple[tuple[int, ...], ...]) -> dict[str, tuple[int, ...]]:
        return {info.name: shape for info, shape in zip(self._inputs, key, strict=True)}

    def _session_or_outputs(
        self, shapes: tuple[tuple[int, ...], ...], arrays: Callable[[], Mapping[str, Array]]
    ) -> Session | dict[str, Array]:
        """Return the session for these shapes, or outputs where the host has them before its kernels are made."""
        forked.refuse()
        known = self._unready.get(shapes)
        if known is None or known[1].is_set() or shapes in self._sessions:
            try:
                found = self._session(shapes, patient=self._gears is None)
            except KernelsNotReadyError as err:
                known = self._wait_for(shapes, err)
            else:
                self._unready.pop(shapes, None)
                return found
        from clnn.graph.evaluate import GivenUpError, evaluate

        (graph, made), given = known, arrays()
        for name in graph.inputs:
            check_dtype(name, given[name].dtype, graph.types[name].dtype)
        try:
            with host_memory("a run on the host"):
                return evaluate(graph, given, made.is_set)
        except GivenUpError:
            return self._session(shapes)

    def _wait_for(
        self, shapes: tuple[tuple[int, ...], ...], err: KernelsNotReadyError
    ) -> tuple[Graph, threading.Event]:
        """Return the network at shapes that lack kernels, and what is set once a plan is worth another try.

        Calls until then need no plan.
        """
        gears, made = self._gears, err.made
        if made is None and gears is not None:
            made = gears.make_lacking(shapes, self._by_name(shapes))
        if made is None:  # nobody makes them
            made = threading.Event()
            made.set()
        if len(self._unready) >= FEW_SHAPES:
            self._unready.clear()
        known = self._unready[shapes] = err.graph, made
        return known

    def _session(self, key: tuple[tuple[int, ...], ...], patient: bool = True) -> Session:
        """Return the session for these shapes. patient: wait for kernels for small images, too.

        Raises KernelsNotReadyError where it does not.
        """
        session = self._ready(key)
        if session is not None:
            return session
        with self._making:  # one shape at a time; calls with shapes that are ready go on
            session = self._ready(key)
            if session is None:
                check_shapes(self._inputs, key)
                session = self._made_by(partial(self._recalled, key))
                session = session or self._compile(key, patient)
                with self._lock:
                    self._sessions[key] = session
                    self._forget_old()
            return session

    def _recalled(self, key: tuple[tuple[int, ...], ...]) -> Session | None:
        """Return the session for these shapes that a process before made."""
        return None if self._kept is None else self._kept.find(self._by_name(key))

    def _compile(self, key: tuple[tuple[int, ...], ...], patient: bool) -> Session:
        """Return the session for these shapes, made of the model."""
        is_first, gears = not self._compiled, self._gears
        if not is_first and gears is not None:
            gears.hurry()
        more = {} if patient else {"wait": False}
        session = self._made_by(partial(self._compile_at, self._by_name(key), **more))
        self._compiled = True
        self._keep(key, session)
        if is_first and gears is not None:
            gears.make_small()
        return session

    def _keep(
        self, key: tuple[tuple[int, ...], ...], session: Session, is_special: bool = False
    ) -> None:
        """Keep what was made for later processes."""
        if self._kept is not None and (session.is_of_many or is_special):
            self._kept.keep((self._inputs, self._outputs), self._by_name(key), session)

    def _made_by(self, make: Callable[[], T]) -> T:
        """Return what `make` does, and note whether the device is lost."""
        try:
            with host_memory("the compilation of the model"):
                made = make()
        except DeviceLostError as err:
            self._lost = str(err)
            raise
        self._lost = ""
        return made

    def _ready(self, key: tuple[tuple[int, ...], ...]) -> Session | None:
        """Return the session that is there for these shapes, and note that it was used last."""
        forked.refuse()
        with self._lock:
            if self._closed:
                _closed({})
            return self._sessions.use(key)

    def _forget_old(self) -> None:
        """Drop what was used longest ago; memory goes with the last call that is in it."""
        for key, old in self._sessions.shrink():
            if self._gears is not None:
                self._gears.forget(key)
            self._builds = [a + b for a, b in zip(self._builds, old.build_counts, strict=True)]

    def _read(
        self, feeds: Mapping[str, Any]
    ) -> tuple[dict[str, Array], tuple[tuple[int, ...], ...]]:
        """Return the arrays of a call, and their shapes in the order of the inputs."""
        given = given_by_name(feeds, self._inputs)
        arrays = {name: as_array(value) for name, value in given.items()}
        return arrays, tuple(array.shape for array in arrays.values())

    def _shape(
        self, info: OpenTensorInfo, shapes: Mapping[str, Sequence[int] | int]
    ) -> tuple[int, ...]:
        """Return an input's shape as `shapes` give it."""
        whole = shapes.get(info.name)
        if whole is not None and not isinstance(whole, int):
            return tuple(int(extent) for extent in whole)
        if info.shape is None:
            raise ShapeError(
                f"the shape of input {info.name!r} is not given: the model leaves it open."
            )
        found: list[int] = []
        for extent in info.shape:
            given = shapes.get(extent) if isinstance(extent, str) else extent
            if not isinstance(given, int):
                raise ShapeError(
                    f"dimension {extent!r} of input {info.name!r} is not given: input is {info.shape}."
                )
            found.append(given)
        return tuple(found)

"""A session for a model of which the values of small inputs decide what runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from clnn.errors import (
    DeviceLostError,
    DTypeError,
    ShapeError,
)
from clnn.runtime.process import forked
from clnn.runtime.run.feeds import as_array
from clnn.runtime.run.keeping import Cost, Recent
from clnn.runtime.run.kept_shapes import KeptShapes, Shapes
from clnn.runtime.run.named import NamedSession, given_by_name
from clnn.runtime.run.open_ports import KnownPorts, OpenTensorInfo
from clnn.runtime.run.open_session import wait_for_all
from clnn.runtime.run.placement import Placement
from clnn.runtime.run.session import Session
from clnn.types import Array

FEW_SESSIONS = 8  # of the values and shapes seen last, which stay whatever they cost

CompileAt = Callable[[Mapping[str, Array], Mapping[str, tuple[int, ...]]], Any]


class ValuedSession(NamedSession):
    """A model compiled for one device, once for each value of the inputs that decide what runs.

    Made by clnn.compile_model where small inputs of whole numbers decide an If whose branches hold
    further control or recurrent nodes, such as the rate of a speech detector. Call it as a Session.
    """

    def __init__(
        self,
        inputs: Sequence[OpenTensorInfo],
        outputs: Sequence[OpenTensorInfo],
        deciding: Sequence[str],
        compile_at: CompileAt,
    ) -> None:
        """deciding: names of inputs. compile_at: their values, and shapes of the others -> session."""
        self._inputs, self._outputs = tuple(inputs), tuple(outputs)
        self.deciding = tuple(deciding)
        self._compile_at = compile_at
        self._sessions: Recent[Hashable, Any]
        self._sessions = Recent(attrgetter("cost"), FEW_SESSIONS, FEW_SESSIONS)
        self._lock, self._making = threading.Lock(), threading.Lock()
        self._builds = [0, 0]
        self._closed = False
        self._kept: KeptShapes | None = None

    def keep_in(self, kept: KeptShapes) -> None:
        """Take sessions from the cache where they are there, and keep those that are made."""
        self._kept = kept

    @property
    def inputs(self) -> tuple[OpenTensorInfo, ...]:
        """What the model wants; open dimensions by their names."""
        return self._inputs

    @property
    def outputs(self) -> tuple[OpenTensorInfo, ...]:
        """What the model gives, as far as the model says it."""
        return self._outputs

    @property
    def sessions(self) -> list[Any]:
        """The sessions of values and shapes that are ready, the one used last at the end."""
        forked.refuse()
        with self._lock:
            return list(self._sessions.values())

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return {output name: array} for {input name: array}. Raises as a Session does."""
        given = given_by_name(feeds, self._inputs)
        arrays = {name: as_array(value) for name, value in given.items()}
        values = {name: arrays.pop(name) for name in self.deciding}
        made: dict[str, Any] = self._session(values, arrays)(arrays)
        return made

    @property
    def placement(self) -> Placement:
        """Device, kernels and memory of what was used last. Raises ShapeError before the first run."""
        ready = self.sessions
        if not ready:
            raise ShapeError("nothing is placed before values are known. Run the session once.")
        placement: Placement = ready[-1].placement
        return placement

    @property
    def build_counts(self) -> tuple[int, int]:
        """Programs taken from the cache, and programs built, so far."""
        rows = [session.build_counts for session in self.sessions]
        cached, built = (sum(column) for column in zip(*rows, self._builds, strict=True))
        return cached, built

    @property
    def lost(self) -> str:
        """Why the device cannot be used any more (every call says so), empty while it can."""
        return next((session.lost for session in self.sessions if session.lost), "")

    def ready(self, timeout: float | None = None) -> bool:
        """Wait for what is being made in the background, as an OpenSession does."""
        return wait_for_all(self.sessions, timeout)

    @property
    def cost(self) -> Cost:
        """What keeping this session costs, with all values that are there."""
        return Cost.of_all([session.cost for session in self.sessions])

    def close(self) -> None:
        """Free the device memory; later calls raise DeviceLostError. A forked child frees nothing."""
        if forked.process.refusal:
            return
        with self._lock:
            self._closed = True
            for session in self._sessions.values():
                session.close()
            self._sessions.clear()

    def __repr__(self) -> str:
        ins = ", ".join(f"{info.name}: {info.shape}" for info in self._inputs)
        return f"<clnn.ValuedSession {ins}; decided by {', '.join(self.deciding)}>"

    def _session(self, values: Mapping[str, Array], arrays: Mapping[str, Array]) -> Any:
        key = (
            tuple((a.dtype.name, a.shape, a.tobytes()) for a in values.values()),
            tuple((name, array.dtype.name, array.shape) for name, array in sorted(arrays.items())),
        )
        session = self._ready(key)
        if session is not None:
            return session
        with self._making:
            session = self._ready(key)
            if session is None:
                self._check({**values, **arrays})
                shapes = {name: array.shape for name, array in arrays.items()}
                session = self._recalled(values, shapes) or self._compiled(values, shapes)
                self._keep(key, session)
        return session

    def _recalled(self, values: Mapping[str, Array], shapes: Shapes) -> Any:
        """Return the session for values and shapes that a process before made, None where there is none."""
        return None if self._kept is None else self._kept.find_for(values, shapes)

    def _compiled(self, values: Mapping[str, Array], shapes: Shapes) -> Any:
        session = self._compile_at(values, shapes)
        if self._kept is not None and isinstance(session, Session):
            known = KnownPorts(self._inputs, self._outputs, {}, self.deciding)
            self._kept.keep_for(known, values, shapes, session)
        return session

    def _check(self, arrays: Mapping[str, Array]) -> None:
        """Raise ShapeError or DTypeError where an input does not fit the model."""
        for info in self._inputs:
            array, want = arrays[info.name], info.shape
            if info.dtype is not None and array.dtype != info.dtype:
                raise DTypeError(
                    f"input {info.name!r} is {array.dtype}, model wants {info.dtype}. "
                    f"Pass x.astype(np.{info.dtype})."
                )
            if want is not None and (
                len(want) != array.ndim
                or any(
                    isinstance(d, int) and d != e for d, e in zip(want, array.shape, strict=True)
                )
            ):
                raise ShapeError(f"input {info.name!r} is {array.shape}, model wants {want}.")

    def _ready(self, key: Hashable) -> Any:
        forked.refuse()
        with self._lock:
            if self._closed:
                raise DeviceLostError("this session is closed. Compile the model again.")
            return self._sessions.use(key)

    def _keep(self, key: Hashable, session: Any) -> None:
        """Keep a session; drop what was used longest ago, whose memory goes with its last run."""
        with self._lock:
            self._sessions[key] = session
            for _, old in self._sessions.shrink():
                self._builds = [a + b for a, b in zip(self._builds, old.build_counts, strict=True)]

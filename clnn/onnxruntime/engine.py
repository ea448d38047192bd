"""What runs behind an InferenceSession: sessions of clnn for one model, made as feeds want them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from clnn.apis.sessions import SessionStore
from clnn.errors import UnsupportedOpError
from clnn.importers.onnx.port_info import Known
from clnn.onnxruntime.providers import Chosen
from clnn.onnxruntime.source import Source
from clnn.types import Array

# What reads and compiles models is imported with the first one: a program may import more than it uses.
if TYPE_CHECKING:
    from clnn.importers.onnx.load import Loaded
    from clnn.importers.onnx.port_info import PortInfo
    from clnn.runtime.run.session import Session

FEW_KEPT = 8  # sessions for feeds that the model as it is does not take, whatever they cost
_shared: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
_making = threading.Lock()


class Engine:
    """A model on a device. Safe to use from several threads.

    Equal models with equal options share one session of clnn, with its
    constants, programs and memory. Raises what clnn.compile_model raises.
    """

    def __init__(
        self,
        source: Source,
        chosen: Chosen,
        overrides: Mapping[str, int],
        data: Mapping[str, Array],
        real: Callable[[Exception], Any],
    ) -> None:
        """overrides: extents by name of a symbolic dimension, or by denotation after a colon.

        data: of initializers, in place of the file's. real: from an error to a session of
        onnxruntime, for models that clnn refuses where `chosen` says so.
        """
        self._real, self._chosen = real, chosen
        self._source = source
        self._changed: Loaded | None = (
            None  # the model with what was asked for in place of what it says
        )
        known = None if overrides or data else self._source.known()
        known = known or self._checked(overrides, data)
        self.interface, self.outputs = known.interface, known.outputs
        self.ports = {p.name: p for p in self.interface.inputs}
        self.defaults = {p.name: p for p in self.interface.overridable}
        names = [d for p in self.ports.values() for d in p.dims or () if isinstance(d, str)]
        self._repeats = len(set(names)) < len(names)
        self._scalars = [p.name for p in self.ports.values() if p.kind == "tensor" and p.dims == ()]
        self._may_be_special = bool(self._repeats or self._scalars or self.defaults)
        try:
            self.session = self._share(_key(self._source, chosen, overrides, data))
            _refuse_doubtful(self.session)
        except UnsupportedOpError as err:
            self._fall_back(err)
        self._others: SessionStore[Any] = SessionStore(FEW_KEPT, attrgetter("cost"))
        self._bound: Session | None = None

    @property
    def _loaded(self) -> Loaded:
        return self._changed or self._source.loaded()

    def _checked(self, overrides: Mapping[str, int], data: Mapping[str, Array]) -> Known:
        """Return the interface of the model, which is checked."""
        from clnn.importers.onnx.interface import (
            check_operators,
            inferred_outputs,
            read_interface,
            with_inputs,
        )

        interface = read_interface(self._loaded)
        fixed = _overridden(interface.inputs, overrides)
        if fixed or data:
            self._changed = with_inputs(self._loaded, fixed, data)
            interface = read_interface(self._loaded)
        check_operators(self._loaded)
        dims = {p.name: p.dims for p in interface.inputs if p.dims is not None}
        known = Known(interface, inferred_outputs(self._loaded, dims))
        if self._changed is None:
            self._source.keep(known)
        return known

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """Return the outputs `names` (None: all). Raises what a session of clnn raises."""
        made: list[Any]
        try:
            if self._may_be_special and self._is_special(feeds):
                made = self._special(feeds).run(names, self._plain(feeds))
            else:
                made = self.session.run(names, feeds)
        except UnsupportedOpError as err:  # of a shape, or of values, that came with this run
            self._fall_back(err)
            made = self.session.run(names, feeds)
        return made

    def _fall_back(self, err: UnsupportedOpError) -> None:
        if not self._chosen.fallback:
            raise err
        self.session = self._real(err)
        self._may_be_special = False

    def session_at(self, feeds: Mapping[str, Any]) -> Any:
        """Return the session of clnn that runs feeds of these shapes."""
        from clnn.runtime.run.open_session import OpenSession

        special = self._may_be_special and self._is_special(feeds)
        found = self._special(feeds) if special else self.session
        if isinstance(found, OpenSession):
            return found.at({n: np.shape(a) for n, a in feeds.items()})
        return found

    def bound(self, feeds: Mapping[str, Sequence[int]]) -> Session:
        """Return the session whose inputs lie in buffers of the device; shapes of all inputs."""
        from clnn.compile import compile_fixed

        shapes = {n: tuple(s) for n, s in feeds.items()}
        ports = None if self._bound is None else {p.name: p.shape for p in self._bound.inputs}
        if self._bound is None or ports != shapes:
            self._bound = compile_fixed(
                self._loaded, self._chosen.device, self._chosen.options, shapes
            )
        return self._bound

    def _share(self, key: Hashable) -> Any:
        from clnn.entry import compile_model, compile_read

        how = self._chosen.device, self._chosen.options
        with _making:
            session = _shared.get(key)
            if session is None and self._changed is not None:
                session = compile_model(self._changed, *how)
            elif session is None:
                session = compile_read(self._source.held, *how, self._readable)
            _shared[key] = session
            return session

    def _readable(self) -> Any:
        """Return the model as compilers take it: a file is mapped, bytes are parsed once."""
        found = self._source.held.readable()
        return found if isinstance(found, str) else self._loaded

    def _is_special(self, feeds: Mapping[str, Any]) -> bool:
        """Whether feeds are such as onnxruntime takes and the model as it is does not."""
        if self.defaults and any(name in self.defaults for name in feeds):
            return True
        if any(np.ndim(feeds[name]) for name in self._scalars):
            return True
        extents: dict[str, int] = {}
        return self._repeats and any(
            extents.setdefault(want, got) != got
            for name, port in self.ports.items()
            for want, got in zip(port.dims or (), np.shape(feeds[name]), strict=False)
            if isinstance(want, str) and want not in ("", "?")
        )

    def _special(self, feeds: Mapping[str, Any]) -> Any:
        from clnn.compile import compile_model
        from clnn.importers.onnx.interface import with_inputs

        values = {n: a for n, a in feeds.items() if n in self.defaults}
        shapes = {n: a.shape for n, a in feeds.items() if isinstance(a, np.ndarray)}
        key = (
            tuple(sorted(shapes.items())),
            tuple((n, a.tobytes()) for n, a in sorted(values.items())),
        )
        session = self._others.get(key)
        if session is None:
            given = {n: s for n, s in shapes.items() if n not in values}
            model = with_inputs(self._loaded, given, values)
            made = compile_model(model, self._chosen.device, self._chosen.options)
            session = self._others.put(key, made)
        return session

    def _plain(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        return {n: a for n, a in feeds.items() if n not in self.defaults}


def _refuse_doubtful(session: Any) -> None:
    """Raise UnsupportedOpError where no shape will make a session of open shapes run."""
    from clnn.runtime.run.open_session import OpenSession

    if isinstance(session, OpenSession) and session.doubt is not None:
        from clnn.importers.onnx.report import is_final, refuse

        refuse([p for p in session.doubt.problems if is_final(p)])


def _overridden(
    ports: Sequence[PortInfo], overrides: Mapping[str, int]
) -> dict[str, list[int | str | None]]:
    """Return the dimensions of the inputs that overrides change."""
    found: dict[str, list[int | str | None]] = {}
    for port in ports:
        dims = list(port.dims or ())
        for axis, dim in enumerate(dims):
            denoted = port.denotations[axis] if port.denotations else ""
            extent = overrides.get(f":{denoted}") if denoted else None
            extent = overrides.get(dim, extent) if isinstance(dim, str) else extent
            if extent is not None and not isinstance(dim, int):
                dims[axis] = extent
        if dims != list(port.dims or ()):
            found[port.name] = dims
    return found


def _key(
    source: Source, chosen: Chosen, overrides: Mapping[str, int], data: Mapping[str, Array]
) -> Hashable:
    """Return what a session is made of."""
    given = tuple((name, a.dtype.str, a.tobytes()) for name, a in sorted(data.items()))
    return source.told(), chosen.device, chosen.options, tuple(sorted(overrides.items())), given

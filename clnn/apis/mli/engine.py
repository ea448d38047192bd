"""From a call to a session: graphs of ops, sessions kept by all that shapes them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any

from clnn.apis.mli.enums import MliStatus
from clnn.apis.mli.modes import modes
from clnn.apis.mli.tensor import Refused
from clnn.apis.sessions import SessionStore
from clnn.graph.builder import GraphBuilder
from clnn.graph.ir import Graph
from clnn.types import Array, TensorType

if TYPE_CHECKING:
    from clnn.runtime.run.session import Session

_sessions: SessionStore[Session] = SessionStore(256)
_last = threading.local()


def run(key: Hashable, make: Callable[[], Graph], feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return the outputs of the graph that `make` returns, run on the device that modes() says.

    key: all that the graph is made of, but for the modes. The session is kept for equal keys.
    """
    from clnn.options import Options
    from clnn.runtime.doctor.selection import select_device
    from clnn.runtime.run.session import Session

    info = select_device(modes().device)
    whole = (key, modes(), info.index)
    session = _sessions.get(whole) or _sessions.put(whole, Session(make(), info, Options()))
    return session(feeds)


def compute(key: Hashable, ops: Callable[..., str], *arrays: Array) -> Array:
    """Return the value that `ops` adds to a graph, computed from arrays.

    ops: called with a builder and a value for each array. key: all that `ops` depends on, but for
    the modes and the arrays' shapes and types.
    """
    kinds = tuple(TensorType.of(array) for array in arrays)

    def make() -> Graph:
        build = GraphBuilder()
        inputs = [build.input(f"x{k}", kind) for k, kind in enumerate(kinds)]
        return build.graph({"y": ops(build, *inputs)}, "mli")

    feeds = {f"x{k}": array for k, array in enumerate(arrays)}
    return run((key, kinds), make, feeds)["y"]


def clear() -> None:
    """Close all kept sessions, which frees their device memory. Not while other threads compute."""
    _sessions.clear()


def last_error() -> str:
    """Return why the last call of this thread was refused, or ''."""
    return str(getattr(_last, "why", ""))


def status_of(function: Callable[..., None]) -> Callable[..., MliStatus]:
    """Return `function` with MLI's status as its result; a refusal leaves everything as it was."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> MliStatus:
        _last.why = ""
        try:
            function(*args, **kwargs)
        except Refused as refusal:
            _last.why = f"{function.__name__}: {refusal}"
            return refusal.status
        return MliStatus.MLI_STATUS_OK

    return call


def named(
    function: Callable[..., None], name: str, *first: Any, doc: str = ""
) -> Callable[..., MliStatus]:
    """Return a function of MLI: `function` with its first arguments fixed."""

    def call(*args: Any, **kwargs: Any) -> None:
        function(*first, *args, **kwargs)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = doc or function.__doc__
    return status_of(call)

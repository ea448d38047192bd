"""From a call to a session: graphs of ops, sessions kept by all that shapes them."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import wraps
from typing import Any

import numpy as np

from clnn.apis.mli.enums import MliStatus
from clnn.apis.mli.modes import modes
from clnn.apis.mli.tensor import Array, Refused
from clnn.graph.ir import Graph, Node, check
from clnn.ops.movement.views import Reshape, Transpose
from clnn.ops.spec import OpSpec
from clnn.types import TensorType, dtype_of

KEPT = 256  # sessions
_sessions: OrderedDict[Hashable, Any] = OrderedDict()
_lock = threading.Lock()
_last = threading.local()


class Builder:
    """A graph as it grows; values are names."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.types: dict[str, TensorType] = {}
        self.consts: dict[str, Array] = {}
        self.inputs: list[str] = []

    def input(self, name: str, shape: Sequence[int], dtype: np.dtype[Any]) -> str:
        """Add an input that the caller feeds."""
        self.types[name] = TensorType(tuple(shape), dtype_of(dtype))
        self.inputs.append(name)
        return name

    def const(self, array: Array) -> str:
        """Add a constant."""
        name = f"c{len(self.consts)}"
        self.types[name] = TensorType(array.shape, dtype_of(array.dtype))
        self.consts[name] = np.ascontiguousarray(array)
        return name

    def add(self, spec: OpSpec, *inputs: str | None) -> str:
        """Add a node with one output."""
        (made,) = spec.infer([None if n is None else self.types[n] for n in inputs])
        name = f"v{len(self.nodes)}"
        self.types[name] = made
        self.nodes.append(Node(f"n{len(self.nodes)}", spec, inputs, (name,), spec.kind))
        return name

    def reshape(self, value: str, shape: Sequence[int]) -> str:
        """Return `value` in another shape."""
        return self.add(Reshape(tuple(shape)), value)

    def transpose(self, value: str, order: Sequence[int]) -> str:
        """Return `value` with its axes in another order."""
        return self.add(Transpose(tuple(order)), value)

    def image(self, value: str) -> str:
        """Return an image (h, w, c) as (1, c, h, w)."""
        h, w, c = self.types[value].shape
        return self.transpose(self.reshape(value, (1, h, w, c)), (0, 3, 1, 2))

    def from_image(self, value: str) -> str:
        """Return (1, c, h, w) as (h, w, c)."""
        _, c, h, w = self.types[value].shape
        return self.reshape(self.transpose(value, (0, 2, 3, 1)), (h, w, c))

    def graph(self, outputs: Mapping[str, str]) -> Graph:
        """Return the checked graph."""
        return check(
            Graph(
                tuple(self.nodes), self.types, self.consts, tuple(self.inputs), dict(outputs), "mli"
            )
        )


def digest(*arrays: Array | None) -> bytes:
    """Return a digest of constants."""
    found = hashlib.blake2b(digest_size=16)
    for array in arrays:
        found.update(b"-" if array is None else repr((array.shape, array.dtype.str)).encode())
        found.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
    return found.digest()


def run(key: Hashable, make: Callable[[], Graph], feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return the outputs of the graph that `make` returns, run on the device that modes() says.

    key: all that the graph is made of, but for the modes. The session is kept for equal keys.
    """
    from clnn.options import Options
    from clnn.runtime.device.device import select
    from clnn.runtime.run.session import Session

    info = select(modes().device)
    whole = (key, modes(), info.index)
    with _lock:
        session = _sessions.get(whole)
        if session is not None:
            _sessions.move_to_end(whole)
    if session is None:
        session = Session(make(), info, Options())
        with _lock:
            _sessions[whole] = session
            while len(_sessions) > KEPT:
                _sessions.popitem(last=False)
    outputs: dict[str, Array] = session(feeds)
    return outputs


def clear() -> None:
    """Drop all kept sessions and their device memory."""
    with _lock:
        _sessions.clear()


def last_error() -> str:
    """Return why the last call of this thread was refused, or ''."""
    return str(getattr(_last, "why", ""))


def status_of(function: Callable[..., None]) -> Callable[..., MliStatus]:
    """Return `function` with MLI's status as its result; a refusal leaves everything as it was."""

    @wraps(function)
    def call(*given: Any, **named: Any) -> MliStatus:
        _last.why = ""
        try:
            function(*given, **named)
        except Refused as refusal:
            _last.why = f"{function.__name__}: {refusal}"
            return refusal.status
        return MliStatus.MLI_STATUS_OK

    return call


def named(
    function: Callable[..., None], name: str, *first: Any, doc: str = ""
) -> Callable[..., MliStatus]:
    """Return a function of MLI: `function` with its first arguments fixed."""

    def call(*given: Any, **kept: Any) -> None:
        function(*first, *given, **kept)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = doc or function.__doc__
    return status_of(call)

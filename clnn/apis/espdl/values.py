"""What layers compute, before it is computed: values that know what they are made of.

A call of a layer adds a value; reading a tensor's elements runs all that it is made of as one session.
Sessions are kept by all that shapes them, so that the same network runs again at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

from clnn.apis.espdl.modes import modes
from clnn.apis.sessions import SessionStore
from clnn.errors import ShapeError
from clnn.graph.builder import GraphBuilder
from clnn.graph.ir import Graph
from clnn.types import Array, TensorType

if TYPE_CHECKING:
    from clnn.runtime.run.session import Session

Ops = Callable[..., str]
_sessions: SessionStore[Session] = SessionStore(256)


class Value:
    """An array, or what ops make of other values.

    ops: called with a builder and the names of the sources; returns the name of the result. key: all
    that `ops` depends on besides. device: that it is to run on.
    """

    def __init__(
        self,
        source: Array | None,
        ops: Ops | None = None,
        sources: Sequence[Value] = (),
        key: Hashable = (),
    ) -> None:
        self.source, self.ops, self.sources, self.key = source, ops, tuple(sources), key
        self.device = modes().device


def made(key: Hashable, ops: Ops, *sources: Value) -> Value:
    """Return the value that `ops` makes of others."""
    return Value(None, ops, sources, key)


def _ordered(wanted: Sequence[Value]) -> list[Value]:
    """Return all values that some are made of, sources first."""
    order: dict[int, Value] = {}
    stack = [(value, False) for value in reversed(wanted)]
    while stack:
        value, done = stack.pop()
        if id(value) in order:
            continue
        if done:
            order[id(value)] = value
        else:
            stack.append((value, True))
            stack += [(source, False) for source in reversed(value.sources)]
    return list(order.values())


def session_of(wanted: Sequence[Value]) -> tuple[Session, dict[str, Array]]:
    """Return (session that computes values as y0, y1..., what to feed it)."""
    from clnn.options import Options
    from clnn.runtime.doctor.selection import select_device
    from clnn.runtime.run.session import Session

    order = _ordered(wanted)
    numbers = {id(value): k for k, value in enumerate(order)}
    feeds = {f"x{k}": v.source for k, v in enumerate(order) if v.source is not None}
    rows = tuple(
        (
            v.key if v.source is None else TensorType.of(v.source),
            tuple(numbers[id(s)] for s in v.sources),
        )
        for v in order
    )
    info = select_device(wanted[0].device)
    key = (rows, tuple(numbers[id(v)] for v in wanted), info.index)
    kept = _sessions.get(key)
    if kept is None:
        kept = _sessions.put(key, Session(_graph(order, wanted), info, Options()))
    return kept, {name: array for name, array in feeds.items() if array is not None}


def _graph(order: Sequence[Value], wanted: Sequence[Value]) -> Graph:
    build, names = GraphBuilder(), dict[int, str]()
    for k, value in enumerate(order):
        if value.source is not None:
            names[id(value)] = build.input(f"x{k}", TensorType.of(value.source))
        else:
            assert value.ops is not None
            names[id(value)] = value.ops(build, *(names[id(s)] for s in value.sources))
    return build.graph({f"y{k}": names[id(v)] for k, v in enumerate(wanted)}, "espdl")


def evaluate(wanted: Sequence[Value]) -> list[Array]:
    """Return the arrays of values, computed by one session. Raises ShapeError for several devices."""
    if not wanted:
        return []
    if len({v.device for v in wanted}) > 1:
        raise ShapeError("tensors that were computed on several devices are read one by one.")
    session, feeds = session_of(wanted)
    found = session(feeds)
    return [found[f"y{k}"] for k in range(len(wanted))]


def clear() -> None:
    """Close all kept sessions, which frees their device memory. Not while other threads compute."""
    _sessions.clear()

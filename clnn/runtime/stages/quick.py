"""Stages in the turns of a loop: the session that ran last is run again, where it was for the same."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from clnn.ops.host.registry import Value
from clnn.runtime.run.open_session import OpenSession
from clnn.runtime.run.session import Session
from clnn.types import Array

RunStage = Callable[[Mapping[str, Array]], Mapping[str, Value]]
Kinds = Mapping[str, tuple[Any, tuple[int, ...]]]  # input name -> type and shape


class Last(NamedTuple):
    """What a stage ran with last: types and ranks of what it reads, values that are constants of its plan."""

    kinds: list[tuple[Any, int]]
    fixed: list[tuple[Any, ...]]
    session: Session | OpenSession


def seen(fixed: Mapping[str, Array]) -> list[tuple[Any, ...]]:
    """Return what values that decide are compared by."""
    return [(array.dtype, array.shape, array.tobytes()) for array in fixed.values()]


def quick(
    fixed: Mapping[str, Array],
    read: Kinds,
    last: Callable[[], Last | None],
    slow: RunStage,
    note: Callable[[Mapping[str, Value]], object],
) -> RunStage:
    """Return what runs a stage on arrays of these types and shapes, with these deciding values.

    last: what it ran with last; where that was the same now, its session is run as long as others do not run another.
    slow: runs it otherwise. note: takes the outputs of the session.
    """
    now = last()
    kinds = [(dtype, len(shape)) for dtype, shape in read.values()]
    shapes = {name: shape for name, (_, shape) in read.items()}
    if now is None or now.kinds != kinds or now.fixed != seen(fixed):
        return slow
    held = weakref.ref(now.session)
    del now

    def run(feeds: Mapping[str, Array]) -> Mapping[str, Value]:
        found, session = last(), held()
        if session is None or found is None or found.session is not session:
            return slow(feeds)
        if isinstance(session, OpenSession):
            outputs: Mapping[str, Value] = session.run_fitting(feeds, shapes)
        else:
            outputs = session(feeds)
        note(outputs)
        return outputs

    return run

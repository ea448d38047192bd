"""Who is told how far the building of programs is: a listener of the thread that has them built."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from clnn.records import dataclass


@dataclass(frozen=True)
class BuildProgress:
    """Programs that are being built: how many of how many are done, and the title of the last one."""

    done: int
    total: int
    title: str = ""


Listener = Callable[[BuildProgress], None]
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def heard(listener: Listener | None) -> Iterator[None]:
    """Tell a listener of what this thread builds meanwhile; None leaves the one that is there."""
    if listener is None:
        yield
        return
    before = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(before)


def tell(done: int, total: int, title: str = "") -> None:
    """Tell this thread's listener, where there is one."""
    listener = _listener.get()
    if listener is not None:
        listener(BuildProgress(done, total, title))


def is_heard() -> bool:
    """Whether this thread has a listener."""
    return _listener.get() is not None

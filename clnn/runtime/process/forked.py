"""OpenCL does not survive a fork: the child of a process that used a driver is told so, at once.

A driver's threads do not exist in the child, and its locks may be held for ever; any call could hang,
and so could the release of a buffer. A process that has not used a driver may fork, and its children
use OpenCL as any process.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from clnn.errors import ForkError

Lock = TypeVar("Lock", bound=Any)


class Process:
    """What a process knows of itself."""

    def __init__(self) -> None:
        self.user = 0  # the process that used a driver first: this one, or one it was forked from
        self.refusal = ""  # why this process cannot use OpenCL


process = Process()
_kept: list[weakref.ref[Any]] = []


def refuse() -> None:
    """Raise ForkError where this process was forked from one that had used a driver."""
    if process.refusal:
        raise ForkError(process.refusal)


def use_driver() -> None:
    """Note that this process uses a driver from now on. Raises ForkError as refuse does."""
    refuse()
    if not process.user:
        process.user = os.getpid()


def renewed(lock: Lock) -> Lock:
    """Return a module's lock, which is free in forked children: another thread may have held it."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lock._at_fork_reinit)
    return lock


_lock = renewed(threading.Lock())


def keep(holder: object) -> None:
    """Have what holds objects of a driver stay as it is in forked children, which free nothing."""
    with _lock:
        _kept[:] = [ref for ref in _kept if ref() is not None]
        _kept.append(weakref.ref(holder))


def never_free(chosen: Callable[[Any], bool]) -> None:
    """Have what `keep` was told of, and is chosen, stay until the process ends."""
    with _lock:
        holders = [ref() for ref in _kept]
    for holder in holders:
        if holder is not None and chosen(holder):
            _add_reference(holder)


def _add_reference(holder: object) -> None:
    """Count one reference that nobody gives back."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(holder))


def not_pickled(what: str) -> str:
    """Return why a session or the like cannot be pickled or copied, and what to do."""
    return (
        f"a {what} cannot be pickled or copied: its memory and kernels live on a device of this"
        " process. Give the other process the model's path and compile there; the cache of programs"
        " makes that fast."
    )


def _begin_child() -> None:
    if not process.user:
        return
    process.refusal = (
        f"this process ({os.getpid()}) was forked from process {process.user} after that had used an"
        " OpenCL device, and drivers do not survive a fork: a call could hang for ever. Start the"
        ' process afresh, by multiprocessing.get_context("spawn"), or fork before the first use of a'
        " device and compile in the child."
    )
    for holder in [ref() for ref in _kept]:
        if holder is not None:
            _add_reference(holder)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_child)

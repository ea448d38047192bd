"""Builds of programs, one at a time where a driver needs that.

Threads that build, and let go of programs, side by side break tables of Intel's compiler for CPUs (seen with
2026.22): it then sometimes never ends, and all builds behind it wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

INTEL = "Intel(R) OpenCL"  # name of the platform of its CPUs


class _Turns:
    """Who may build: one thread of all that have the same lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


_TURNS = _Turns()


def built(program: Any, options: Sequence[str], platform: str) -> Any:
    """Return a program, built; platform: the name of its device's. Raises what the driver raises."""
    turn: AbstractContextManager[Any] = _TURNS.lock if platform == INTEL else nullcontext()
    with turn:
        return program.build(list(options), cache_dir=False)


def wait_no_longer() -> None:
    """Have the builds from now on not wait for those before, one of which may never end."""
    _TURNS.lock = threading.Lock()

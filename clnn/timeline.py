"""Where the time of a start goes: marks that are set as its steps end, in processes that ask for them."""

from __future__ import annotations

import time
from typing import NamedTuple


class Mark(NamedTuple):
    """A step that ended: its name, and the process's wall clock and CPU seconds then."""

    step: str
    wall: float
    cpu: float


_marks: list[Mark] | None = None


def begin() -> list[Mark]:
    """Keep marks from now on, in the list that is returned."""
    global _marks
    _marks = []
    return _marks


def mark(step: str) -> None:
    """Note that what was done since the last mark was `step`."""
    if _marks is not None:
        _marks.append(Mark(step, time.time(), time.process_time()))

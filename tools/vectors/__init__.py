"""Golden vectors of the systems that clnn speaks: one module per system, run by check_vectors.py.

A module has `cases(folder) -> Iterator[Case]` and `run(case, device) -> Outcome`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """One recorded call: the kernel it belongs to, its own name, and what the system's module needs."""

    kernel: str
    name: str
    data: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Outcome:
    """What became of one case. status: exact, failed or skipped; reason: why not exact."""

    status: str
    reason: str = ""

"""What a doctor's check reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from clnn.records import dataclass

OK, WARN, FAIL = "ok", "warn", "FAIL"


@dataclass(frozen=True)
class Check:
    """Outcome of one check: `status` is "ok", "warn" or "FAIL", `fix` what to do about it."""

    name: str
    status: str
    detail: str
    fix: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

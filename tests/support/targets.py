"""A GPU that is only described, for the code that sessions would generate for one."""

from __future__ import annotations

import pytest

from clnn.runtime.run import session
from clnn.target import Target

GPU = Target("gpu", vector=4, compute_units=4, max_work_group=256, local_bytes=32768)


def generate_for(monkeypatch: pytest.MonkeyPatch, target: Target) -> None:
    """Let sessions generate the code for `target`, whatever device they run on."""
    monkeypatch.setattr(session, "target_of", lambda info: target)

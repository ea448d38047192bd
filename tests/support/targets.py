"""Devices that are only described, or lack something, for the code that sessions would generate for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from clnn.runtime.device.device import DeviceInfo
from clnn.runtime.device.target import target_of
from clnn.runtime.run import planning
from clnn.target import Target

CPU = Target("cpu", 16, 2, 256, 2**20, frozenset({"half_rate"}))
GPU = Target("gpu", vector=4, compute_units=4, max_work_group=256, local_bytes=32768)


def without(monkeypatch: pytest.MonkeyPatch, *features: str) -> None:
    """Let sessions generate the code that they would for a device that lacks `features`."""

    def lacking(info: DeviceInfo) -> Target:
        target = target_of(info)
        return replace(target, features=target.features.difference(features))

    monkeypatch.setattr(planning, "target_of", lacking)


def generate_for(monkeypatch: pytest.MonkeyPatch, target: Target) -> None:
    """Let sessions generate the code for `target`, whatever device they run on."""
    monkeypatch.setattr(planning, "target_of", lambda info: target)


def having(monkeypatch: pytest.MonkeyPatch, *features: str, lacking: Sequence[str] = ()) -> None:
    """Let sessions generate the code that they would for a device that has `features` besides, and some not."""

    def gaining(info: DeviceInfo) -> Target:
        target = target_of(info)
        return replace(target, features=target.features.union(features).difference(lacking))

    monkeypatch.setattr(planning, "target_of", gaining)

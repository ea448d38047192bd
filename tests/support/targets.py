"""Devices that are only described, or lack something, for the code that sessions would generate for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clnn.ops.shared import amx
from clnn.runtime.device.device import DeviceInfo, select
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


def having(monkeypatch: pytest.MonkeyPatch, *features: str) -> None:
    """Let sessions generate the code that they would for a device that has `features` besides."""

    def gaining(info: DeviceInfo) -> Target:
        target = target_of(info)
        return replace(target, features=target.features.union(features))

    monkeypatch.setattr(planning, "target_of", gaining)


def with_tiles(monkeypatch: pytest.MonkeyPatch, device: str, way: str) -> None:
    """Let sessions generate the code for a CPU with registers of tiles, and try all ways in which those of 2 by 2 lie.

    way: "x86", the instructions, where the device has them, or "plain", what they do in C, on any.
    """
    if way == "x86" and not select(device).caps.x86_amx:
        pytest.skip("the device has no registers of tiles")

    def wide(info: DeviceInfo) -> Target:
        target = target_of(info)
        if not target.is_cpu:
            return target
        features = target.features - {"x86_amx", "plain_amx"} | {f"{way}_amx"}
        return replace(target, vector=amx.COLUMNS, features=features)

    monkeypatch.setattr(planning, "target_of", wide)
    monkeypatch.setattr("clnn.compile.target_of", wide)
    monkeypatch.setattr(amx, "CANDIDATES", 64)
    monkeypatch.setattr(amx, "SUMS", ((2, 2),))

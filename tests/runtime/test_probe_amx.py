"""Registers of tiles (AMX): when the probe refuses them, and how the system is asked for them."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from types import SimpleNamespace

import pytest

from clnn.cli.devices import table
from clnn.runtime.device import device, probe_amx, processor
from clnn.runtime.device.device import select
from clnn.runtime.device.probe import Capabilities, Capability
from clnn.runtime.device.probe_bench import RefusedError

CPU, GPU = 2, 4
POCL = "Portable Computing Language"


def bench(kind: int = CPU, platform: str = POCL) -> SimpleNamespace:
    on = SimpleNamespace(type=kind, platform=SimpleNamespace(name=platform))
    return SimpleNamespace(device=on, cl=SimpleNamespace(device_type=SimpleNamespace(CPU=CPU)))


@pytest.mark.parametrize(
    ("given", "there", "allowed", "why"),
    [
        (bench(GPU), True, True, "not a CPU"),
        (bench(platform="Intel(R) OpenCL"), True, True, "Intel's runtime"),
        (bench(), False, True, "the CPU has no AMX"),
        (bench(), True, False, "the system does not let this process use AMX"),
    ],
)
def test_where_tiles_are_refused(monkeypatch, given, there, allowed, why):
    monkeypatch.setattr(probe_amx, "has_tiles", lambda: there)
    monkeypatch.setattr(probe_amx, "may_use_tiles", lambda: allowed)
    with pytest.raises(RefusedError, match=why):
        probe_amx.step_x86_amx(given)


def test_a_process_that_is_not_given_tiles_does_without(monkeypatch):
    """What a probe's child found holds for the processor: each process has to ask for itself."""
    caps = Capabilities(x86_amx=Capability(True), x86_vnni=Capability(True))
    for allowed in (True, False):
        monkeypatch.setattr(device, "may_use_tiles", lambda allowed=allowed: allowed)
        got = device._given(caps)
        assert (bool(got.x86_amx), bool(got.x86_vnni)) == (allowed, True)
    assert got.x86_amx.reason == processor.NOT_GIVEN


@pytest.mark.parametrize(("answer", "allowed"), [(0, True), (-1, False)])
def test_linux_is_asked_once(monkeypatch, answer, allowed):
    asked = []
    library = SimpleNamespace(syscall=lambda *given: asked.append(given) or answer)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(processor, "has_tiles", lambda: True)
    monkeypatch.setattr(processor.sys, "platform", "linux")
    processor.may_use_tiles.cache_clear()
    try:
        assert [processor.may_use_tiles() for _ in range(2)] == [allowed] * 2
        assert asked == [(158, 0x1023, 18)]
        processor.may_use_tiles.cache_clear()
        monkeypatch.setattr(processor, "has_tiles", lambda: False)
        assert not processor.may_use_tiles()
        assert len(asked) == 1
    finally:
        processor.may_use_tiles.cache_clear()


def test_devices_say_that_bfloat16_is_multiplied_by_tiles(any_device):
    info = select(any_device)
    caps = replace(info.caps, x86_amx=Capability(True))
    said = "bfloat16  multiplied by tiles of registers (AMX)" in table([replace(info, caps=caps)])
    assert said or info.type != "cpu"

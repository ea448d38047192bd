"""Numbers that drivers state under names that pyopencl does not know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clnn.runtime.device import device as device_module
from clnn.runtime.device.device import list_unprobed
from clnn.runtime.device.handles import Handle
from clnn.runtime.drivers import queries
from clnn.runtime.drivers.loader import load, loader_library
from clnn.runtime.drivers.queries import IP_VERSION, stated_number

MAX_COMPUTE_UNITS, NAME, NOTHING = 0x1002, 0x102B, 0x7FFF0001


@pytest.fixture(scope="module")
def handles() -> list[Any]:
    platforms = load().get_platforms()
    if loader_library() is None:
        pytest.skip("the loader cannot be told here")
    return [device for platform in platforms for device in platform.get_devices()]


def test_what_a_driver_states_is_read(handles: list[Any]) -> None:
    assert handles
    for handle in handles:
        assert stated_number(handle, MAX_COMPUTE_UNITS) == handle.max_compute_units > 0


def test_what_it_does_not_state_is_nought(handles: list[Any]) -> None:
    """Nor is what is no number of 32 bits."""
    for handle in handles:
        assert stated_number(handle, NOTHING) == stated_number(handle, NAME) == 0


@pytest.mark.parametrize("library", [None, Path("/nowhere/libOpenCL.so.1"), Path(__file__)])
def test_without_a_loader_nothing_is_known(
    handles: list[Any], library: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "loader_library", lambda: library)
    assert stated_number(handles[0], MAX_COMPUTE_UNITS) == 0


def test_gpus_that_list_the_query_are_asked(
    handles: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPUs of Intel's list it, too, and number something else."""
    asked = []

    def answer(handle: Any, name: int) -> int:
        asked.append(name)
        return 20 << 22

    monkeypatch.setattr(device_module, "stated_number", answer)
    listed = [device_module._read(Handle(0, 0, handle)) for handle in handles]
    gpus = [info for info in listed if info.type == "gpu" and _lists(info)]
    assert asked == [IP_VERSION] * len(gpus)
    assert {info.ip_version for info in listed if info not in gpus} <= {0}
    monkeypatch.setattr(device_module, "_kind", lambda *_: "gpu")
    for handle in handles:
        info = device_module._read(Handle(0, 0, handle))
        assert info.ip_version == (20 << 22 if _lists(info) else 0)


def test_the_number_is_listed_with_a_device() -> None:
    assert all(info.ip_version == 0 for info in list_unprobed() if info.type != "gpu")


def _lists(info: device_module.DeviceInfo) -> bool:
    return "cl_intel_device_attribute_query" in info.extensions

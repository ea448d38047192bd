"""Shared by all tests: devices, the --long option, caches of their own, third-party data."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import pytest
from common import ROOT, usable_devices

_CACHE = ROOT / ".cache" / "tests"
os.environ.setdefault("CLNN_BUILD_JOBS", "1")  # the test workers are the parallelism
os.environ.setdefault("CLNN_CACHE_DIR", str(_CACHE / "clnn"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the long forms of suites too")
    parser.addoption("--device", default=None, help="run device tests on this device only")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--long"):
        return
    skip = pytest.mark.skip(reason="long form: pass --long")
    for item in items:
        if "exhaustive" in item.keywords:
            item.add_marker(skip)
    _deal(items)


def _deal(items: list[pytest.Item]) -> None:
    """Deal the cases of each test out to the devices: each case runs on one of them.

    A test of one case runs on all devices unless it is marked `dealt`.
    """
    tests: dict[str, dict[str, list[pytest.Item]]] = {}
    for item in items:
        device = getattr(item, "callspec", None) and item.callspec.params.get("device")
        if isinstance(device, str):
            test = item.nodeid.partition("[")[0]
            tests.setdefault(test, {}).setdefault(device, []).append(item)
    skip = pytest.mark.skip(reason="runs on another device: pass --long")
    for test, devices in tests.items():
        for place, cases in enumerate(devices.values()):
            for number, item in enumerate(cases):
                alone = len(cases) == 1 and "dealt" not in item.keywords
                if not alone and _turn(test, number, len(devices)) != place:
                    item.add_marker(skip)


def _turn(test: str, number: int, devices: int) -> int:
    """Return the place of the device that a case runs on, by its number among the test's cases.

    Digit sums of numbers have no period, so that no value of a parameter keeps to one device.
    """
    turn = zlib.crc32(test.encode())
    while number and devices > 1:
        number, digit = divmod(number, devices)
        turn += digit
    return turn % devices


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" not in metafunc.fixturenames:
        return
    wanted = metafunc.config.getoption("--device")
    names = [wanted] if wanted else usable_devices()
    if not names:
        names = [pytest.param("none", marks=pytest.mark.skip(reason="no usable OpenCL device"))]
    metafunc.parametrize("device", names, ids=[_short(n) for n in names])


def _short(name: object) -> str:
    text = str(name).lower()
    for key, short in (
        ("portable", "pocl"),
        ("intel", "intel"),
        ("nvidia", "nvidia"),
        ("oclgrind", "oclgrind"),
    ):
        if key in text:
            return short
    return text.replace(" ", "-")[:16]


@pytest.fixture(scope="session")
def shared_folder() -> Path:
    """The folder beside the checkout with third-party models and vectors."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip(
            f"third-party test data is not there: no folder {folder.name} beside the checkout"
        )
    return folder

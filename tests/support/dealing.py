"""What the short and the quick form of the tests leave out: combinations of parameters, devices."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import pytest
from common import ROOT

SLOW = "Portable"  # this driver builds slowly: it gets half as many cases as another
# What the quick form does not look into: drivers, simulators, suites and tools take their time.
NOT_QUICK = (
    "oclgrind",
    "onnx_suite",
    "runtime",
    "test_wheel.py",
    "tools",
    "verification",
)
# Files whose tests of any one device take a driver that builds faster; the long form has them on the slow one.
ON_QUICK = (
    "test_compare_engines.py",
    "test_gpu_report.py",
)


def quick_one(devices: Sequence[str]) -> str:
    """Return a device whose driver is not slow to build, the last one where there is none."""
    return next((device for device in devices if SLOW not in device), devices[-1])


def needs_device(item: pytest.Item) -> bool:
    """Whether a test runs kernels: it then takes the fixture `device` or `any_device`."""
    return not {"device", "any_device"}.isdisjoint(getattr(item, "fixturenames", ()))


def has_no_device(item: pytest.Item) -> bool:
    """Whether a test is one of the quick form, which a machine without any driver passes too."""
    here = item.path.relative_to(ROOT / "tests").parts[0]
    return here not in NOT_QUICK and not needs_device(item)


def deal(items: list[pytest.Item]) -> None:
    """Leave out what is for the long form: combinations of parameters, and all devices but one.

    Where parameters are crossed, each value is met in some case. Each case that is left runs on one
    device; a test of one case runs on all of them unless it is marked `dealt`.
    """
    tests: dict[str, dict[str, list[pytest.Item]]] = {}
    for item in items:
        device = getattr(item, "callspec", None) and item.callspec.params.get("device")
        if isinstance(device, str) and "exhaustive" not in item.keywords:
            test = item.nodeid.partition("[")[0]
            tests.setdefault(test, {}).setdefault(device, []).append(item)
    skip = pytest.mark.skip(reason="runs on another device or with other values: pass --long")
    for test, devices in tests.items():
        turns = [device for device in devices for _ in range(1 if SLOW in device else 2)]
        for device, cases in devices.items():
            kept = {id(c): number for number, c in enumerate(_each_value(cases))}
            for item in cases:
                alone = len(cases) == 1 and "dealt" not in item.keywords
                mine = id(item) in kept and turns[_turn(test, kept[id(item)], len(turns))] == device
                if not (alone or mine):
                    item.add_marker(skip)


def _each_value(cases: list[pytest.Item]) -> list[pytest.Item]:
    """Return cases that have each value of each parametrisation of a test."""
    values = [_values(item) for item in cases]
    unmet = set().union(*values)
    kept = set()
    while unmet:
        best = max(range(len(cases)), key=lambda k: len(values[k] & unmet))
        kept.add(best)
        unmet -= values[best]
    return [item for k, item in enumerate(cases) if k in kept]


def _values(item: pytest.Item) -> set[str]:
    """Return names and value of each parametrisation of a case, none first, less the device."""
    params = dict(item.callspec.params)  # type: ignore[attr-defined]
    marks = [mark.args[0] for mark in item.iter_markers("parametrize")]
    lists = [m.replace(" ", "").split(",") if isinstance(m, str) else list(m) for m in marks]
    together = {name for names in lists for name in names}
    lists += [[name] for name in params if name not in together and name != "device"]
    return {repr([(name, params.get(name)) for name in names]) for names in [[], *lists]}


def _turn(test: str, number: int, turns: int) -> int:
    """Return whose turn it is to run a case, by its number among the test's cases.

    Digit sums of numbers have no period, so that no value of a parameter keeps to one device.
    """
    turn = zlib.crc32(test.encode())
    while number and turns > 1:
        number, digit = divmod(number, turns)
        turn += digit
    return turn % turns

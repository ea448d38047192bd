"""The short form meets each value of each parameter, and runs each case that it keeps once."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from common import ROOT
from dealing import ON_QUICK, deal, quick_one

DEVICES = ("Intel(R) OpenCL", "Portable Computing Language", "Other")


class Item:
    """As much of a test item as is looked at."""

    def __init__(self, test, marks, params, keywords=()):
        self.nodeid = f"{test}[{params}]"
        self.callspec = SimpleNamespace(params=params)
        self.marks, self.keywords, self.skipped = marks, keywords, False

    def iter_markers(self, name):
        return [SimpleNamespace(args=(names,)) for names in self.marks]

    def add_marker(self, mark):
        self.skipped = True


def dealt(test, devices, values, keywords=()):
    """Return (device, parameters) of what is left of a test; values: names -> rows of values."""
    items = []
    for device, *rows in itertools.product(devices, *values.values()):
        params = {"device": device}
        for names, row in zip(values, rows, strict=True):
            params |= dict(zip(names.split(","), row, strict=True))
        items.append(Item(test, list(values), params, keywords))
    deal(items)
    return [i.callspec.params for i in items if not i.skipped]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_each_value_is_met_and_no_case_runs_twice(count):
    values = {"a,b": [(1, 2), (1, 3), (2, 3), (2, 2)], "c": [("x",), ("y",), ("z",)]}
    for test in map(str, range(20)):
        left = dealt(test, DEVICES[:count], values)
        assert {(p["a"], p["b"]) for p in left} == set(values["a,b"]) and len(left) == 4
        assert {p["c"] for p in left} == {"x", "y", "z"}


def test_every_case_of_one_list_runs_and_every_device_has_some():
    left = dealt("test", DEVICES, {"a": [(k,) for k in range(60)]})
    assert sorted(p["a"] for p in left) == list(range(60))
    shares = [sum(p["device"] == device for p in left) for device in DEVICES]
    assert shares[1] < min(shares[0], shares[2]) and min(shares) >= 10
    for device in DEVICES:
        assert {p["a"] % 2 for p in left if p["device"] == device} == {0, 1}


def test_a_single_case_runs_on_all_devices_or_on_one_if_it_is_marked():
    for test in map(str, range(20)):
        assert len(dealt(test, DEVICES, {})) == 3
        assert len(dealt(test, DEVICES, {}, ("dealt",))) == 1


def test_cases_of_the_long_form_take_no_value_from_the_short_one():
    items = [
        Item("t", ["count", "net"], {"device": device, "count": count, "net": net}, keywords)
        for device, (count, keywords), net in itertools.product(
            DEVICES[:2], [(8, ("exhaustive",)), (2, ())], "ab"
        )
    ]
    deal(items)
    left = [i.callspec.params for i in items if not i.skipped and not i.keywords]
    assert sorted(p["net"] for p in left) == ["a", "b"]


def test_the_quick_device_is_one_that_is_not_slow_to_build_if_there_is_one():
    assert quick_one(DEVICES) == DEVICES[0] and quick_one(DEVICES[1:]) == DEVICES[2]
    assert quick_one(DEVICES[1:2]) == DEVICES[1]


def test_files_on_the_quick_device_are_there():
    tests = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert set(ON_QUICK) <= tests


def test_a_test_of_the_quick_form_finds_no_device_in_any_form():
    from clnn.errors import NoDeviceError
    from clnn.runtime.device.device import discover, select

    assert discover() == []
    with pytest.raises(NoDeviceError):
        select()
    listed = [sys.executable, "-m", "clnn", "devices", "--json"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run(listed, env=env, capture_output=True, text=True).stdout == "[]\n"

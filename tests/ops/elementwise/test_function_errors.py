"""Errors of elementwise functions in units in the last place, whatever lies beside an element."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest
from common import ROOT
from together import run_together

from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.shared.functions import FUNCTIONS, PostOp

TRIGONOMETRIC = ("sin", "cos", "tan")


@pytest.fixture(scope="module")
def tool():
    path = ROOT / "tools" / "benchmarks" / "function_errors.py"
    spec = importlib.util.spec_from_file_location("function_errors", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["function_errors"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["function_errors"]


def test_every_function_keeps_its_bound(device, tool):
    assert not tool.over(tool.measure(device, list(tool.CASES), 2**18))


@pytest.mark.exhaustive
@pytest.mark.timeout(4 * 3600)
def test_functions_of_our_own_keep_their_bounds_everywhere(device, tool):
    assert not tool.over(tool.measure(device, TRIGONOMETRIC, 2**32))


@pytest.mark.exhaustive
@pytest.mark.timeout(4 * 3600)
def test_functions_keep_their_bounds_almost_everywhere(device, tool):
    assert not tool.over(tool.measure(device, list(tool.CASES), 2**27))


def test_every_function_has_a_bound(tool):
    assert set(tool.CASES) == {fn for fn, rule in FUNCTIONS.items() if not rule.of_bytes}


EXTREME = (np.inf, -np.inf, np.nan, 3e38, -3e38, 1e20, 131072.0)


@pytest.mark.parametrize("count", [96, 97], ids=["vectors", "elements"])
def test_extreme_neighbours_do_not_matter(device, count):
    """Each small number stands between others that are as large as they can be, or none."""
    small = np.tile(np.array([0.0, -0.0, 1e-45, -1e-40, 2e-38, -1e-7, 0.5, -1.25], np.float32), 13)
    mixed = small.copy()
    mixed[1::2] = np.resize(np.array(EXTREME, np.float32), mixed[1::2].size)
    fns = [fn for fn, rule in FUNCTIONS.items() if not (rule.binary or rule.of_bytes)]
    params = {"selu": (1.67, 1.05), "shrink": (0.5, 0.25), "clip": (-1.0, 1.0)}
    specs = {fn: Eltwise((PostOp(fn, params.get(fn, (0.5, 0.25))),)) for fn in fns}
    quiet = run_together(device, specs, [small[:count]])
    loud = run_together(device, specs, [mixed[:count]])
    for fn in fns:
        assert quiet[fn][::2].tobytes() == loud[fn][::2].tobytes(), fn


@pytest.mark.parametrize("count", [32, 33], ids=["vectors", "elements"])
def test_sine_and_tangent_keep_what_is_tiny_and_its_sign(device, count):
    x = np.resize(np.array([0.0, -0.0, 2e-38, -2e-38, 1e-10, -1e-6], np.float32), count)
    specs = {fn: Eltwise((PostOp(fn),)) for fn in TRIGONOMETRIC}
    found = run_together(device, specs, [x])
    for fn in ("sin", "tan"):
        assert found[fn].tobytes() == x.tobytes()
    assert (found["cos"] == 1).all()
    beyond = np.resize(np.array([np.inf, np.nan, -np.inf], np.float32), count)
    assert all(np.isnan(y).all() for y in run_together(device, specs, [beyond]).values())


def test_errors_are_counted_in_units_of_the_last_place(tool):
    want = np.array([1.0, 1.0, 2.0**128, 1e300, np.nan, np.nan, 1e-45, 4.0])
    got = np.array([1 + 2.0**-23, np.nan, 3.4028235e38, np.inf, np.nan, 1, 0, 4.0], np.float32)
    expected = [1, np.inf, 1, 0, 0, np.inf, 0.71, 0]
    np.testing.assert_allclose(tool.errors(got, want, np.zeros(8)), expected, rtol=0.01)


def test_the_table_has_a_row_for_each_function_and_names_what_is_wrong(tool):
    rows = {"sin": tool.Row(tool.Worst(3.0, 0.5)), "gelu": tool.Row()}
    lines = tool.table({"Some device": rows})
    assert [line.split("|")[1].strip() for line in lines] == ["function", "---", "sin", "gelu*"]
    assert len({line.count("|") for line in lines}) == 1
    assert tool.over(rows) == ["sin: 3 ulp at 0.5, bound 2"]

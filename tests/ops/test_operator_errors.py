"""Errors of operators that sum, in units in the last place of the terms of each element."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest
from common import ROOT


@pytest.fixture(scope="module")
def tool():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "tools" / "benchmarks"))
        yield importlib.import_module("operator_errors")
        del sys.modules["operator_errors"]


def test_every_operator_keeps_its_bound(any_device, tool):
    assert not tool.over(tool.measure(any_device, list(tool.CASES), 2))


@pytest.mark.exhaustive
def test_every_operator_keeps_its_bound_for_many_numbers(device, tool):
    assert not tool.over(tool.measure(device, list(tool.CASES), 24))


def test_an_error_is_counted_in_ulp_of_what_is_summed(tool):
    """A row whose terms cancel may be wrong by what they are rounded to, another one may not."""
    want, terms = np.array([0.0, 1.0, np.nan]), np.array([2.0**23, 1.0, 1.0])
    got = np.array([2, 1 + 2.0**-21, 0], np.float32)
    assert tool.errors(got, want, terms).tolist() == [2, 4, np.inf]
    assert tool.over({"MaxPool": 0.5, "LRN": 0.5, "MatMul": np.nan}) == [
        "MaxPool: 0.5 ulp, bound 0",
        "MatMul: nan ulp, bound 32",
    ]


def test_what_sums_is_in_the_table(tool):
    summing = "Conv ConvTranspose MatMul Gemm ReduceSum Softmax LayerNormalization AveragePool Resize LSTM"
    assert set(summing.split()) < {case.op for case in tool.CASES.values()}
    assert any(case.options.winograd for case in tool.CASES.values())
    for name, case in tool.CASES.items():
        assert 0 <= case.bound <= 256, name

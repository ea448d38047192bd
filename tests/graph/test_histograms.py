"""Ranges that are kept of histograms."""

from __future__ import annotations

import numpy as np
import pytest
from harness import rng

from clnn.errors import SettingError
from clnn.graph.histograms import METHODS, RangeObserver


def observed(method, *samples):
    observer = RangeObserver(["v"], method)
    for see in (observer.see, observer.count):
        for array in samples:
            see({"v": np.asarray(array, np.float32)})
    return observer.ranges()["v"]


@pytest.mark.parametrize("method", METHODS)
def test_ranges_hold_zero_and_lie_within_what_was_seen(method):
    for array in (
        rng().normal(3, 0.1, 4000),
        rng().normal(-3, 0.1, 4000),
        rng().normal(0, 1, 4000),
    ):
        low, high = observed(method, array)
        assert min(array.min(), 0) - 1e-6 <= low <= 0 <= high <= max(array.max(), 0) + 1e-6
        assert high > low


def test_minmax_is_over_all_samples():
    assert observed("minmax", [-1, 2], [0.5, 3], [-4, 0]) == (-4, 3)


@pytest.mark.parametrize(("method", "most"), [("percentile", 6), ("entropy", 20), ("mse", 38)])
def test_few_outliers_are_clipped(method, most):
    values = rng().normal(0, 1, 100_000)
    values[0] = 40
    assert observed(method, values)[1] < most


def test_rectified_zeros_do_not_narrow_the_range():
    values = np.maximum(rng().normal(0, 1, 50_000), 0)
    assert observed("entropy", values)[1] > 1.5


@pytest.mark.parametrize("method", METHODS)
def test_values_that_are_all_alike(method):
    assert observed(method, np.zeros(10)) == (0, 0)
    assert observed(method, np.full(10, 2.0))[1] > 0.3


def test_wrong_use():
    with pytest.raises(SettingError, match="method is 'best'"):
        RangeObserver([], "best")
    with pytest.raises(SettingError, match="no samples"):
        RangeObserver(["v"], "mse").ranges()
    with pytest.raises(SettingError, match="NaN or infinity with sample 1"):
        observed("minmax", [np.nan])

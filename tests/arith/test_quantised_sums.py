"""What is known of sums of bytes before any are made."""

from __future__ import annotations

import numpy as np
import pytest

from clnn.arith import quantised


@pytest.mark.parametrize("shape", [(5, 3, 3, 3), (0, 4), (7, 0), (1, 1), (300, 9)], ids=str)
@pytest.mark.parametrize("at_once", [1, 20, 2**18])
def test_magnitudes_are_summed_a_few_rows_at_a_time(monkeypatch, shape, at_once):
    monkeypatch.setattr(quantised, "AT_ONCE", at_once)
    weights = np.random.default_rng(1).integers(-128, 128, shape).astype(np.int8)
    want = np.abs(weights.astype(np.int64)).sum(tuple(range(1, len(shape))))
    got = quantised.magnitudes(weights)
    assert got.dtype == np.int64 and np.array_equal(got, want)

"""Cycles that work-groups noted become spans of the device's clock."""

from __future__ import annotations

import numpy as np

from clnn.runtime.run.spans import split


def test_calls_last_from_their_first_begin_to_their_last_end():
    stamps = np.array(
        [
            [[1000, 1100], [1010, 1200]],
            [[1200, 1300], [0, 0]],
            [[1310, 1400], [1305, 1500]],
        ],
        np.uint64,
    )
    assert split(0, 1000, stamps) == [(0, 400), (400, 600), (610, 1000)]


def test_a_call_without_groups_has_no_length():
    stamps = np.zeros((3, 2, 2), np.uint64)
    assert split(70, 90, stamps) == [(70, 70)] * 3
    stamps[0, 1] = 2**62, 2**62 + 100
    stamps[2, 0] = 2**62 + 100, 2**62 + 200
    assert split(1000, 1200, stamps) == [(1000, 1100), (1100, 1100), (1100, 1200)]

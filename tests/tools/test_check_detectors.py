from __future__ import annotations

import sys

import numpy as np
import pytest
from common import ROOT

sys.path.insert(0, str(ROOT / "tools" / "benchmarks"))

import check_detectors


def boxes(rows, labels):
    return {"boxes": np.float32(rows).reshape(-1, 4), "labels": np.array(labels)}


ONE = boxes([[0, 0, 4, 4], [5, 5, 9, 9]], [1, 2])


@pytest.mark.parametrize(
    "other,want",
    [
        (ONE, 0),
        (boxes([[5, 5, 9, 9], [0, 0, 4, 4.25]], [2, 1]), 0.25),
        (boxes([[0, 0, 4, 4], [5, 5, 9, 9]], [1, 1]), float("inf")),
        (boxes([[0, 0, 4, 4]], [1]), float("inf")),
        (boxes([[0, 0, 4, 4], [0, 0, 4, 4]], [1, 1]), float("inf")),
    ],
)
def test_distance_of_boxes(other, want):
    assert check_detectors.distance(ONE, other) == want
    assert check_detectors.distance(other, ONE) == want


def test_no_boxes_are_equal():
    assert check_detectors.distance(boxes([], []), boxes([], [])) == 0

from __future__ import annotations

import sys

import numpy as np
import pytest
from common import ROOT

sys.path.insert(0, str(ROOT / "tools" / "benchmarks"))

import box_ties
import check_detectors
from box_ties import Given


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


PAIR = np.array([[0, 0, 10, 10], [0, 1, 10, 11], [50, 50, 60, 60.0]])  # an overlap of 9/11 and none
SCORES = np.array([0.5, 0.5 + 1e-6, 0.1])
LIMIT = 9 / 11


def given(kept, score=0.0, edge=0.0):
    """What an engine was given whose first score and first edge are off."""
    scores, moved = SCORES.copy(), PAIR.copy()
    scores[0] += score
    moved[0, 3] += edge
    return Given(moved, scores, kept)


def test_two_scores_that_rounding_exchanges_are_a_tie():
    one, other = given([0, 2], score=3e-6), given([1, 2], score=1e-7)
    (found,) = box_ties.ties(one, other, given(()), 0.7)
    assert found.is_one and "scores of 0.5000" in str(found)
    assert abs(found.margins[0]) == pytest.approx(1e-6)


def test_an_overlap_at_the_threshold_is_a_tie():
    one, other = given([0, 1, 2], edge=-1e-3, score=-1e-7), given([1, 2], edge=1e-3)
    (found,) = box_ties.ties(one, other, given(()), LIMIT - 1e-6)
    assert found.is_one and "overlap" in str(found)


def test_engines_whose_boxes_lie_in_another_order_agree():
    other = given([1, 2])
    turned = Given(other.boxes[::-1], other.scores[::-1], [1, 0])
    assert box_ties.ties(turned, other, given(()), 0.7) == []


def test_errors_that_are_not_rounding_and_wrong_suppressions_are_no_ties():
    (found,) = box_ties.ties(given([0, 2], score=2e-3), given([1, 2]), given(()), 0.7)
    assert not found.is_one
    # No order and no overlap of its own lets an engine keep both.
    assert box_ties.ties(given([0, 1, 2]), given([1, 2]), given(()), 0.7) is None
    far = Given(PAIR + 1, SCORES, [1, 2])
    assert box_ties.ties(far, given([1, 2]), given(()), 0.7) is None


def test_overlaps_move_no_more_than_is_said():
    rng = np.random.default_rng(0)
    for _ in range(200):
        low = rng.random((2, 2)) * 5
        pair = np.concatenate([low, low + 8 + rng.random((2, 2)) * 9], 1)
        moved = pair + rng.uniform(-1e-5, 1e-5, pair.shape)
        change = abs(box_ties.overlap(moved, 0, 1) - box_ties.overlap(pair, 0, 1))
        assert change <= 1.001 * box_ties.overlap_moves(pair, 0, 1, 1e-5)

"""Non-maximum suppression of sorted candidates."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_op, rng

from clnn.errors import DTypeError, ShapeError
from clnn.ops.rows.suppress import Suppress
from clnn.types import F32, I64, TensorType


def candidates(n, boxes, classes, count, seed=0):
    """Return boxes, falling scores and places, with equal boxes and equal scores among them."""
    draw = rng(seed)
    corners = draw.integers(0, 8, (n, boxes, 4)).astype(np.float32) / 8
    places = np.stack(
        [[draw.permutation(boxes)[:count] for _ in range(classes)] for _ in range(n)]
    ).astype(np.int64)
    scores = -np.sort(-draw.integers(-2, 10, (n, classes, count)).astype(np.float32) / 8, axis=2)
    return [corners, scores, places]


@pytest.mark.parametrize("overlap", [0.0, 0.375, 1.0])
def test_greedy_choice(device, overlap):
    check_op(device, Suppress(overlap, 0.125), candidates(2, 9, 3, 7), tolerance=0)


def test_numbers_that_are_none(device):
    boxes, scores, places = candidates(1, 5, 2, 5, 1)
    boxes[0, 1, 2], scores[0, 0, 0], scores[0, 1, 0] = np.nan, np.nan, np.inf
    check_op(device, Suppress(0.25, 0.0), [boxes, scores, places], tolerance=0)


def test_operands_that_do_not_fit():
    boxes, scores, places = (
        TensorType(s, t) for s, t in (((1, 5, 4), F32), ((1, 2, 3), F32), ((1, 2, 3), I64))
    )
    with pytest.raises(ShapeError, match="must be"):
        Suppress(0.5, 0).infer([TensorType((1, 5, 5), F32), scores, places])
    with pytest.raises(DTypeError, match="int64"):
        Suppress(0.5, 0).infer([boxes, scores, scores])

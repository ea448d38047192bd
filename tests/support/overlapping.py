"""Boxes that overlap, and their scores."""

from __future__ import annotations

import numpy as np


def boxes(count: int, spread: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Boxes of any corner order, some equal, some without area, and scores with ties."""
    rng = np.random.default_rng(seed)
    low = rng.uniform(0, spread, (2, count, 2))
    found = np.concatenate([low, low + rng.uniform(-1, 3, (2, count, 2))], 2).astype(np.float32)
    found[:, 1::7] = found[:, :1]
    found[:, 3::11, 2:] = found[:, 3::11, :2]
    scores = rng.integers(0, 40, (2, 3, count)).astype(np.float32) / 40
    return found, scores


def special_boxes(count: int, spread: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Boxes of which some have coordinates that are infinite, NaN, or so large that areas are infinite."""
    found, scores = boxes(count, spread, seed)
    found[:, ::5, 2:], found[:, 1::9, :2] = np.inf, -np.inf
    found[:, ::13, 3], found[:, 7::31] = np.nan, 3e38
    return found, scores


def rows_of(found: np.ndarray) -> np.ndarray:
    """The rows of boxes, as clnn.ops.host.boxes.stay_by_numpy has them, in the boxes' own order."""
    low, high = np.minimum(found[:, :2], found[:, 2:]), np.maximum(found[:, :2], found[:, 2:])
    return np.stack([*low.T, *high.T, (high - low).prod(1)])

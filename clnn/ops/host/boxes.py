"""NonMaxSuppression: of boxes that overlap, those of the highest scores."""

from __future__ import annotations

import numpy as np

from clnn.ops.host.registry import HostNode, host_op
from clnn.types import Array

CHUNK = 256  # candidates that are compared with each other at once


@host_op("NonMaxSuppression")
def _non_max_suppression(
    node: HostNode,
    boxes: Array,
    scores: Array,
    most: Array | None = None,
    overlap: Array | None = None,
    lowest: Array | None = None,
) -> Array:
    """Return (batch, class, box) of what is kept; of equal scores the lower box comes first."""
    count = 0 if most is None else int(most.reshape(-1)[0])
    limit = np.float32(0.0 if overlap is None else overlap.reshape(-1)[0])
    if not 0 <= limit <= 1:
        raise ValueError(f"iou_threshold is {limit}, must be from 0 to 1")
    rows = [np.zeros((0, 3), np.int64)]
    if count <= 0:
        return rows[0]
    for image in range(scores.shape[0]):
        corners = _corners(boxes[image], bool(node.attr("center_point_box", 0)))
        for kind in range(scores.shape[1]):
            line = scores[image, kind]
            places = np.arange(len(line))
            if lowest is not None:
                places = places[line > np.float32(lowest.reshape(-1)[0])]
            places = places[np.argsort(-line[places], kind="stable")]
            kept = places[_kept(corners[places], limit, count)]
            rows.append(np.stack([np.full_like(kept, image), np.full_like(kept, kind), kept], 1))
    return np.concatenate(rows).astype(np.int64)


def _corners(boxes: Array, centred: bool) -> Array:
    """Return (lower y, lower x, upper y, upper x) of each box."""
    if centred:
        middle, half = boxes[:, :2], boxes[:, 2:] / np.float32(2)
        low, high = middle - half, middle + half
    else:
        low, high = np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])
    return np.concatenate([low, high], 1)


def _kept(boxes: Array, limit: np.float32, count: int) -> Array:
    """Return which boxes, by falling score, overlap none that is kept before.

    Boxes are compared with those of their own cluster only.
    """
    clusters = max((_clusters(boxes, axis) for axis in (0, 1)), key=lambda c: c.max(initial=0))
    order = np.argsort(clusters, kind="stable")  # within a cluster by score
    parts = np.split(order, np.flatnonzero(np.diff(clusters[order])) + 1)
    kept = [p if len(p) < 2 else p[_keep(boxes[p], limit, count)] for p in parts]
    return np.sort(np.concatenate(kept))[:count]


def _clusters(boxes: Array, axis: int) -> Array:
    """Return a number for each box; boxes of different numbers do not meet along the axis."""
    low, high = boxes[:, axis], boxes[:, axis + 2]
    order = np.argsort(low, kind="stable")
    begins = low[order][1:] >= np.maximum.accumulate(high[order])[:-1]
    numbers = np.empty(len(boxes), np.int64)
    numbers[order] = np.cumsum(np.concatenate([[0][: len(boxes)], begins]))
    return numbers


def _keep(boxes: Array, limit: np.float32, count: int) -> Array:
    """Return which boxes, by falling score, overlap none that is kept before."""
    kept = np.zeros(0, np.int64)
    for start in range(0, len(boxes), CHUNK):
        places = np.arange(start, min(start + CHUNK, len(boxes)))
        if len(kept):
            places = places[~_overlaps(boxes[places], boxes[kept], limit).any(1)]
        hides = _overlaps(boxes[places], boxes[places], limit)
        alive = np.ones(len(places), bool)
        for k in range(len(places)):
            if alive[k]:
                alive[k + 1 :] &= ~hides[k, k + 1 :]
        kept = np.concatenate([kept, places[alive]])
        if len(kept) >= count:
            break
    return kept[:count]


def _overlaps(left: Array, right: Array, limit: np.float32) -> Array:
    """Return for each pair of boxes whether they share more than `limit` of their union."""
    extents = []
    for axis in (0, 1):
        low = np.maximum(left[:, None, axis], right[None, :, axis])
        high = np.minimum(left[:, None, axis + 2], right[None, :, axis + 2])
        extents.append(np.where(high > low, high - low, np.float32(0)))
    shared = extents[0] * extents[1]
    areas = [(b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1]) for b in (left, right)]
    union = areas[0][:, None] + areas[1][None, :] - shared
    real = (shared > 0) & (areas[0][:, None] > 0) & (areas[1][None, :] > 0) & (union > 0)
    ratio = np.divide(shared, union, out=np.zeros_like(shared), where=real)
    return np.asarray(real & (ratio > limit))

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
    with np.errstate(all="ignore"):  # coordinates may be infinite, or none
        for image in range(scores.shape[0]):
            corners = _corners(boxes[image], bool(node.attr("center_point_box", 0)))
            for kind in range(scores.shape[1]):
                line = scores[image, kind]
                places = np.arange(len(line))
                if lowest is not None:
                    places = places[line > np.float32(lowest.reshape(-1)[0])]
                places = places[np.argsort(-line[places], kind="stable")]
                kept = places[_kept(corners[places], limit, count)]
                rows.append(
                    np.stack([np.full_like(kept, image), np.full_like(kept, kind), kept], 1)
                )
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
    overlaps = Overlaps(boxes, limit)
    kept = [p if len(p) < 2 else _keep(p, overlaps, count) for p in parts]
    return np.sort(np.concatenate(kept))[:count]


def _clusters(boxes: Array, axis: int) -> Array:
    """Return a number for each box; boxes of different numbers do not meet along the axis."""
    low, high = boxes[:, axis], boxes[:, axis + 2]
    order = np.argsort(low, kind="stable")
    begins = low[order][1:] >= np.maximum.accumulate(high[order])[:-1]
    numbers = np.empty(len(boxes), np.int64)
    numbers[order] = np.cumsum(np.concatenate([[0][: len(boxes)], begins]))
    return numbers


def _keep(boxes: Array, overlaps: Overlaps, count: int) -> Array:
    """Return which boxes, by falling score, overlap none that is kept before."""
    kept = np.zeros(0, np.int64)
    for start in range(0, len(boxes), CHUNK):
        places = boxes[start : start + CHUNK]
        for others in range(0, len(kept), CHUNK):
            if len(places):
                hidden = overlaps(kept[others : others + CHUNK], places).any(0)
                places = places[~hidden]
        hides = np.packbits(overlaps(places, places), axis=1, bitorder="little")
        alive = (1 << len(places)) - 1  # a bit for each place
        for k, row in enumerate(hides):
            if alive >> k & 1:
                alive &= ~(int.from_bytes(row.tobytes(), "little") >> k + 1 << k + 1)
        kept = np.concatenate([kept, places[[alive >> k & 1 == 1 for k in range(len(places))]]])
        if len(kept) >= count:
            break
    return kept[:count]


class Overlaps:
    """Which of the boxes share more than `limit` of their union, up to CHUNK with up to CHUNK.

    boxes: (boxes, 4) as _corners returns. An empty box overlaps none, nor does one of NaN: it shares
    0 or NaN. Steps are written into the same few arrays, which the nearest caches hold.
    """

    def __init__(self, boxes: Array, limit: np.float32) -> None:
        self._limit = limit
        extents = boxes[:, 2:] - boxes[:, :2]
        self._rows = np.stack([*boxes.T, extents[:, 0] * extents[:, 1]])
        self._scratch = [np.empty((CHUNK, CHUNK), boxes.dtype) for _ in range(3)]

    def __call__(self, left: Array, right: Array) -> Array:
        """Return (left, right) for places of boxes, true where two overlap."""
        shared, low, high = (a[: len(left), : len(right)] for a in self._scratch)
        rows, columns = self._rows[:, left, None], self._rows[:, None, right]
        for axis, extent in ((0, shared), (1, high)):
            np.maximum(rows[axis], columns[axis], out=low)
            np.minimum(rows[axis + 2], columns[axis + 2], out=extent)
            np.subtract(extent, low, out=extent)
            np.maximum(extent, np.float32(0), out=extent)
        np.multiply(shared, high, out=shared)
        union = np.add(rows[4], columns[4], out=low)
        np.subtract(union, shared, out=union)
        return np.asarray(np.divide(shared, union, out=high) > self._limit)

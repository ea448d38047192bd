"""NonMaxSuppression: of boxes that overlap, those of the highest scores."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np

from clnn.ops.host.registry import HostNode, host_op
from clnn.types import Array

CHUNK = 256  # candidates that are compared with each other at once
FEW = 128  # boxes of which numpy compares all sooner than it finds those that cannot meet
# Candidates of several classes whose coordinates are copied together, 20 bytes each.
AT_ONCE = 1 << 20
Stay = Callable[[Array, Array, np.float32, int], Array]


@host_op("NonMaxSuppression")
def _non_max_suppression(node: HostNode, *inputs: Array) -> Array:
    return selected(stay_by_numpy, FEW, node, *inputs)


def selected(
    stay: Stay,
    few: int,
    node: HostNode,
    boxes: Array,
    scores: Array,
    most: Array | None = None,
    overlap: Array | None = None,
    lowest: Array | None = None,
) -> Array:
    """Return (batch, class, box) of what is kept; of equal scores the lower box comes first.

    stay: tells which boxes stay, as stay_by_numpy does. few: of so many boxes each is compared with all others.
    """
    count = 0 if most is None else int(most.reshape(-1)[0])
    limit = np.float32(0.0 if overlap is None else overlap.reshape(-1)[0])
    if not 0 <= limit <= 1:
        raise ValueError(f"iou_threshold is {limit}, must be from 0 to 1")
    rows = [np.zeros((0, 3), np.int64)]
    if count <= 0:
        return rows[0]
    with np.errstate(all="ignore"):  # coordinates may be infinite, or none
        step = max(1, AT_ONCE // max(1, scores.shape[2]))
        for image, first in product(range(len(scores)), range(0, scores.shape[1], step)):
            corners = _corners(boxes[image], bool(node.attr("center_point_box", 0)))
            lines = scores[image, first : first + step]
            places = [_by_falling_score(line, lowest) for line in lines]
            kept = _kept(stay, few, [corners[p] for p in places], limit, count)
            for kind, which in enumerate(map(operator.getitem, places, kept), first):
                rows.append(
                    np.stack([np.full_like(which, image), np.full_like(which, kind), which], 1)
                )
    return np.concatenate(rows).astype(np.int64)


def _by_falling_score(line: Array, lowest: Array | None) -> Array:
    """Return the places of scores above the lowest; of equal ones the lower place comes first."""
    places = np.arange(len(line))
    if lowest is not None:
        places = places[line > np.float32(lowest.reshape(-1)[0])]
    return np.asarray(places[np.argsort(-line[places], kind="stable")])


def _corners(boxes: Array, centred: bool) -> Array:
    """Return (lower y, lower x, upper y, upper x) of each box."""
    if centred:
        middle, half = boxes[:, :2], boxes[:, 2:] / np.float32(2)
        low, high = middle - half, middle + half
    else:
        low, high = np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])
    return np.concatenate([low, high], 1)


def _kept(
    stay: Stay, few: int, lists: Sequence[Array], limit: np.float32, count: int
) -> list[Array]:
    """Return which boxes of each list, by falling score, overlap none of it that is kept before.

    Boxes are compared with those of their own cluster only, where there are more than `few`.
    """
    parts = [_grouped(boxes, few) for boxes in lists]
    ends = np.cumsum([0, *(len(order) for order, _, _ in parts)])
    if not parts or not ends[-1]:
        return [order for order, _, _ in parts]
    begins = [begins + end for (_, begins, _), end in zip(parts, ends[:-1], strict=True)]
    rows = np.concatenate([rows for _, _, rows in parts], 1)
    stays = stay(rows, np.append(np.concatenate(begins), ends[-1]), limit, count)
    found = np.split(stays, ends[1:-1])
    return [np.sort(o[s])[:count] for (o, _, _), s in zip(parts, found, strict=True)]


def _grouped(boxes: Array, few: int) -> tuple[Array, Array, Array]:
    """Return the order of boxes by clusters, where each cluster begins, and rows in that order.

    Up to `few` boxes are one cluster.
    """
    rows = np.empty((5, len(boxes)), boxes.dtype)
    rows[:4] = boxes.T
    np.multiply(rows[2] - rows[0], rows[3] - rows[1], out=rows[4])
    if len(boxes) <= few:
        return np.arange(len(boxes)), np.arange(min(len(boxes), 1)), rows
    clusters = max((_clusters(boxes, axis) for axis in (0, 1)), key=lambda c: c.max(initial=0))
    order = np.argsort(clusters, kind="stable")  # within a cluster by score
    begins = np.flatnonzero(np.diff(clusters[order], prepend=-1))
    return order, begins, rows[:, order]


def stay_by_numpy(rows: Array, begins: Array, limit: np.float32, most: int) -> Array:
    """Return (boxes), true for boxes that share at most `limit` of their union with any that stays before them.

    rows: (5, boxes) lower y, lower x, upper y, upper x, and area, one group of boxes behind the other, of
    which each is compared with its own alone. begins: (groups + 1) where each begins, and the end. most: how
    many of a group may stay.
    """
    sizes, overlaps = np.diff(begins), Overlaps(rows, limit)
    stays = np.repeat(sizes == 1, sizes)
    for group in np.flatnonzero(sizes > 1).tolist():
        stays[_keep(np.arange(begins[group], begins[group + 1]), overlaps, most)] = True
    return stays


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

    rows: as in stay_by_numpy. An empty box overlaps none, nor does one of NaN: it shares
    0 or NaN. Steps are written into the same few arrays, which the nearest caches hold.
    """

    def __init__(self, rows: Array, limit: np.float32) -> None:
        self._limit, self._rows = limit, rows
        side = min(CHUNK, rows.shape[1])
        self._scratch = [np.empty((side, side), rows.dtype) for _ in range(3)]

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

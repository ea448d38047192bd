"""Non-maximum suppression over candidates that are sorted by their scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from clnn.errors import DTypeError, ShapeError
from clnn.ops.launch import In, Launch, Out, Variant, grid
from clnn.ops.problem import Problem
from clnn.ops.spec import OpSpec
from clnn.records import dataclass
from clnn.types import F32, I64, Array, TensorType


@dataclass(frozen=True)
class Suppress(OpSpec):
    """Scores of the candidates that stay, -1 for the others.

    Inputs: boxes (n, boxes, 4) as x and y of two opposite corners, scores (n, classes, k) by falling
    value, and places (n, classes, k): which box each is of. A candidate stays where its score is above
    `lowest` and its box overlaps that of none that stays before it in its class by more than `overlap`
    (area shared by area of either; boxes without an area overlap nothing). NaN stays nowhere.
    """

    overlap: float
    lowest: float

    kind = "suppress"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the type of the scores. Raises ShapeError or DTypeError where operands do not fit."""
        boxes, scores, places = (t for t in inputs if t is not None)
        if (boxes.dtype, scores.dtype, places.dtype) != (F32, F32, I64):
            raise DTypeError(
                f"boxes of {boxes.dtype.name}, scores of {scores.dtype.name}, places of"
                f" {places.dtype.name}: must be float32, float32 and int64."
            )
        fits = boxes.rank == scores.rank == 3 and boxes.shape[2] == 4
        if not fits or boxes.shape[0] != scores.shape[0] or scores.shape != places.shape:
            raise ShapeError(
                f"boxes {boxes.shape}, scores {scores.shape}, places {places.shape}: must be (n, boxes,"
                " 4) and twice (n, classes, k)."
            )
        return (scores,)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return the greedy choice in float32, class by class."""
        boxes, scores, places = (x for x in inputs if x is not None)
        kept = np.full_like(scores, -1)
        for n, kind in np.ndindex(*scores.shape[:2]):
            lines = boxes[n, places[n, kind]]
            for k, score in enumerate(scores[n, kind]):
                before = [lines[j] for j in range(k) if kept[n, kind, j] != -1]
                if score > np.float32(self.lowest) and not any(
                    self._overlaps(lines[k], other) for other in before
                ):
                    kept[n, kind, k] = score
        return (kept,)

    def _overlaps(self, one: Array, two: Array) -> bool:
        low = np.maximum(np.minimum(one[:2], one[2:]), np.minimum(two[:2], two[2:]))
        high = np.minimum(np.maximum(one[:2], one[2:]), np.maximum(two[:2], two[2:]))
        side = np.maximum(high - low, 0)
        areas = [abs((b[2] - b[0]) * (b[3] - b[1])) for b in (one, two)]
        shared = side[0] * side[1]
        return bool(shared > np.asarray(self.overlap, one.dtype) * (areas[0] + areas[1] - shared))

    def variants(self, problem: Problem) -> list[Variant]:
        """Return the one kernel: a work-item for each class."""
        boxes, scores, places = (problem.input(k).layout for k in range(3))
        n, classes, count = scores.shape
        global_size, local = grid(problem.target, n * classes)
        params = {
            "name": "suppress",
            "boxes": boxes,
            "scores": scores,
            "places": places,
            "dst": problem.outputs[0].layout,
            "count": count,
            "classes": classes,
            "lines": math.prod((n, classes)),
            "overlap": self.overlap,
            "lowest": self.lowest,
            "wg": local,
        }
        args = (In(0), In(1), In(2), Out(0))
        return [
            Variant(
                "suppress", (Launch("rows/suppress.cl.mako", params, args, global_size, local),)
            )
        ]

"""The largest elements of rows in the order of embARC MLI's heap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clnn.errors import DTypeError, ShapeError
from clnn.ops.launch import In, Launch, Out, Variant, grid
from clnn.ops.problem import Problem, required
from clnn.ops.spec import OpSpec
from clnn.records import dataclass
from clnn.types import I8, I16, I32, Array, TensorType


@dataclass(frozen=True)
class MliTopK(OpSpec):
    """Indices (rows, count), int32, of the largest elements of x (rows, length).

    They are sorted, largest first; which of equal elements are taken and how they are ordered is
    what a binary heap makes of it, whose least element gives way to an equal one.
    """

    count: int

    kind = "mli_topk"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the type of the indices. Raises ShapeError or DTypeError for another input."""
        x = required(inputs)
        if x.rank != 2 or not 1 <= self.count <= x.shape[1]:
            raise ShapeError(f"top {self.count} of rows of {x.shape}: rows must be as long.")
        if x.dtype not in (I8, I16):
            raise DTypeError(f"top {self.count} of {x.dtype.name}: it needs int8 or int16.")
        return (TensorType((x.shape[0], self.count), I32),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return the indices, row by row."""
        x = required(inputs)
        rows = [heap_order(row.astype(np.int64), self.count) for row in x]
        return (np.array(rows, np.int32).reshape(len(x), self.count),)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return the one kernel: a heap per row."""
        x, out = problem.input(0), problem.outputs[0]
        global_size, local = grid(problem.target, x.type.shape[0])
        name = f"mli_topk_{x.type.dtype.cl}_{self.count}"
        params = {
            "name": name,
            "ctype": x.type.dtype.cl,
            "src": x.layout,
            "dst": out.layout,
            "wg": local,
        }
        launch = Launch("rows/mli_argmax.cl.mako", params, (In(0), Out(0)), global_size, local)
        return [Variant(name, (launch,))]


def heap_order(row: Array, count: int) -> list[int]:
    """Return the indices of the `count` largest elements of a row, largest first."""
    heap = list(range(count))
    for node in reversed(range(count // 2)):
        _sift(row, heap, count, node)
    for k in range(count, len(row)):
        if row[k] >= row[heap[0]]:
            heap[0] = k
            _sift(row, heap, count, 0)
    for last in range(count - 1, 0, -1):
        heap[0], heap[last] = heap[last], heap[0]
        _sift(row, heap, last, 0)
    return heap


def _sift(row: Array, heap: list[int], size: int, node: int) -> None:
    while True:
        least = node
        for child in (2 * node + 1, 2 * node + 2):
            if child < size and row[heap[child]] < row[heap[least]]:
                least = child
        if least == node:
            return
        heap[node], heap[least] = heap[least], heap[node]
        node = least

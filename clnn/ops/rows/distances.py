"""Distances: sums of squared differences between each row of one matrix and each column of another."""

from __future__ import annotations

from collections.abc import Sequence

from clnn.errors import DTypeError, ShapeError
from clnn.ops.launch import In, Launch, Out, Variant, grid
from clnn.ops.problem import Problem, required
from clnn.ops.spec import OpSpec
from clnn.records import dataclass
from clnn.traced import other
from clnn.types import F32, Array, TensorType

ROWS = 8  # of the first matrix that share what is read of the second
BAND = 512  # columns of a work-item


@dataclass(frozen=True)
class Distances(OpSpec):
    """Inputs: a (n, k), b (k, m). Output: (n, m), sums over k of (a - b) ** 2.

    Unlike what follows from products of rows, it is exact to rounding where rows are near each other.
    """

    kind = "distances"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the type of the distances. Raises ShapeError or DTypeError."""
        a, b = required(inputs), required(inputs, 1)
        if a.rank != 2 or b.rank != 2 or a.shape[1] != b.shape[0]:
            raise ShapeError(
                f"distances of rows {a.shape} and columns {b.shape}: they must be as long."
            )
        if a.dtype != F32 or b.dtype != F32:
            raise DTypeError(f"distances of {a.dtype.name} and {b.dtype.name}: must be float32.")
        return (TensorType((a.shape[0], b.shape[1]), F32),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return numpy's sums, coordinate by coordinate."""
        a, b = required(inputs), required(inputs, 1)
        out = (a[:, :0] @ b[:0]).astype(a.dtype)
        for k in range(a.shape[1]):
            difference = a[:, k, None] - b[k]
            out += difference * difference
        return (out,)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return a kernel of vectors along the columns, and one for any layout."""
        b, out = problem.input(1).layout, problem.outputs[0].layout
        fits = b.pitches[1] == 1 and out.pitches[1] == 1
        widest = min(problem.target.vector, 16) if fits else 1
        widths = [w for w in (16, 8, 4) if w <= widest and other(out.shape[1]) >= w]
        return [_variant(problem, width) for width in (*widths[:1], 1)]

    def flops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        """A difference and a multiply-add for each coordinate of each pair."""
        return 3 * outputs[0].size * required(inputs).shape[1]


def _variant(problem: Problem, width: int) -> Variant:
    a, b, out = problem.input(0).layout, problem.input(1).layout, problem.outputs[0].layout
    count, columns = out.shape
    rows, band = (ROWS, BAND) if problem.target.is_cpu else (1, width)
    pieces = (columns + band - 1) // band, (count + rows - 1) // rows
    global_size, local = grid(problem.target, *pieces)
    params = {
        "name": f"distances_v{width}",
        "a": a.unpadded(),
        "b": b.unpadded(),
        "dst": out.unpadded(),
        "rows": rows,
        "band": band,
        "vw": width,
        "wg": local,
    }
    args = (In(0), In(1), Out(0))
    launch = Launch("rows/distances.cl.mako", params, args, global_size, local)
    return Variant(f"distances_v{width}", (launch,))

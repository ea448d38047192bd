"""The k largest or smallest elements along an axis, in order, with their indices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clnn.errors import DTypeError, ShapeError
from clnn.ops.launch import In, Launch, Out, Variant, grid
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, onnx_op
from clnn.ops.problem import Problem, required
from clnn.ops.shared.element_types import require
from clnn.ops.shared.loops import collapse, without
from clnn.ops.spec import OpSpec
from clnn.types import BOOL, I64, Array, TensorType, normalise_axis

RANKED = 2048  # the longest line whose elements are each compared with all others


@dataclass(frozen=True)
class TopK(OpSpec):
    """Outputs: values and int64 indices, best first; of equal values the lower index comes first.

    NaN counts as larger than any number.
    """

    count: int
    axis: int
    largest: bool = True

    kind = "topk"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return both output types. Raises ShapeError or DTypeError where the input does not fit."""
        x = required(inputs)
        if not 0 <= self.axis < x.rank:
            raise ShapeError(f"top {self.count} along axis {self.axis} of {x.shape}.")
        if not 0 <= self.count <= x.shape[self.axis]:
            raise ShapeError(
                f"top {self.count} along axis {self.axis} of {x.shape}: there are only "
                f"{x.shape[self.axis]} elements."
            )
        if x.dtype == BOOL:
            raise DTypeError("the largest elements of bool are not defined.")
        shape = tuple(self.count if a == self.axis else d for a, d in enumerate(x.shape))
        return TensorType(shape, x.dtype), TensorType(shape, I64)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return the first elements of a stable sort."""
        x = required(inputs)
        _, ranks = np.unique(x, return_inverse=True)  # numpy sorts NaN behind all numbers
        ranks = ranks.reshape(x.shape)
        order = np.argsort(-ranks if self.largest else ranks, axis=self.axis, kind="stable")
        indices = np.take(order, np.arange(self.count), self.axis).astype(np.int64)
        return np.take_along_axis(x, indices, self.axis), indices

    def variants(self, problem: Problem) -> list[Variant]:
        """Return a kernel that ranks elements side by side and one that inserts them in turn."""
        length = problem.input(0).layout.shape[self.axis]
        ways = ("ranks", "inserts") if length <= RANKED else ("inserts",)
        return [self._variant(problem, way) for way in ways]

    def _variant(self, problem: Problem, way: str) -> Variant:
        layouts = [problem.input(0).layout, *(o.layout for o in problem.outputs)]
        ctype = problem.outputs[0].type.dtype.cl
        require(problem.target, "topk", ctype)
        loops = collapse([without(layout, [self.axis]) for layout in layouts])
        lines, length = math.prod(loops.extents), layouts[0].shape[self.axis]
        sizes = (length, lines) if way == "ranks" else (lines, 1)
        global_size, local = grid(problem.target, *sizes)
        name = f"topk_{way}_{ctype}_{'largest' if self.largest else 'smallest'}_{self.count}"
        params = {
            "name": name,
            "ctype": ctype,
            "way": way,
            "extents": loops.extents,
            "pitches": loops.pitches,
            "length": length,
            "count": self.count,
            "steps": tuple(layout.pitches[self.axis] for layout in layouts),
            "largest": self.largest,
            "wg": local,
        }
        launch = Launch("rows/topk.cl.mako", params, (In(0), Out(0), Out(1)), global_size, local)
        return Variant(name, (launch,))


@onnx_op("TopK")
def _topk(node: OnnxNode) -> list[Source]:
    axis = normalise_axis(int(node.attr("axis", -1)), node.type(0).rank)
    count = node.attr("k") if node.opset < 10 else node.const(1, "k").item()
    emit = Emit(TopK(int(count), axis, bool(node.attr("largest", 1))), [0])
    return [emit.out(0), emit.out(1)]

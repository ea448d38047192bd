"""Cumulative sums along one axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clnn.errors import DTypeError, ShapeError
from clnn.ops.launch import In, Launch, Out, Variant
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, onnx_op
from clnn.ops.problem import Problem, required
from clnn.ops.shared.element_types import require
from clnn.ops.shared.loops import collapse, run_work, without
from clnn.ops.spec import OpSpec
from clnn.types import BOOL, Array, TensorType, normalise_axis


@dataclass(frozen=True)
class CumSum(OpSpec):
    """Each output is the sum of the inputs up to it along `axis`.

    exclusive: without the input at its own place. reverse: from the end.
    """

    axis: int
    exclusive: bool = False
    reverse: bool = False

    kind = "cumsum"
    layout_rule = "same"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the input's type. Raises ShapeError or DTypeError where it does not fit."""
        x = required(inputs)
        if not 0 <= self.axis < x.rank:
            raise ShapeError(f"cumulative sum along axis {self.axis} of {x.shape}.")
        if x.dtype == BOOL:
            raise DTypeError("cumulative sum of bool is not defined.")
        return (x,)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return numpy's cumulative sum, turned and shifted as asked."""
        x = required(inputs)
        turned = np.flip(x, self.axis) if self.reverse else x
        total = np.cumsum(turned, self.axis, dtype=x.dtype)
        if self.exclusive:
            zero = np.zeros_like(np.take(total, [0], self.axis)) if total.size else total
            kept = np.take(total, np.arange(x.shape[self.axis] - 1), self.axis)
            total = np.concatenate([zero, kept], self.axis) if total.size else total
        return (np.flip(total, self.axis) if self.reverse else total,)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return the one kernel, for any layouts: a work-item adds up whole lines."""
        src, dst = problem.input(0).layout, problem.outputs[0].layout
        ctype = problem.outputs[0].type.dtype.cl
        require(problem.target, "cumsum", ctype)
        loops = collapse([without(src, [self.axis]), without(dst, [self.axis])])
        work, global_size, local = run_work(loops, problem.target, loops.has_inner_pitches(1, 1))
        name = f"cumsum_{ctype}_v{work['vw']}"
        params = {
            "name": name,
            "ctype": {"int": "uint", "long": "ulong"}.get(ctype, ctype),  # whose sums wrap
            "count": src.shape[self.axis],
            "steps": (src.pitches[self.axis], dst.pitches[self.axis]),
            "exclusive": self.exclusive,
            "reverse": self.reverse,
            "wg": local,
            **work,
        }
        launch = Launch("rows/cumsum.cl.mako", params, (In(0), Out(0)), global_size, local)
        return [Variant(name, (launch,))]


@onnx_op("CumSum")
def _cumsum(node: OnnxNode) -> Source:
    axis = normalise_axis(int(node.const(1, "axis").item()), node.type(0).rank)
    return Emit(CumSum(axis, bool(node.attr("exclusive", 0)), bool(node.attr("reverse", 0))), [0])

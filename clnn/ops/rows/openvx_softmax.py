"""Softmax of fixed-point numbers as OpenVX has it: float32 exponentials from a table."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from clnn.arith.openvx import Format, exponentials, softmax
from clnn.errors import DTypeError, ShapeError
from clnn.ops.launch import Const, In, Launch, Out, Variant, grid
from clnn.ops.problem import Problem, required
from clnn.ops.shared.loops import collapse, without
from clnn.ops.spec import OpSpec
from clnn.records import dataclass
from clnn.types import Array, TensorType


@dataclass(frozen=True)
class OpenVxSoftmax(OpSpec):
    """e / sum(e) along `axis`, cut towards zero and clamped; e in float32, summed in order.

    conformance: e is of the elements themselves, else of their differences to the largest one.
    """

    axis: int
    source: Format
    result: Format
    conformance: bool = False

    kind = "openvx_softmax"
    layout_rule = "same"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the output's type. Raises ShapeError or DTypeError where the input does not fit."""
        x = required(inputs)
        if not 0 <= self.axis < x.rank:
            raise ShapeError(f"softmax along axis {self.axis} of {x.shape}.")
        if x.dtype != self.source.dtype:
            raise DTypeError(f"softmax of {x.dtype.name}, made for {self.source.dtype.name}.")
        return (TensorType(x.shape, self.result.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return the softmax with numpy."""
        return (softmax(required(inputs), self.axis, self.source, self.result, self.conformance),)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return the one kernel, for any layouts: a work-item computes a row."""
        x, out = problem.input(0), problem.outputs[0]
        layouts = (x.layout, out.layout)
        loops = collapse([without(layout, [self.axis]) for layout in layouts])
        rows = math.prod(loops.extents)
        global_size, local = grid(problem.target, rows)
        name = f"openvx_softmax_{x.type.dtype.cl}_{out.type.dtype.cl}"
        params = {
            "name": name,
            "source": self.source,
            "result": self.result,
            "wg": local,
            "rows": rows,
            "conformance": self.conformance,
            "extents": loops.extents,
            "pitches": loops.pitches,
            "count": x.type.shape[self.axis],
            "steps": tuple(layout.pitches[self.axis] for layout in layouts),
        }
        table = Const(functools.partial(exponentials, self.source, not self.conformance))
        launch = Launch(
            "rows/openvx_softmax.cl.mako", params, (In(0), table, Out(0)), global_size, local
        )
        return [Variant(name, (launch,))]

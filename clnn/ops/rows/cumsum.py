"""Cumulative sums and products along one axis."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from clnn.errors import DTypeError, ShapeError
from clnn.ops.launch import In, Launch, Out, Variant
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, onnx_op
from clnn.ops.problem import Problem, required
from clnn.ops.shared.element_types import require
from clnn.ops.shared.loops import collapse, run_work, without
from clnn.ops.spec import OpSpec
from clnn.records import dataclass
from clnn.traced import other
from clnn.types import BOOL, Array, TensorType, normalise_axis

GROUP = 256  # members that share a line
LONG_LINE = 1024  # elements from which on that pays, where lines are fewer than BUSY for each unit
BUSY = 64


@dataclass(frozen=True)
class CumSum(OpSpec):
    """Each output is the sum of the inputs up to it along `axis`.

    exclusive: without the input at its own place. reverse: from the end. product: multiplied instead.
    """

    axis: int
    exclusive: bool = False
    reverse: bool = False
    product: bool = False

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
        """Return numpy's cumulative sum or product, turned and shifted as asked."""
        x = required(inputs)
        turned = np.flip(x, self.axis) if self.reverse else x
        total = (np.cumprod if self.product else np.cumsum)(turned, self.axis, dtype=x.dtype)
        if self.exclusive:
            none = (
                np.full_like(np.take(total, [0], self.axis), self.product) if total.size else total
            )
            kept = np.take(total, np.arange(x.shape[self.axis] - 1), self.axis)
            total = np.concatenate([none, kept], self.axis) if total.size else total
        return (np.flip(total, self.axis) if self.reverse else total,)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return a kernel with lines per work-item; on GPUs with few lines one per work-group first."""
        src, dst = problem.input(0).layout, problem.outputs[0].layout
        target, ctype = problem.target, problem.outputs[0].type.dtype.cl
        label = "cumprod" if self.product else "cumsum"
        require(target, label, ctype)
        loops = collapse([without(src, [self.axis]), without(dst, [self.axis])])
        params: dict[str, Any] = {
            "ctype": {"int": "uint", "long": "ulong"}.get(ctype, ctype),  # whose sums wrap
            "count": src.shape[self.axis],
            "steps": (src.pitches[self.axis], dst.pitches[self.axis]),
            "exclusive": self.exclusive,
            "reverse": self.reverse,
            "product": self.product,
        }
        work, global_size, local = run_work(loops, target, loops.has_inner_pitches(1, 1))
        name = f"{label}_{ctype}_v{work['vw']}"
        launch = _launch("cumsum", {**params, "name": name, **work}, global_size, local)
        variants = [Variant(name, (launch,))]
        lines = prod(loops.extents)
        few = other(lines) < BUSY * target.compute_units and other(params["count"]) >= LONG_LINE
        if few and not target.is_cpu:
            group = 1 << (min(GROUP, target.max_work_group).bit_length() - 1)
            name = f"{label}_{ctype}_group"
            params |= {"name": name, "extents": loops.extents, "pitches": loops.pitches}
            launch = _launch("cumsum_group", params, (lines * group,), (group,))
            variants.insert(0, Variant(name, (launch,)))
        return variants


def _launch(
    template: str, params: dict[str, Any], global_size: tuple[int, ...], local: tuple[int, ...]
) -> Launch:
    args = (In(0), Out(0))
    return Launch(f"rows/{template}.cl.mako", {**params, "wg": local}, args, global_size, local)


@onnx_op("CumSum", "CumProd")
def _cumsum(node: OnnxNode) -> Source:
    product = node.op_type == "CumProd"
    axis = normalise_axis(int(node.const(1, "axis").item()), node.type(0).rank)
    return Emit(
        CumSum(axis, bool(node.attr("exclusive", 0)), bool(node.attr("reverse", 0)), product), [0]
    )

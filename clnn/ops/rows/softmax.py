"""Softmax and LogSoftmax over any axes, with fused post-ops."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from clnn.ops.launch import Arg, In, Launch, Out, Variant
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, onnx_op
from clnn.ops.problem import Problem, required
from clnn.ops.rows.rows import and_plain, make_rows, operands_of, real_rows, repeated
from clnn.ops.shared.epilogue import operand_args
from clnn.ops.shared.functions import PostOp, apply_post_ops
from clnn.ops.spec import OpSpec
from clnn.records import dataclass
from clnn.traced import divides
from clnn.types import Array, TensorType, normalise_axis


@dataclass(frozen=True)
class Softmax(OpSpec):
    """Softmax (log: its logarithm) over `axes` taken together, then `post_ops`."""

    axes: tuple[int, ...]
    log: bool = False
    post_ops: tuple[PostOp, ...] = ()

    kind = "softmax"
    layout_rule = "same"
    fuses_post_ops = True
    supports_narrow_storage = True

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the input's type. Raises ShapeError or DTypeError where it does not fit."""
        return (real_rows("softmax", required(inputs), self.axes),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return numpy's exponentials over their sum."""
        x = required(inputs)
        if not x.size:
            return (x,)
        with np.errstate(all="ignore"):
            away = x - np.max(x, axis=self.axes, keepdims=True)
            total = np.sum(np.exp(away), axis=self.axes, keepdims=True)
            y = away - np.log(total) if self.log else np.exp(away) / total
        return (apply_post_ops(np.asarray(y), self.post_ops, inputs),)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return a vector kernel and a plain one."""
        return and_plain(partial(_variant, self, problem))

    def repeat(self, problem: Problem, variant: Variant) -> Variant | None:
        """Return the one of the variants that has the same name."""
        return repeated(partial(_variant, self, problem), variant)

    def flops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        """Four operations per element: maximum, exponential, sum, quotient."""
        return 4 * outputs[0].size


def _variant(spec: Softmax, problem: Problem, plain: bool) -> Variant:
    x, out = problem.input(0), problem.outputs[0]
    operands, extras = operands_of(problem, spec.post_ops)
    layouts = [x.layout.unpadded(), *extras, out.layout.unpadded()]
    rows = make_rows(
        layouts, spec.axes, problem.target, x.type.dtype.itemsize, plain=plain, share=True
    )
    global_size, local = rows.sizes(problem.target)
    ctype = x.ctype
    name = f"{'log_' if spec.log else ''}softmax_{x.label}_{rows.label}"
    apart = not rows.across or divides(rows.width, rows.lanes)
    params = {
        "name": name,
        "ctype": ctype,
        "rows": rows,
        "log": spec.log,
        "post_ops": spec.post_ops,
        "keep": not spec.log and apart and rows.group == 1 and not x.stored,
        "wg": local,
        "own_exp": problem.target.is_cpu and ctype == "float",
        "operands": operands,
    }
    args: tuple[Arg, ...] = (In(0), *operand_args(problem, spec.post_ops), Out(0))
    return Variant(name, (Launch("rows/softmax.cl.mako", params, args, global_size, local),))


def softmax_axes(node: OnnxNode) -> tuple[int, ...]:
    """Return the axes that an op of the softmax family takes together.

    Before opset 13 these are all from its axis on, then its axis alone.
    """
    rank = node.type(0).rank
    if node.opset < 13:
        return tuple(range(normalise_axis(int(node.attr("axis", 1)), rank), rank))
    return (normalise_axis(int(node.attr("axis", -1)), rank),)


@onnx_op("Softmax", "LogSoftmax")
def _softmax(node: OnnxNode) -> Source:
    return Emit(Softmax(softmax_axes(node), node.op_type == "LogSoftmax"), [0])

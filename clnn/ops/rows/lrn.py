"""Local response normalisation across channels, with fused post-ops."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from clnn.errors import ShapeError
from clnn.ops.launch import Arg, In, Launch, Out, Variant
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, onnx_op
from clnn.ops.problem import Problem, required
from clnn.ops.rows.rows import and_plain, make_rows, operands_of, real_rows
from clnn.ops.shared.epilogue import operand_args
from clnn.ops.shared.functions import PostOp, apply_post_ops
from clnn.ops.spec import OpSpec
from clnn.records import dataclass
from clnn.types import Array, TensorType


@dataclass(frozen=True)
class Lrn(OpSpec):
    """x / (bias + alpha / size * sum of squares of `size` neighbouring channels) ** beta, `post_ops`."""

    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    bias: float = 1.0
    post_ops: tuple[PostOp, ...] = ()

    kind = "lrn"
    layout_rule = "same"
    fuses_post_ops = True

    @property
    def sides(self) -> tuple[int, int]:
        """Neighbours before and after a channel."""
        return (self.size - 1) // 2, self.size // 2

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the input's type. Raises ShapeError or DTypeError where it does not fit."""
        x = required(inputs)
        if x.rank < 2 or self.size < 1:
            raise ShapeError(
                f"LRN of size {self.size} over {x.shape}: it needs channels and a size."
            )
        return (real_rows("LRN", x, (1,)),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return numpy's sum over shifted squares."""
        x = required(inputs)
        pads = [self.sides if a == 1 else (0, 0) for a in range(x.ndim)]
        squares = np.pad(np.square(x), pads)
        total = sum(squares[:, k : k + x.shape[1]] for k in range(self.size))
        with np.errstate(all="ignore"):
            y = x / (self.bias + self.alpha / self.size * total) ** self.beta
        return (apply_post_ops(np.asarray(y, x.dtype), self.post_ops, inputs),)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return a vector kernel and a plain one."""
        return and_plain(partial(_variant, self, problem))

    def flops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        """Two operations per neighbour and four for the quotient."""
        return (2 * self.size + 4) * outputs[0].size


def _variant(spec: Lrn, problem: Problem, plain: bool) -> Variant:
    x, out = problem.input(0), problem.outputs[0]
    operands, extras = operands_of(problem, spec.post_ops)
    layouts = [x.layout.unpadded(), *extras, out.layout.unpadded()]
    rows = make_rows(layouts, (1,), problem.target, x.type.dtype.itemsize, plain=plain)
    global_size, local = rows.sizes(problem.target)
    name = f"lrn_{x.type.dtype.cl}_n{spec.size}_{rows.label}"
    params = {
        "name": name,
        "ctype": x.type.dtype.cl,
        "rows": rows,
        "low": spec.sides[0],
        "high": spec.sides[1],
        "scale": spec.alpha / spec.size,
        "beta": spec.beta,
        "bias": spec.bias,
        "post_ops": spec.post_ops,
        "wg": local,
        "operands": operands,
    }
    args: tuple[Arg, ...] = (In(0), *operand_args(problem, spec.post_ops), Out(0))
    return Variant(name, (Launch("rows/lrn.cl.mako", params, args, global_size, local),))


@onnx_op("LRN")
def _lrn(node: OnnxNode) -> Source:
    alpha, beta = float(node.attr("alpha", 1e-4)), float(node.attr("beta", 0.75))
    return Emit(Lrn(int(node.attrs["size"]), alpha, beta, float(node.attr("bias", 1.0))), [0])

"""Matrix products: Gemm and MatMul over any strided views, with fused post-ops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clnn.errors import DTypeError, ShapeError
from clnn.ops.gemm import families
from clnn.ops.gemm.problem import GemmProblem, gemm_problem
from clnn.ops.launch import Variant
from clnn.ops.problem import Problem
from clnn.ops.shared.functions import PostOp, apply_post_ops
from clnn.ops.spec import OpSpec
from clnn.records import dataclass
from clnn.types import F32, I32, I64, U32, U64, Array, TensorType, broadcast_shapes

ADDEND = 2  # the input c


@dataclass(frozen=True)
class Gemm(OpSpec):
    """alpha * a b + beta * c: inputs a (..., m, k), b (..., k, n), c or None, operands of `post_ops`.

    The axes in front are batches and broadcast, as numpy's matmul does; an input of one axis is a
    row (a) or a column (b) whose axis the output lacks. trans_a, trans_b: the last two axes of an
    input are exchanged. c is broadcast to the output.
    """

    alpha: float = 1.0
    beta: float = 1.0
    trans_a: bool = False
    trans_b: bool = False
    post_ops: tuple[PostOp, ...] = ()

    kind = "gemm"
    fuses_post_ops = True
    supports_narrow_storage = True
    first_operand = 3

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the output type. Raises ShapeError or DTypeError where inputs do not fit."""
        a, b = inputs[0], inputs[1]
        c = inputs[ADDEND] if len(inputs) > ADDEND else None
        if a is None or b is None or not a.rank or not b.rank:
            raise ShapeError("a matrix product needs two inputs of one axis or more.")
        _check_types([t for t in (a, b, c) if t is not None])
        if (self.trans_a and a.rank < 2) or (self.trans_b and b.rank < 2):
            raise ShapeError(f"matrix product of {a.shape} and {b.shape}: one axis, transposed.")
        rows, columns = self._matrices(a.shape, b.shape)
        if rows[-1] != columns[-2]:
            raise ShapeError(
                f"matrix product of {a.shape}{'ᵀ' * self.trans_a} and {b.shape}"
                f"{'ᵀ' * self.trans_b}: the sums have {rows[-1]} and {columns[-2]} terms."
            )
        outer = broadcast_shapes(rows[:-2], columns[:-2])
        last = (*rows[-2:-1][: a.rank > 1], *columns[-1:][: b.rank > 1])
        out = (*outer, *last)
        if c is not None and broadcast_shapes(c.shape, out) != out:
            raise ShapeError(f"addend {c.shape} of a matrix product does not broadcast to {out}.")
        return (TensorType(out, a.dtype),)

    def _matrices(
        self, a: tuple[int, ...], b: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes as matrices: (..., m, k) and (..., k, n)."""
        rows = a if len(a) > 1 else (1, *a)
        columns = b if len(b) > 1 else (*b, 1)
        if self.trans_a:
            rows = (*rows[:-2], rows[-1], rows[-2])
        if self.trans_b:
            columns = (*columns[:-2], columns[-1], columns[-2])
        return rows, columns

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return numpy's matmul, in the arrays' own precision."""
        a, b = inputs[0], inputs[1]
        assert a is not None and b is not None
        a = np.swapaxes(a, -1, -2) if self.trans_a else a
        b = np.swapaxes(b, -1, -2) if self.trans_b else b
        y = np.asarray(np.matmul(a, b))
        y = y * y.dtype.type(self.alpha)
        c = inputs[ADDEND] if len(inputs) > ADDEND else None
        if c is not None and self.beta != 0:
            y = y + y.dtype.type(self.beta) * c
        return (apply_post_ops(np.asarray(y), self.post_ops, inputs),)

    def flops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        """Two operations per multiply-add."""
        a, b = inputs[0], inputs[1]
        assert a is not None and b is not None
        return 2 * outputs[0].size * self._matrices(a.shape, b.shape)[0][-1]

    def variants(self, problem: Problem) -> list[Variant]:
        """Return the best kernel of each family that fits, best first, and the reference kernel."""
        return families.variants(self.problem(problem))

    def candidates(self, problem: Problem) -> list[Variant]:
        """Return the kernels that are worth a measurement, by rising cost."""
        return families.candidates(self.problem(problem))

    def repeat(self, problem: Problem, variant: Variant) -> Variant | None:
        """Return a kernel of the same family and tile."""
        product = self.problem(problem)
        if variant.again is None:
            return super().repeat(problem, variant)
        return variant.again(product.folded()) if product.fits_fast else None

    def problem(self, node: Problem) -> GemmProblem:
        """Return a node of this op as the kernels see it: alpha and the addend become post-ops."""
        chain: list[PostOp] = []
        if self.alpha != 1:
            chain.append(PostOp("mul", (self.alpha,)))
        if node.has(ADDEND) and self.beta != 0:
            chain.append(PostOp("add", operand=ADDEND))
        scales = {ADDEND: self.beta} if self.beta != 1 else {}
        transposed = (self.trans_a, self.trans_b)
        return gemm_problem(node, transposed, (*chain, *self.post_ops), scales)


def _check_types(inputs: Sequence[TensorType]) -> None:
    allowed = (F32, I32, I64, U32, U64)
    if any(t.dtype != inputs[0].dtype or t.dtype not in allowed for t in inputs):
        names = ", ".join(t.dtype.name for t in inputs)
        raise DTypeError(
            f"matrix product of types {names}: they must be equal, and one of "
            f"{', '.join(t.name for t in allowed)}."
        )

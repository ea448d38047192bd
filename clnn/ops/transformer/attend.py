"""Attention as one op: softmax(scores of queries and keys) times values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

import numpy as np

from clnn.errors import ShapeError
from clnn.layout import TensorLayout
from clnn.ops.gemm.spec import Gemm
from clnn.ops.launch import Arg, In, Launch, Out, Scratch, Variant, by_cost
from clnn.ops.problem import Operand, Problem, required
from clnn.ops.rows.softmax import Softmax
from clnn.ops.shared.functions import PostOp
from clnn.ops.spec import OpSpec
from clnn.ops.transformer.amx import amx_attention
from clnn.ops.transformer.tiles import Form, attention_variants
from clnn.records import dataclass
from clnn.types import Array, TensorType

# Of results relative to the largest one, where scores and weights are stored in 16 bits.
STORED_ERROR = 2.0**-5
NO_NAN = PostOp("thresholded_relu", (-1.0,))


@dataclass(frozen=True)
class Attention(OpSpec):
    """softmax(scores) v: inputs of `scores` (queries, keys, an addend or None, operands), then the values.

    scores: the product that makes them, with all that is applied to them. trans_v: values come as
    transposed matrices. turned: how many axes of heads the result has behind its queries, (..., m, heads, e).
    zeros_for_nan: a query whose softmax is NaN, as where all its keys are masked by -infinity, gives zeros.
    """

    scores: Gemm = field(default_factory=Gemm)
    trans_v: bool = False
    turned: int = 0
    zeros_for_nan: bool = False

    kind = "attention"
    supports_narrow_storage = True

    @property
    def mixing(self) -> Gemm:
        """The product of the softmax and the values."""
        return Gemm(trans_b=self.trans_v)

    def softmax(self, rank: int) -> Softmax:
        """Return what is between the products. No weight is below 0, so a threshold tells NaN alone."""
        return Softmax((rank - 1,), post_ops=(NO_NAN,) if self.zeros_for_nan else ())

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the output type. Raises ShapeError or DTypeError where inputs do not fit."""
        (scores,) = self.scores.infer(inputs[:-1])
        (made,) = self.mixing.infer([scores, inputs[-1], None])
        if made.shape[:-2] != scores.shape[:-2] or min(scores.rank, required(inputs, -1).rank) < 2:
            raise ShapeError(f"attention of scores {scores.shape} that gives {made.shape}.")
        if made.rank < 2 + self.turned:
            raise ShapeError(f"attention that gives {made.shape} has no heads to turn.")
        return (replace(made, shape=_turned(made.shape, self.turned)),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return numpy's products with exponentials over their sums between them."""
        (scores,) = self.scores.reference(*inputs[:-1])
        (weights,) = self.softmax(scores.ndim).reference(scores)
        (made,) = self.mixing.reference(weights, inputs[-1])
        return (np.moveaxis(made, -2, -2 - self.turned),)

    def flops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        """Two operations per multiply-add of both products."""
        scores = self.scores.infer(inputs[:-1])
        mixed = self.mixing.flops([scores[0], inputs[-1]], outputs)
        return self.scores.flops(inputs[:-1], scores) + mixed

    def variants(self, problem: Problem) -> list[Variant]:
        """Return the best kernel that keeps scores in local memory, and three steps through scratch memory."""
        return [*self._fused(problem)[:1], self._in_steps(problem, 0), self._in_steps(problem, -1)]

    def candidates(self, problem: Problem) -> list[Variant]:
        """Return the kernels that are worth a measurement, by rising cost."""
        return by_cost([*self._fused(problem), self._in_steps(problem, 0)])

    def _fused(self, problem: Problem) -> list[Variant]:
        operand = Operand(self._scores(problem), TensorLayout.make(self._scores(problem).shape))
        scores = self.scores.problem(Problem(problem.inputs[:-1], (operand,), problem.target))
        out = problem.outputs[0].layout.unpadded()
        out = _unturned(out, self.turned)
        values = problem.input(len(problem.inputs) - 1)
        form = Form(out, problem.outputs[0].memory, self.trans_v, self.zeros_for_nan)
        found = amx_attention(scores, values, form)
        return found or attention_variants(scores, values, form)

    def _scores(self, problem: Problem) -> TensorType:
        types = [None if o is None else o.type for o in problem.inputs]
        return self.scores.infer(types[:-1])[0]

    def _in_steps(self, problem: Problem, which: int) -> Variant:
        """Return both products and the softmax as launches of their own; which: of each one's variants."""
        kind, target, out = self._scores(problem), problem.target, problem.outputs[0]
        between = Operand(kind, TensorLayout.make(kind.shape), stored=out.stored)
        lies = _unturned(out.layout, self.turned)
        out = replace(out, type=replace(out.type, shape=lies.shape), layout=lies)
        last = len(problem.inputs) - 1
        scores, weights = (
            Scratch(name, max(kind.size, 1) * out.memory.itemsize, out.memory.itemsize)
            for name in ("scores", "weights")
        )
        mixed = Problem((between, problem.input(last), None), (out,), target)
        steps: list[tuple[OpSpec, Problem, dict[int, Arg], Arg]] = [
            (self.scores, Problem(problem.inputs[:-1], (between,), target), {}, scores),
            (
                self.softmax(kind.rank),
                Problem((between,), (between,), target),
                {0: scores},
                weights,
            ),
            (self.mixing, mixed, {0: weights, 1: In(last)}, Out(0)),
        ]
        made = [spec.variants(part)[which] for spec, part, _, _ in steps]
        launches = [
            _rerouted(launch, f"{place}_", sources, result)
            for place, (variant, (_, _, sources, result)) in enumerate(
                zip(made, steps, strict=True)
            )
            for launch in variant.launches
        ]
        name = "attention_in_steps_" + "__".join(v.name for v in made)
        error = max(STORED_ERROR if out.stored else 0.0, *(v.error for v in made))
        return Variant(name, tuple(launches), sum(v.cost for v in made), error)


def _turned(shape: tuple[int, ...], heads: int) -> tuple[int, ...]:
    first = len(shape) - 2 - heads
    return (*shape[:first], shape[-2], *shape[first:-2], shape[-1])


def _unturned(layout: TensorLayout, heads: int) -> TensorLayout:
    """Return the layout of a result (..., m, heads, e) as (..., heads, m, e)."""
    last = layout.rank - 1
    first = last - 1 - heads
    return layout.transpose((*range(first), *range(first + 1, last), first, last))


def _rerouted(launch: Launch, mark: str, sources: dict[int, Arg], result: Arg) -> Launch:
    """Return a launch of a step with its inputs and its output where the whole op has them."""

    def there(arg: Arg) -> Arg:
        if isinstance(arg, In) and arg.index in sources:
            assert not arg.shift
            return sources[arg.index]
        if isinstance(arg, Out):
            assert not arg.shift
            return result
        return replace(arg, name=mark + arg.name) if isinstance(arg, Scratch) else arg

    return replace(launch, args=tuple(map(there, launch.args)))

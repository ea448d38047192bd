"""Elementwise chains: one primary input, post-ops applied in a register, operands broadcast."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from clnn.errors import DTypeError
from clnn.ops.launch import In, Out, Variant
from clnn.ops.problem import Operand, Problem
from clnn.ops.shared.element_types import move_type, require
from clnn.ops.shared.elementwise_launch import Walked, walk_launch
from clnn.ops.shared.functions import FUNCTIONS, MOST_STEPS, PostOp, apply_post_ops
from clnn.ops.spec import OpSpec, batched
from clnn.records import dataclass
from clnn.types import Array, TensorType, broadcast_shapes


@dataclass(frozen=True)
class Eltwise(OpSpec):
    """Post-ops applied to input 0, which is broadcast with the operands to the output's shape."""

    post_ops: tuple[PostOp, ...] = ()

    kind = "eltwise"
    layout_rule = "same"
    fuses_post_ops = True
    supports_narrow_storage = True

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the broadcast type. Raises DTypeError where operands differ in type."""
        operands = [t for t in inputs if t is not None]
        dtype = operands[0].dtype
        if any(t.dtype != dtype for t in operands):
            names = ", ".join(t.dtype.name for t in operands)
            raise DTypeError(f"elementwise operands have types {names}: they must be equal.")
        for post_op in self.post_ops:
            if FUNCTIONS[post_op.fn].floats_only and not dtype.is_float:
                raise DTypeError(f"{post_op.fn} of {dtype.name}: it needs a float type.")
        return (TensorType(broadcast_shapes(*(t.shape for t in operands)), dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return the chain's result with numpy."""
        operands = [x for x in inputs if x is not None]
        shape = np.broadcast_shapes(*(x.shape for x in operands))
        first = np.broadcast_to(operands[0], shape)
        return (np.broadcast_to(apply_post_ops(first, self.post_ops, inputs), shape),)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return the one kernel, which walks any layouts."""
        used = sorted({0, *(p.operand for p in self.post_ops if p.operand is not None)})
        out = problem.outputs[0]

        def walked(arg: In | Out, operand: Operand) -> Walked:
            ctype = operand.ctype if self.post_ops else move_type(operand.memory)
            require(problem.target, "eltwise", ctype)
            return Walked(arg, operand.layout.broadcast(out.type.shape), ctype)

        launch = walk_launch(
            "eltwise",
            [walked(In(k), problem.input(k)) for k in used],
            walked(Out(0), out),
            problem.target,
            self.post_ops,
            {k: number for number, k in enumerate(used)},
        )
        return [Variant("eltwise", (launch,))]

    def split_batch(
        self, inputs: Sequence[TensorType | None], count: int
    ) -> tuple[OpSpec, tuple[int, ...]] | None:
        """Return the op as it is, for some images of the inputs that are not broadcast along them."""
        return self, batched(inputs, max((t.rank for t in inputs if t is not None), default=0))

    def flops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        """One operation per post-op and element."""
        return len(self.post_ops) * outputs[0].size


def links(spec: Eltwise) -> Iterator[tuple[Eltwise, tuple[int, ...]]]:
    """Yield ops of at most MOST_STEPS steps that do the same one behind the other.

    Each with the inputs of `spec` that it takes behind the running value.
    """
    for first in range(0, len(spec.post_ops), MOST_STEPS):
        steps = spec.post_ops[first : first + MOST_STEPS]
        taken = tuple(dict.fromkeys(s.operand for s in steps if s.operand is not None))
        places = {operand: place for place, operand in enumerate(taken, 1)}
        yield (
            Eltwise(
                tuple(
                    s if s.operand is None else replace(s, operand=places[s.operand]) for s in steps
                )
            ),
            taken,
        )

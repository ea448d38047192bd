"""Fused elementwise steps inside other ops: their operands as layouts and kernel arguments."""

from __future__ import annotations

from collections.abc import Sequence

from clnn.layout import TensorLayout
from clnn.ops.shared.functions import Step
from clnn.ops.spec import In, Problem

_HEAVY = {
    "elu", "celu", "selu", "sigmoid", "softplus", "gelu", "gelu_tanh", "mish", "tanh", "erf",
    "exp", "log", "pow", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh",
    "acosh", "atanh", "swish",
}  # fmt: skip


def heavy(steps: Sequence[Step]) -> bool:
    """Whether steps are long enough in code that an unrolled tile should not repeat them."""
    return any(s.fn in _HEAVY for s in steps)


def step_operands(steps: Sequence[Step]) -> list[int]:
    """Return the node inputs that steps read, each once, in order of first use."""
    return list(dict.fromkeys(s.operand for s in steps if s.operand is not None))


def operand_layouts(problem: Problem, steps: Sequence[Step]) -> dict[int, tuple[int, TensorLayout]]:
    """Return node input -> (number among the operands, layout broadcast to the output)."""
    shape = problem.outputs[0].type.shape
    return {
        k: (place, problem.input(k).layout.unpadded().broadcast(shape))
        for place, k in enumerate(step_operands(steps))
    }


def operand_args(problem: Problem, steps: Sequence[Step]) -> list[In]:
    """Return the kernel arguments of the operands, in the same order."""
    return [In(k) for k in step_operands(steps)]

"""Fused post-ops inside other ops: their operands as layouts and kernel arguments."""

from __future__ import annotations

from collections.abc import Sequence

from clnn.codegen.filters import image
from clnn.layout import TensorLayout
from clnn.ops.launch import In
from clnn.ops.problem import Problem
from clnn.ops.shared.functions import FUNCTIONS, PostOp

ONE = TensorLayout.make((1,))
_HEAVY = {
    "elu",
    "celu",
    "selu",
    "rational_sigmoid",
    "rational_swish",
    "rational_tanh",
    "sigmoid",
    "softplus",
    "gelu",
    "gelu_tanh",
    "mish",
    "tanh",
    "erf",
    "exp",
    "log",
    "pow",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "asinh",
    "acosh",
    "atanh",
    "swish",
}


def heavy(post_ops: Sequence[PostOp]) -> bool:
    """Whether post-ops are long enough in code that an unrolled tile should not repeat them."""
    return any(p.fn in _HEAVY for p in post_ops)


def post_op_operands(post_ops: Sequence[PostOp]) -> list[int]:
    """Return the node inputs that post-ops read, each once, in order of first use."""
    return list(dict.fromkeys(p.operand for p in post_ops if p.operand is not None))


def table_operands(post_ops: Sequence[PostOp]) -> set[int | None]:
    """Return the node inputs that post-ops look their results up in."""
    return {p.operand for p in post_ops if FUNCTIONS[p.fn].looks_up}


def operand_layouts(
    problem: Problem, post_ops: Sequence[PostOp]
) -> dict[int, tuple[int, TensorLayout]]:
    """Return node input -> (number among the operands, layout broadcast to the output).

    Of a table, that of its first element.
    """
    shape, tables = problem.outputs[0].type.shape, table_operands(post_ops)
    return {
        k: (place, (ONE if k in tables else problem.input(k).layout.unpadded()).broadcast(shape))
        for place, k in enumerate(post_op_operands(post_ops))
    }


def operand_images(
    problem: Problem, post_ops: Sequence[PostOp]
) -> dict[int, tuple[int, TensorLayout]]:
    """Return the same with layouts of images (n, c, h, w)."""
    layouts = operand_layouts(problem, post_ops)
    return {k: (place, image(layout)) for k, (place, layout) in layouts.items()}


def operand_args(problem: Problem, post_ops: Sequence[PostOp]) -> list[In]:
    """Return the kernel arguments of the operands, in the same order."""
    return [In(k) for k in post_op_operands(post_ops)]

"""Parameters of functions of bytes as kernel arguments, so that equal layers share one program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clnn.ops.launch import Arg, Const, Out
from clnn.ops.problem import Operand, Problem
from clnn.ops.shared.epilogue import operand_args, post_op_operands
from clnn.ops.shared.functions import FUNCTIONS, PostOp


def stored_types(problem: Problem, post_ops: Sequence[PostOp]) -> tuple[str, dict[str, Any]]:
    """Return the result's type and parameters of _common/scales.cl.mako."""
    result, *others = (operand.ctype for operand in _operands(problem, post_ops))
    return result, {"extra_types": others, "scales": len(_numbers(post_ops))}


def last_args(problem: Problem, post_ops: Sequence[PostOp]) -> list[Arg]:
    """Return the arguments behind a kernel's constants: parameters, operands and the result."""
    pairs = _numbers(post_ops)
    scales = [Const(lambda: np.array(pairs, np.float32))] if pairs else []
    return [*scales, *operand_args(problem, post_ops), Out(0)]


def _numbers(post_ops: Sequence[PostOp]) -> list[tuple[float, float]]:
    """Return the parameters of functions of bytes as pairs, one after the other, filled up with 0."""
    flat = [p for step in post_ops if FUNCTIONS[step.fn].of_bytes for p in step.params]
    flat += [0.0] * (len(flat) % 2)
    return list(zip(flat[::2], flat[1::2], strict=True))


def _operands(problem: Problem, post_ops: Sequence[PostOp]) -> list[Operand]:
    return [problem.outputs[0], *(problem.input(k) for k in post_op_operands(post_ops))]

"""Scales of values stored in bytes as kernel arguments, so that equal layers share one program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clnn.codegen.filters import stored_as
from clnn.ops.launch import Arg, Const, Out
from clnn.ops.problem import Operand, Problem
from clnn.ops.shared.epilogue import operand_args, post_op_operands
from clnn.ops.shared.functions import FUNCTIONS, PostOp
from clnn.types import Stored


def stored_types(problem: Problem, post_ops: Sequence[PostOp]) -> tuple[str, dict[str, Any]]:
    """Return the result's type and parameters of _common/scales.cl.mako.

    Types of bytes have names in place of scales: scale0, inverse0 of the first that is one, and so on. So
    have parameters of functions of bytes, one after the other.
    """
    named: list[str] = []
    for operand in _operands(problem, post_ops):
        ctype, count = operand.ctype, len(_scales(named))
        if stored_as(ctype) == "char":
            ctype = Stored(ctype, "char", f"scale{count}", f"inverse{count}")
        named.append(ctype)
    numbers = _numbers(post_ops)
    assert not (numbers and _scales(named)), "bytes with and without scales"
    return named[0], {"extra_types": named[1:], "scales": len(_scales(named)) + len(numbers)}


def last_args(problem: Problem, post_ops: Sequence[PostOp]) -> list[Arg]:
    """Return the arguments behind a kernel's constants: scales, operands and the result."""
    pairs = _scales([o.ctype for o in _operands(problem, post_ops)]) + _numbers(post_ops)
    scales = [Const(lambda: np.array(pairs, np.float32))] if pairs else []
    return [*scales, *operand_args(problem, post_ops), Out(0)]


def _numbers(post_ops: Sequence[PostOp]) -> list[tuple[float | str, float | str]]:
    """Return the parameters of functions of bytes as further pairs, filled up with 0."""
    flat = [p for step in post_ops if FUNCTIONS[step.fn].of_bytes for p in step.params]
    flat += [0.0] * (len(flat) % 2)
    return list(zip(flat[::2], flat[1::2], strict=True))


def _operands(problem: Problem, post_ops: Sequence[PostOp]) -> list[Operand]:
    return [problem.outputs[0], *(problem.input(k) for k in post_op_operands(post_ops))]


def _scales(ctypes: Sequence[str]) -> list[tuple[float | str, float | str]]:
    """Return (scale, inverse) of the types of bytes."""
    return [(t.scale, t.inverse) for t in ctypes if isinstance(t, Stored) and t.cell == "char"]

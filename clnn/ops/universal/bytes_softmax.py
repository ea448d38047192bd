"""Softmax of bytes as a launch of the universal set."""

from __future__ import annotations

from collections.abc import Callable

from clnn.arith.quantised import limits_of
from clnn.ops.launch import Arg, Const, In, Out, Variant
from clnn.ops.problem import Problem
from clnn.ops.universal.byte_sums import moved
from clnn.ops.universal.functions import universal_launch
from clnn.types import Array


def universal_byte_softmax(
    problem: Problem, terms: Callable[[], Array], scale: float, shrink: float, zero: int
) -> Variant:
    """Return the softmax of each row as a launch of the set; numbers as kernels of quantised/softmax take them."""
    x, out = problem.input(0), problem.outputs[0]
    rows, length = x.type.shape
    low, _ = limits_of(x.type.dtype)
    numbers = (
        *(length, *x.layout.pitches, *out.layout.pitches, moved(x.type.dtype)),
        *(float(scale), float(shrink), zero, low),
    )
    args: tuple[Arg, ...] = (In(0), Const(terms), Out(0))
    launch = universal_launch("bytes_softmax", problem.target, args, numbers, (rows,))
    return Variant("universal_bytes_softmax", (launch,))

"""Functions of quantised tensors as numbers: what the kernels of the universal set read in place of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clnn.ops.shared.functions import FUNCTIONS, PostOp
from clnn.records import dataclass

# A type's number is its place. Floats hold every number of those of 8 and 16 bits.
TYPES = ("uchar", "char", "ushort", "short", "int", "float")
_REAL = ("add", "sub", "mul", "div", "min", "max", "relu", "abs", "neg", "clip")
_LIMITS = ("at_least", "at_most")
_BYTES = ("byte_sum", "shifted_byte_sum", "byte_line", "byte_table")
_WRITTEN = ("written_add", "written_sub", "written_mul", "written_div")
# A function's code is its place. `add_moved` adds an operand and a number at once, `round_off` counts from the zero
# point that its operand is, `round_late` has one in parameters and rounds what was moved there before. `as_int` leaves
# what an int does not hold as its least number.
COMPARED = ("equal", "greater", "greater_or_equal", "less", "less_or_equal")
CODES = (
    *(*_REAL, *_LIMITS, *_BYTES, *_WRITTEN, *COMPARED),
    *("byte_product", "add_moved", "round_off", "round_late", "as_int", "not_a_number"),
)
BINARY = frozenset(
    (*("add", "sub", "mul", "div", "min", "max"), *_WRITTEN, *COMPARED),
) | {"byte_sum", "shifted_byte_sum", "byte_product", "add_moved", "round_off"}
PARAMS, OPERANDS = 8, 2  # of a step, and tensors beside the first one that steps read
FEW, MANY = 1, 8  # steps behind sums, and of a walk

Number = int | float


@dataclass(frozen=True)
class Step:
    """One function applied to the running value.

    operand: which of the kernel's operands a binary one reads, -1: its first parameter. swapped: the running value is
    the second one.
    """

    fn: str
    params: tuple[float, ...] = ()
    operand: int = -1
    swapped: bool = False


def encoded(steps: Sequence[Step], most: int) -> tuple[Number, ...] | None:
    """Return the numbers that tell steps, None where a kernel of the set takes no such."""
    if len(steps) > most or any(s.operand >= OPERANDS for s in steps):
        return None
    numbers: list[Number] = [len(steps)]
    for step in steps:
        if step.fn not in CODES or len(step.params) > PARAMS:
            return None
        operand = step.operand if step.fn in BINARY else -2
        given = [*map(float, step.params), *[0.0] * (PARAMS - len(step.params))]
        numbers += [CODES.index(step.fn), operand, int(step.swapped and operand != -2), *given]
    numbers += [0, -2, 0, *[0.0] * PARAMS] * (most - len(steps))
    return tuple(numbers)


def steps_of(post_ops: Sequence[PostOp], places: Mapping[int, int]) -> list[Step] | None:
    """Return post-ops as steps, None where the set has no code for one.

    places: node input -> which of the kernel's operands it is.
    """
    found: list[Step] = []
    for op in post_ops:
        fn = "written_add" if op.fn == "written_sum" else op.fn
        if fn not in CODES:
            return None
        reads = FUNCTIONS[op.fn].binary and op.operand is not None and fn != "byte_table"
        operand = places[op.operand] if reads and op.operand is not None else -1
        found.append(Step(fn, op.params, operand, op.swapped))
    return found

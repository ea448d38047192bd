"""Post-ops as numbers: what the kernels of the universal set read in place of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from clnn.codegen.filters import image
from clnn.layout import TensorLayout
from clnn.ops.launch import In
from clnn.ops.problem import Problem
from clnn.ops.shared.functions import FUNCTIONS, PostOp

# A function's code is its place. Sine, cosine and tangent have texts of their own and are left out.
CODES = tuple(
    fn for fn, about in FUNCTIONS.items() if fn not in ("sin", "cos", "tan") and not about.of_bytes
)
MOST, OPERANDS = 6, 2  # post-ops, and tensors that they read, of one launch

Number = int | float
_NONE: tuple[Number, ...] = (0, -2, 0, 0.0, 0.0)  # a post-op that is not applied
PLAIN: tuple[Number, ...] = (0, *_NONE * MOST)
"""The numbers that tell no post-ops."""


def encoded(post_ops: Sequence[PostOp], places: Mapping[int, int]) -> tuple[Number, ...] | None:
    """Return the numbers that tell post-ops, None where a kernel of the set cannot apply them.

    places: node input -> which of the kernel's operands it is.
    """
    if len(post_ops) > MOST or any(place >= OPERANDS for place in places.values()):
        return None
    numbers: list[Number] = [len(post_ops)]
    for post_op in post_ops:
        if post_op.fn not in CODES or len(post_op.params) > 2:
            return None
        first, second = (*map(float, post_op.params), 0.0, 0.0)[:2]
        binary = FUNCTIONS[post_op.fn].binary
        operand = -2 if not binary else -1 if post_op.operand is None else places[post_op.operand]
        swapped = int(post_op.swapped and binary)
        numbers += [CODES.index(post_op.fn), operand, swapped, first, second]
    numbers += [*_NONE] * (MOST - len(post_ops))
    return tuple(numbers)


def limited(codes: tuple[Number, ...]) -> tuple[float, float, tuple[Number, ...]]:
    """Return what a first post-op limits results to, and the numbers of the others; infinities where it does not."""
    count, code, _, _, *limits = codes[:6]
    rest = (int(count) - 1, *codes[6:], *_NONE)
    if count and CODES[int(code)] == "relu":
        return 0.0, inf, rest
    if count and CODES[int(code)] == "clip":
        return float(limits[0]), float(limits[1]), rest
    return -inf, inf, codes


def is_plain(problem: Problem, *inputs: int) -> bool:
    """Whether these inputs, as far as they are given, and the result lie as float32 in memory."""
    there = [problem.input(k) for k in inputs if problem.has(k)]
    return all(o.memory.cl == "float" and not o.stored for o in (*there, problem.outputs[0]))


def pitches_of(layout: TensorLayout | None) -> tuple[int, ...]:
    """Return the pitches of an image (n, c, y, x); zeros for none."""
    return (0, 0, 0, 0) if layout is None else image(layout).pitches


def operands(
    problem: Problem, post_ops: Sequence[PostOp], layouts: Mapping[int, tuple[int, TensorLayout]]
) -> tuple[tuple[In, ...], tuple[int, ...]] | None:
    """Return the arguments of the operands, input 0 where there are fewer, and their pitches as images.

    None where one does not lie as float32.
    """
    found = ordered_operands(problem, layouts)
    return found and (found[0], tuple(p for layout in found[1] for p in pitches_of(layout)))


def ordered_operands(
    problem: Problem, layouts: Mapping[int, tuple[int, TensorLayout]]
) -> tuple[tuple[In, ...], list[TensorLayout | None]] | None:
    """Return the arguments of the operands, input 0 where there are fewer, and their layouts.

    None where one does not lie as float32.
    """
    if len(layouts) > OPERANDS or not is_plain(problem, *layouts):
        return None
    ordered = sorted(layouts, key=lambda k: layouts[k][0])
    args = (*map(In, ordered), *[In(0)] * (OPERANDS - len(ordered)))
    return args, [*(layouts[k][1] for k in ordered), *[None] * (OPERANDS - len(ordered))]

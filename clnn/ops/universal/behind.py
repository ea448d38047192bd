"""Post-ops that a function of the universal set cannot apply itself: walks over what it wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clnn.ops.launch import In, Launch, Out, Variant
from clnn.ops.problem import Problem
from clnn.ops.shared.elementwise_launch import Walked, walk_launch
from clnn.ops.shared.epilogue import operand_layouts
from clnn.ops.shared.functions import PostOp
from clnn.ops.universal.walk import universal_walks
from clnn.types import F32


def with_walks(
    problem: Problem,
    post_ops: Sequence[PostOp],
    make: Callable[[tuple[PostOp, ...]], Variant | None],
) -> Variant | None:
    """Return what `make` gives for the most post-ops that it takes, and walks for the others.

    None where it takes not even none, or no walk takes the others, or results are no floats.
    """
    out = problem.outputs[0]
    if out.type.dtype != F32 or out.stored or len(problem.outputs) > 1:
        return None
    for count in range(len(post_ops) - 1, -1, -1):
        first = make(tuple(post_ops[:count]))
        if first is None:
            continue
        walks = _walks(problem, post_ops[count:])
        if walks is None:
            return None
        return Variant(f"{first.name}_walked", (*first.launches, *walks), error=first.error)
    return None


def _walks(problem: Problem, post_ops: Sequence[PostOp]) -> tuple[Launch, ...] | None:
    """Return walks over the result, in place."""
    layouts = operand_layouts(problem, post_ops)
    if any(problem.input(k).type.dtype != F32 or problem.input(k).stored for k in layouts):
        return None
    result = Walked(Out(0), problem.outputs[0].layout.unpadded(), F32.cl)
    read = [Walked(In(k), layout, F32.cl) for k, (_, layout) in layouts.items()]
    numbers = {k: 1 + place for k, (place, _) in layouts.items()}
    launch = walk_launch("behind", [result, *read], result, problem.target, post_ops, numbers)
    return universal_walks(launch, problem.target)

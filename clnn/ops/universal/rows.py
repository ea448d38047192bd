"""Softmax, normalisation and reductions of rows as launches of the universal set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

from clnn.layout import TensorLayout
from clnn.ops.launch import Arg, In, Out, Variant
from clnn.ops.problem import Problem
from clnn.ops.shared.epilogue import operand_layouts
from clnn.ops.shared.functions import PostOp
from clnn.ops.universal.functions import universal_launch
from clnn.ops.universal.post_ops import encoded, is_plain, ordered_operands

OUTER, ROW = 3, 3  # axes besides that of lanes, and within a row
TENSORS = ("s", "e0", "e1", "d")  # as the kernel calls them
# What is computed; the first ones give each element of a row, the others one for each row.
MODES = {
    name: number
    for number, name in enumerate(
        (
            *("softmax", "log_softmax", "normalise", "rms"),
            *("sum", "mean", "log_sum", "l1", "sum_square", "l2", "prod", "max", "min"),
            "log_sum_exp",
        )
    )
}


def universal_rows(
    problem: Problem,
    mode: str,
    axes: Sequence[int],
    post_ops: Sequence[PostOp],
    epsilon: float = 0.0,
    seen: Callable[[TensorLayout], TensorLayout] = TensorLayout.unpadded,
    result: Callable[[TensorLayout], TensorLayout] = TensorLayout.unpadded,
) -> Variant | None:
    """Return what is computed over `axes` of input 0 as a launch of the set, None where it has no form there.

    mode: one of MODES. seen: the layout of input 0 as `axes` count; result: of the output and of operands so.
    """
    images = operand_layouts(problem, post_ops)
    codes = encoded(post_ops, {k: place for k, (place, _) in images.items()})
    extra = ordered_operands(problem, images)
    if codes is None or extra is None or not is_plain(problem, 0) or not problem.input(0).type.size:
        return None
    src, dst = seen(problem.input(0).layout), result(problem.outputs[0].layout)
    layouts = [src, *(None if t is None else result(t) for t in extra[1]), dst]
    walked = [
        Walked(src.shape[axis], tuple(0 if t is None else t.pitches[axis] for t in layouts))
        for axis in range(src.rank)
    ]
    outer = merged([walked[a] for a in range(src.rank) if a not in axes])
    inside = merged([walked[a] for a in axes])
    if len(inside) > ROW or len(outer) > OUTER + 1:
        return None
    outer.sort(key=lambda one: (one.pitches[0] == 1, one.extent))
    loops = [*[ONE] * (OUTER + 1 - len(outer)), *outer, *[ONE] * (ROW - len(inside)), *inside]
    numbers: list[int | float] = [MODES[mode], float(epsilon)]
    for one in loops:
        numbers += [one.extent, *one.pitches]
    extents = [one.extent for one in loops[: OUTER + 1]]
    sizes = (-(-extents[OUTER] // problem.target.vector), prod(extents[:OUTER]))
    args: tuple[Arg, ...] = (In(0), *extra[0], Out(0))
    launch = universal_launch("rows", problem.target, args, [*numbers, *codes], sizes)
    return Variant(f"universal_{mode}", (launch,))


class Walked(NamedTuple):
    """An axis: its extent, and its pitch in each of TENSORS."""

    extent: int
    pitches: tuple[int, ...]


ONE = Walked(1, (0,) * len(TENSORS))


def merged(axes: Sequence[Walked]) -> list[Walked]:
    """Return as few axes that walk the same elements, outermost first in the source."""
    found: list[Walked] = []
    for one in sorted(axes, key=lambda one: -abs(one.pitches[0])):
        before = found[-1] if found else ONE
        if one.extent == 1:
            continue
        if found and before.pitches == tuple(p * one.extent for p in one.pitches):
            found[-1] = Walked(before.extent * one.extent, one.pitches)
        else:
            found.append(one)
    return found

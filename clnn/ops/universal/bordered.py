"""Convolutions of the universal set whose input lies without the border that windows reach: it is copied first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

import numpy as np

from clnn.layout import TensorLayout
from clnn.ops.conv.problem import ConvProblem
from clnn.ops.launch import In, Launch, Scratch, Variant
from clnn.ops.problem import Border, Operand, Problem
from clnn.ops.universal.bytes_pick import universal_pick
from clnn.ops.universal.sample import Along, universal_sample
from clnn.types import F32, TensorType


def with_border(
    problem: ConvProblem, make: Callable[[ConvProblem], Variant | None]
) -> Variant | None:
    """Return make(problem), of a copy of the input where that lacks the border.

    The first argument of launches of `make` that read that input is it, at the first element of the first window.
    """
    if problem.has_border:
        return make(problem)
    x = problem.input(0)
    border = problem.window.border(x.type.shape, float(problem.arith.fill))
    whole, inner = _layouts(x.type.shape, border)
    scratch = Scratch("bordered", whole.size * x.type.dtype.itemsize, x.type.dtype.itemsize)
    copy = _copy(problem, border, whole, scratch)
    copied = Operand(x.type, inner, border.fill)
    made = make(replace(problem, inputs=(copied, *problem.inputs[1:])))
    if copy is None or made is None:
        return None
    reading = [
        replace(one, args=(scratch, *one.args[1:])) if isinstance(one.args[0], In) else one
        for one in made.launches
    ]
    return Variant(f"{made.name}_bordered", (copy, *reading), error=made.error)


def _layouts(shape: tuple[int, ...], border: Border) -> tuple[TensorLayout, TensorLayout]:
    """Return an image with its border as a whole, channels innermost, and what lies within the border."""
    pairs = zip(border.before, shape, border.after, strict=True)
    extents = tuple(low + extent + high for low, extent, high in pairs)
    order = (0, *range(2, len(shape)), 1)
    pitches = [
        prod(extents[a] for a in order[order.index(axis) + 1 :]) for axis in range(len(shape))
    ]
    size = prod(extents)
    first = sum(low * pitch for low, pitch in zip(border.before, pitches, strict=True))
    whole = TensorLayout.of_pitches(extents, pitches, 0, size)
    inner = TensorLayout(shape, tuple(pitches), border.before, border.after, first, size)
    return whole, inner


def _copy(problem: ConvProblem, border: Border, whole: TensorLayout, to: Scratch) -> Launch | None:
    x = problem.input(0)
    out = Operand(TensorType(whole.shape, x.type.dtype), whole)
    along = {
        axis: Along.of_index(_indices(extent, border.before[axis], border.after[axis]))
        for axis, extent in enumerate(x.type.shape)
        if border.before[axis] or border.after[axis]
    }
    node, fill = Problem((x,), (out,), problem.target), float(border.fill or 0.0)
    made = (
        universal_sample(node, along, fill, ())
        if x.type.dtype == F32
        else universal_pick(node, along, fill)
    )
    if made is None:
        return None
    (launch,) = made.launches
    return replace(launch, args=(*launch.args[:-1], to))


def _indices(extent: int, before: int, after: int) -> np.ndarray:
    """Return the elements of an axis with those before and behind it, which are none."""
    none = np.full(before + after, -1)
    return np.concatenate([none[:before], np.arange(extent), none[before:]])

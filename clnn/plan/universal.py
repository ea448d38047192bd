"""Which nodes the universal set computes, and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from clnn.arith.quantised import QuantisedAverage
from clnn.codegen.filters import image
from clnn.graph.ir import Node
from clnn.ops.conv.spec import Conv2d
from clnn.ops.conv.transpose import ConvTranspose
from clnn.ops.elementwise.cast import Cast
from clnn.ops.elementwise.fixed_map import FixedMap
from clnn.ops.elementwise.logic import Logic
from clnn.ops.gemm.spec import Gemm
from clnn.ops.launch import EMPTY, Launch, Variant
from clnn.ops.movement.gather import Gather
from clnn.ops.movement.pad import Pad
from clnn.ops.pool.spec import Pool
from clnn.ops.problem import Problem
from clnn.ops.quantised.softmax import SHRINK, ByteSoftmax
from clnn.ops.resize.spec import Resize
from clnn.ops.rows.norm import Normalise
from clnn.ops.rows.reduce import Reduce
from clnn.ops.rows.rows import with_row_axes
from clnn.ops.rows.softmax import Softmax
from clnn.ops.spec import OpSpec
from clnn.ops.universal import fill, walk
from clnn.ops.universal.behind import with_walks
from clnn.ops.universal.byte_taps import universal_byte_taps
from clnn.ops.universal.bytes_conv import universal_byte_conv
from clnn.ops.universal.bytes_pick import universal_pick
from clnn.ops.universal.bytes_product import universal_byte_product
from clnn.ops.universal.bytes_sample import universal_byte_sample
from clnn.ops.universal.bytes_softmax import universal_byte_softmax
from clnn.ops.universal.bytes_walk import (
    universal_byte_walk,
    universal_cast,
    universal_gather,
    universal_logic,
)
from clnn.ops.universal.bytes_window import universal_byte_window
from clnn.ops.universal.conv import universal_conv
from clnn.ops.universal.product import universal_product
from clnn.ops.universal.rows import MODES as ROW_MODES
from clnn.ops.universal.rows import universal_rows
from clnn.ops.universal.sample import Along, universal_sample
from clnn.ops.universal.transpose import universal_transpose
from clnn.ops.universal.window import MODES, WindowSize, universal_window
from clnn.plan.schedule import Instead
from clnn.target import Target
from clnn.types import I8, U8

IMAGES = (3, 4)  # axes of an image


def universal_kernels(target: Target) -> Instead:
    """Return the kernels of the universal set, for plans of a target."""

    def variant(node: Node, problem: Problem) -> Variant | None:
        if not problem.outputs[0].type.size:
            return EMPTY
        return universal_variant(node.spec, problem)

    def filled(launch: Launch) -> Launch | None:
        return universal_form(launch, target)

    return Instead(variant, filled)


def universal_variant(spec: OpSpec, problem: Problem) -> Variant | None:
    """Return a node as launches of the universal set, None where it has no form there.

    The first output has elements.
    """
    if found := _alone(spec, problem):
        return found
    if type(spec) in _FORMS and (found := _with_walks(spec, problem)):
        return found
    usual = spec.variants(problem)[-1 if isinstance(spec, FixedMap) else 0]  # which walks
    launches: list[Launch] = []
    for launch in usual.launches:
        made = _one_form(launch, problem.target)
        if made is None and launch.template == walk.TEMPLATE:
            made = walk.universal_walks(launch, problem.target)
        if made is None:
            return None
        launches += made
    return Variant(f"universal_{usual.name}", tuple(launches))


def _alone(spec: OpSpec, problem: Problem) -> Variant | None:
    """Return a node in its own form of the set, None where there is none."""
    for kind, node_form in _FORMS.items():
        if isinstance(spec, kind) and (found := node_form(spec, problem)):
            return found
    return None


def _with_walks(spec: Any, problem: Problem) -> Variant | None:
    """Return a node in its own form for as many of its post-ops as that takes, None where there is none."""
    ops = getattr(spec, "post_ops", ())
    return with_walks(problem, ops, lambda some: _alone(replace(spec, post_ops=some), problem))


def universal_form(launch: Launch, target: Target) -> Launch | None:
    """Return a launch as one of the universal set, None where it has no form there."""
    if launch.template == walk.TEMPLATE:
        return walk.universal_walk(launch, target) or universal_byte_walk(launch, target)
    if launch.template == fill.TEMPLATE:
        return fill.universal_fill(launch, target)
    return None


def _one_form(launch: Launch, target: Target) -> tuple[Launch, ...] | None:
    found = universal_form(launch, target)
    return None if found is None else (found,)


def _pool(spec: Pool, problem: Problem) -> Variant | None:
    x = problem.input(0).type
    if spec.mode not in MODES or spec.indices or x.rank not in IMAGES:
        return None
    if not isinstance(spec.rule, QuantisedAverage | None) or spec.order not in ("", "rows"):
        return None
    counted = None
    if spec.count_pad and spec.mode == "average":
        after = (0, *spec.window.counted_after(x.shape[2:]))[-2:]
        extents = (1, *x.shape[2:])[-2:]
        counted = (extents[0] + after[0], extents[1] + after[1])
    window = WindowSize(**spec.window.pairs(), counted=counted)
    if x.dtype in (I8, U8):
        return universal_byte_window(problem, window, spec.rule, spec.post_ops)
    return universal_window(problem, spec.mode, window, spec.post_ops)


def _image_reduction(spec: Reduce, problem: Problem) -> Variant | None:
    """Return the mean or maximum of each channel of an image, None for all other reductions."""
    rank = problem.input(0).type.rank
    whole = spec.axes == tuple(range(2, rank)) and spec.keepdims
    if spec.fn not in MODES or not whole or rank not in IMAGES:
        return None
    height, width = image(problem.input(0).layout).shape[2:]
    return universal_window(problem, spec.fn, WindowSize((height, width)), spec.post_ops)


def _reduction(spec: Reduce, problem: Problem) -> Variant | None:
    """Return a reduction as the window of a whole image, or of rows."""
    if found := _image_reduction(spec, problem):
        return found
    shape = problem.input(0).type.shape
    result = partial(with_row_axes, axes=spec.axes, shape=shape)
    if spec.fn not in ROW_MODES:
        return None
    return universal_rows(problem, spec.fn, spec.axes, spec.post_ops, result=result)


def _softmax(spec: Softmax, problem: Problem) -> Variant | None:
    mode = "log_softmax" if spec.log else "softmax"
    return universal_rows(problem, mode, spec.axes, spec.post_ops)


def _norm(spec: Normalise, problem: Problem) -> Variant | None:
    mode, axes = "normalise" if spec.centre else "rms", spec.row_axes
    return universal_rows(
        problem, mode, axes, spec.post_ops, spec.epsilon, spec.as_rows, spec.as_rows
    )


def _resize(spec: Resize, problem: Problem) -> Variant | None:
    how, kind = spec.sampling, problem.input(0).type
    found = spec.taps(kind.shape, kind.dtype.is_float)
    along = {axis: Along.of_taps(t.index, t.weight, t.outside) for axis, t in found.items()}
    if not kind.dtype.is_float:
        if spec.post_ops:
            return None
        picked = universal_pick(problem, along, how.extrapolation)
        summed = not picked and not how.antialias
        return (
            universal_byte_sample(problem, along, how.extrapolation, how.bits) if summed else picked
        )
    return universal_sample(problem, along, how.extrapolation, spec.post_ops)


def _pad(spec: Pad, problem: Problem) -> Variant | None:
    along = {
        axis: Along.of_index(index)
        for axis, index in spec.indices_of(problem.input(0).type.shape).items()
    }
    return universal_pick(problem, along, spec.value) or universal_sample(
        problem, along, spec.value, ()
    )


def _transpose(spec: ConvTranspose, problem: Problem) -> Variant | None:
    sums = spec.problem(problem)
    return universal_transpose(sums) or universal_byte_taps(sums)


def _byte_softmax(spec: ByteSoftmax, problem: Problem) -> Variant:
    terms = partial(spec.exponentials, problem.input(0).type.shape[1])
    return universal_byte_softmax(problem, terms, spec.scale * SHRINK, SHRINK, spec.zero)


def _product(spec: Gemm, problem: Problem) -> Variant | None:
    sums = spec.problem(problem)
    return universal_product(sums) or universal_byte_product(sums)


def _conv(spec: Conv2d, problem: Problem) -> Variant | None:
    sums = spec.problem(problem)
    return universal_conv(sums) or universal_byte_conv(sums)


_FORMS: dict[type[OpSpec], Callable[[Any, Problem], Variant | None]] = {
    Conv2d: _conv,
    Gemm: _product,
    ConvTranspose: _transpose,
    Pool: _pool,
    Reduce: _reduction,
    Softmax: _softmax,
    Normalise: _norm,
    Resize: _resize,
    Pad: _pad,
    ByteSoftmax: _byte_softmax,
    Cast: lambda spec, problem: universal_cast(problem, spec.dtype),
    Logic: lambda spec, problem: universal_logic(problem, spec.fn),
    Gather: lambda spec, problem: universal_gather(problem, spec.axis),
}

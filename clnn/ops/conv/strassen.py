"""Convolutions of 1x1 as products of pixels with weights by Strassen's algorithm, on CPUs."""

from __future__ import annotations

from collections.abc import Iterator

from clnn.arith._base import FLOAT
from clnn.layout import TensorLayout
from clnn.ops.conv.problem import ConvProblem, innermost
from clnn.ops.launch import Arg, In, Out, Variant
from clnn.ops.shared import strassen
from clnn.ops.shared.cycles import cold_cycles
from clnn.ops.shared.epilogue import operand_args
from clnn.ops.shared.loops import Loops
from clnn.ops.shared.strassen import RowsProduct, StrassenPlan
from clnn.types import F32, Array

PIXEL_AXES = (0, 2, 3)  # images, rows, columns


def variants(problem: ConvProblem) -> Iterator[Variant]:
    """Yield the kernels of a window of one place, of any strides, in float32."""
    if _takes(problem):
        rows = _rows(problem)
        for plan in strassen.plans(rows.m, rows.n, rows.k, problem.target):
            yield _variant(problem, rows, plan)


def _takes(problem: ConvProblem) -> bool:
    window = problem.window
    point = {*window.kernel} == {1} and not any((*window.before, *window.after))
    if not point or problem.group != 1 or problem.arith is not FLOAT:
        return False
    columns = [int(not innermost(t)) + 1 for t in (problem.src, problem.dst)]
    columns += [_column(layout) for _, layout in problem.operands.values()]
    extents = [problem.dst.shape[axis] for axis in PIXEL_AXES] + [problem.oc]
    if not strassen.fits(problem.target, extents, problem.ic, columns):
        return False
    inputs = (problem.input(k) for k in (0, problem.weights_input, *problem.operands))
    floats = all(operand.memory == F32 for operand in (problem.outputs[0], *inputs))
    return floats and strassen.fits_constant(problem.input(problem.weights_input).largest)


def _column(layout: TensorLayout) -> int:
    return layout.pitches[1] if layout.shape[1] != 1 else 0


def _rows(problem: ConvProblem) -> RowsProduct:
    """Return the product of pixels with weights, rows being pixels of all images."""
    operands, steps = problem.operands, (1, *problem.geometry["strides"])
    reads = [problem.src.pitches[axis] * s for axis, s in zip(PIXEL_AXES, steps, strict=True)]
    others = [problem.dst, *(layout for _, layout in operands.values())]
    writes = (tuple(layout.pitches[axis] for axis in PIXEL_AXES) for layout in others)
    extents = tuple(int(problem.dst.shape[axis]) for axis in PIXEL_AXES)
    extras = {which: (place, _column(layout)) for which, (place, layout) in operands.items()}
    return RowsProduct(
        Loops(extents, (tuple(reads), *writes)),
        int(problem.oc),
        int(problem.ic),
        extras,
        {},
        problem.post_ops,
        problem.target,
    )


def _variant(problem: ConvProblem, rows: RowsProduct, plan: StrassenPlan) -> Variant:
    name, weights = problem.label("strassen", strassen.label(plan)), problem.weights

    def b() -> Array:
        return weights.reshape(rows.n, rows.k).T

    args: tuple[Arg, ...] = (In(0), *operand_args(problem, problem.post_ops), Out(0))
    launch = strassen.launch(rows, plan, name, args, (b, problem.bias))
    weights_bytes = problem.input(problem.weights_input).type.nbytes
    cold = cold_cycles(weights_bytes + plan.more_bytes(rows.k, rows.n), problem.target)
    return Variant(name, (launch,), plan.cycles + cold, strassen.ERROR)

"""Products of rows with a constant matrix by Strassen's algorithm, on CPUs."""

from __future__ import annotations

from collections.abc import Iterator

from clnn.ops.gemm.problem import GemmProblem
from clnn.ops.launch import Arg, In, Out, Variant
from clnn.ops.shared import strassen
from clnn.ops.shared.cycles import cold_cycles
from clnn.ops.shared.loops import Loops
from clnn.ops.shared.strassen import RowsProduct, StrassenPlan
from clnn.traced import is_open
from clnn.types import F32, Array


def strassen_variants(problem: GemmProblem) -> Iterator[Variant]:
    """Yield the kernels for one constant matrix that all rows share, in float32."""
    problem = problem.for_packing()
    if _takes(problem):
        rows = _rows(problem)
        for plan in strassen.plans(rows.m, rows.n, rows.k, problem.target):
            yield _variant(problem, rows, plan)


def _takes(problem: GemmProblem) -> bool:
    product = problem.product
    columns = [
        product.a[1],
        product.dst[1],
        *(column for _, (_, column) in product.extras.values()),
    ]
    extents = product.m, product.n, *product.batch.extents
    if not problem.b_is_const or not strassen.fits(problem.target, extents, product.k, columns):
        return False
    operands = [problem.a, problem.b, problem.dst, *map(problem.node.input, product.extras)]
    shared = not any(is_open(p) or p for p in _steps(product.batch)[1])
    floats = all(operand.memory == F32 for operand in operands)
    return shared and floats and strassen.fits_constant(problem.b.largest)


def _steps(batch: Loops) -> tuple[tuple[int, ...], ...]:
    """Return the pitches of the loops over a batch, 0 where there is one turn."""
    return tuple(
        tuple(p if extent > 1 else 0 for p, extent in zip(pitches, batch.extents, strict=True))
        for pitches in batch.pitches
    )


def _rows(problem: GemmProblem) -> RowsProduct:
    """Return the product with the matrices' rows as rows of one."""
    product = problem.product
    a, _, *ends = _steps(product.batch)
    of_rows = [product.a[0], product.dst[0], *(row for _, (row, _) in product.extras.values())]
    pitches = tuple((*batch, row) for batch, row in zip((a, *ends), of_rows, strict=True))
    extras = {which: (place, column) for which, (place, (_, column)) in product.extras.items()}
    return RowsProduct(
        Loops((*product.batch.extents, product.m), pitches),
        int(product.n),
        int(product.k),
        extras,
        problem.scales,
        problem.post_ops,
        problem.target,
    )


def _variant(problem: GemmProblem, rows: RowsProduct, plan: StrassenPlan) -> Variant:
    name, matrices = f"gemm_strassen_f32_{strassen.label(plan)}", problem.b_matrices()
    args: tuple[Arg, ...] = (
        In(problem.views.inputs[0]),
        *(In(k) for k in problem.views.extras),
        Out(0),
    )

    def b() -> Array:
        return matrices().reshape(rows.k, rows.n)

    launch = strassen.launch(rows, plan, name, args, (b, None))
    more = cold_cycles(plan.more_bytes(rows.k, rows.n), problem.target)
    return Variant(name, (launch,), plan.cycles + more, strassen.ERROR)

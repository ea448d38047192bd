"""The kernel families of matrix products, and what they offer for a problem.

    packed      register tiles over panels of b, packed once (a constant) or in each run
    direct      register tiles over columns of b where they lie
    few_rows    dot products of rows and columns that both lie along k
    strassen    seven products of blocks for eight, on CPUs, where b is a constant
    amx         tiles of registers for pairs of bfloat16, where x86 has them
    mma         tiles on tensor cores, of operands whose rows lie in pieces of 16 bytes
    workgroup   tiles of work-groups that share chunks of operands in local memory, on GPUs
    reference   one work-item per result: any layout and element type

Each family takes a problem in the node's own orientation and yields its variants best first, none
where the problem does not fit. Costs can be compared between families.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

from clnn.ops.gemm.amx import amx_variants
from clnn.ops.gemm.few_rows import few_rows_variants
from clnn.ops.gemm.mma import mma_variants
from clnn.ops.gemm.problem import GemmProblem
from clnn.ops.gemm.reference import reference_variant
from clnn.ops.gemm.strassen import strassen_variants
from clnn.ops.gemm.tiled import (
    direct_variants,
    is_best_direct,
    packed_variants,
    register_tile_cost,
)
from clnn.ops.gemm.workgroup import workgroup_variants
from clnn.ops.launch import Variant, by_cost

Family = Callable[[GemmProblem], Iterator[Variant]]

FAMILIES: tuple[Family, ...] = (
    packed_variants,
    direct_variants,
    few_rows_variants,
    strassen_variants,
    amx_variants,
    mma_variants,
    workgroup_variants,
)
FEW_ROWS = 4  # rows up to which dot products are taken before b is packed for the sake of them


def variants(problem: GemmProblem) -> list[Variant]:
    """Return the best of each family, the one to take unmeasured first, and the reference."""
    reference = reference_variant(problem)
    if not problem.fits_fast:
        return [reference]
    problem = problem.folded()
    best = {family: v for family in FAMILIES if (v := next(family(problem), None)) is not None}
    register_tiles = [best.pop(family) for family in _register_tiles(problem, best)]
    shared = by_cost([*best.values()])
    if shared and shared[0].cost < register_tile_cost(problem):
        return [*shared, *register_tiles, reference]
    return [*register_tiles, *shared, reference]


def candidates(problem: GemmProblem) -> list[Variant]:
    """Return all that the families offer, by rising cost, or the reference alone."""
    if not problem.fits_fast:
        return variants(problem)
    problem = problem.folded()
    return by_cost([variant for family in FAMILIES for variant in family(problem)])


def _register_tiles(problem: GemmProblem, best: Container[Family]) -> list[Family]:
    """Return those of the families of register tiles that are there, the one to take first.

    Their costs do not tell: they count neither what misses a cache nor how fast memory is.
    """
    order: list[Family] = [packed_variants, direct_variants, few_rows_variants]
    if direct_variants in best and is_best_direct(problem):
        order = [direct_variants, packed_variants, few_rows_variants]
    elif few_rows_variants in best and problem.oriented().m <= FEW_ROWS:
        order = [few_rows_variants, packed_variants, direct_variants]
    return [family for family in order if family in best]

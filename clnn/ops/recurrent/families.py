"""Which families of kernels recurrent layers have, in the order in which they are offered."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from clnn.ops.launch import Variant, by_cost
from clnn.ops.recurrent.group import group_variants
from clnn.ops.recurrent.once import once_variants
from clnn.ops.recurrent.problem import RecurrentProblem
from clnn.ops.recurrent.reference import reference_variant
from clnn.ops.recurrent.steps import steps_variants

FAMILIES: tuple[Callable[[RecurrentProblem], Iterable[Variant]], ...] = (
    steps_variants,
    group_variants,
)


def variants(problem: RecurrentProblem) -> list[Variant]:
    """Return the best kernel of each family that fits, and the reference kernel.

    Those for layers of one step come first: their work-items need not wait for each other.
    """
    first = [v for family in FAMILIES for v in islice(family(problem), 1)]
    return [*islice(once_variants(problem), 1), *by_cost(first), reference_variant(problem)]


def candidates(problem: RecurrentProblem) -> list[Variant]:
    """Return all kernels that are worth a measurement, by rising cost."""
    found = [v for family in (once_variants, *FAMILIES) for v in family(problem)]
    return by_cost(found) or [reference_variant(problem)]

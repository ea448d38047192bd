"""Dot products of rows and columns that both lie along k: what few rows are bound by is reading b.

On GPUs neighbouring work-items read neighbouring terms of a column, so that b is read at the speed
of memory however few rows share it.
"""

from __future__ import annotations

from collections.abc import Iterator

from clnn.ops.gemm.problem import GemmProblem
from clnn.ops.launch import Launch, Variant, grid
from clnn.ops.shared.workgroup_tiles import UNSHARED
from clnn.traced import is_open

MAX_MEMBERS = 16  # work-items that share a column
COLUMN_TILES = (8, 4)  # tiles of columns in a work-group


def few_rows_variants(problem: GemmProblem) -> Iterator[Variant]:
    """Yield the one kernel, where both operands lie along k and b is no constant to be packed.

    It is made for so many rows and columns, so none for open extents.
    """
    problem = problem.oriented()
    if problem.b_is_const or not problem.lies_along_k or is_open(problem.m) or is_open(problem.n):
        return
    target, vw = problem.target, problem.target.vector
    mr = min(problem.m, 4)
    members, nr = 1, min(problem.n, 8 if mr == 1 else 16 // mr)
    if not target.is_cpu:
        members = _members(problem)
        nr = min(problem.n, max(1, min(members, 8) // mr))
    size, local = _sizes(problem, mr, nr, members)
    name = f"gemm_dot_f32_t{mr}x{nr}_v{vw}" + f"_g{members}" * (members > 1)
    params = problem.params() | {
        "name": name,
        "b": problem.product.b,
        "mr": mr,
        "nr": nr,
        "vw": vw,
        "members": members,
        "wg": local,
        "types": problem.types(problem.b_arg),
    }
    launch = Launch("gemm/few_rows.cl.mako", params, problem.args(problem.b_arg), size, local)
    yield Variant(name, (launch,), _cycles(problem, mr, nr, members))


def _members(problem: GemmProblem) -> int:
    """Return how many work-items share a column: so many that each has a vector of it."""
    most = min(MAX_MEMBERS, problem.target.max_work_group, problem.k // problem.target.vector)
    members = 1
    while members * 2 <= most:
        members *= 2
    return members


def _sizes(
    problem: GemmProblem, mr: int, nr: int, members: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (global, local) work sizes: groups as large as leave two for each compute unit."""
    target, (rows, tiles) = problem.target, problem.tiles(mr, nr)
    if members == 1:
        return grid(target, tiles, rows, problem.matrices)
    every = tiles * rows * problem.matrices
    enough = (c for c in COLUMN_TILES if every // c >= 2 * target.compute_units)
    columns = min(next(enough, COLUMN_TILES[-1]), target.max_work_group // members)
    across = -(-tiles // columns) * columns
    return (members, across, rows * problem.matrices), (members, columns, 1)


def _cycles(problem: GemmProblem, mr: int, nr: int, members: int) -> float:
    """Return the estimated cycles, as those of register tiles are counted."""
    target, (rows, tiles) = problem.target, problem.tiles(mr, nr)
    slots = max(mr * nr, mr + nr + 1) + 3
    # Lanes and members are added in the end.
    item = problem.k / target.vector * slots + mr * nr * (target.vector + members)
    cycles = tiles * rows * problem.matrices * item / (2 * target.compute_units)
    return cycles if target.is_cpu else cycles * min(UNSHARED, rows)

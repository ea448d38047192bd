"""Products of two computed matrices of integers as launches of the universal set."""

from __future__ import annotations

from clnn.ops.gemm.problem import GemmProblem
from clnn.ops.launch import In, Out, Variant
from clnn.ops.universal.functions import of_bytes, tile_of, universal_launch
from clnn.types import I32

INNER = 2  # axes of a batch that a launch walks


def universal_byte_product(whole: GemmProblem) -> Variant | None:
    """Return a product of int32 as a launch of the set, None where it has no form there."""
    problem, types = whole.folded(), [x.type.dtype for x in (whole.a, whole.b, whole.dst)]
    loops, product = problem.product.batch, problem.product
    axes = [k for k, extent in enumerate(loops.extents) if extent > 1]
    if {*types} != {I32} or problem.post_ops or len(axes) > INNER or not whole.k:
        return None
    groups, matrices = ([loops.extents[k] for k in axes[::-1]] + [1, 1])[:INNER]
    batch = [([p[k] for k in axes[::-1]] + [0, 0])[:INNER] for p in loops.pitches]
    places = zip((product.a, product.b, product.dst), batch, strict=False)
    numbers = (
        *(problem.m, problem.n, problem.k, groups),
        *(pitch for pair in places for pitches in pair for pitch in pitches),
    )
    target = of_bytes(problem.target)
    high, wide = tile_of(target)[0], target.vector
    sizes = (-(-problem.m // high), -(-problem.n // wide), groups * matrices)
    args = (In(problem.views.inputs[0]), In(problem.views.inputs[1]), Out(0))
    launch = universal_launch("bytes_product", target, args, numbers, sizes)
    return Variant("universal_bytes_product", (launch,))

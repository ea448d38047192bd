"""Matrix products by work-groups that share chunks of both operands in local memory, for GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from clnn.ops.gemm.problem import GemmProblem
from clnn.ops.launch import Arg, In, Launch, Out, Scratch, Variant
from clnn.ops.shared.epilogue import heavy
from clnn.ops.shared.loops import Loops
from clnn.ops.shared.matrices import Panels, Pitches
from clnn.ops.shared.workgroup_tiles import (
    Fetch,
    GroupTile,
    SplitK,
    group_tiles,
    left,
    right,
    sum_slices,
    widest,
)
from clnn.types import F32, Array

SWAPPED_ORDER_COST = 1.02  # cost of walking first along the shorter side of the result


def workgroup_variants(problem: GemmProblem) -> Iterator[Variant]:
    """Yield the kernels that are worth a measurement, best first: none on CPUs."""
    if problem.target.is_cpu:
        return
    problem = problem.for_packing()
    splits = group_tiles(problem.shape, problem.target)
    suited = problem.n <= problem.m
    for split in splits:
        yield _variant(problem, split, suited, split.cost)
    for split in splits[:2]:
        yield _variant(problem, split, not suited, split.cost * SWAPPED_ORDER_COST)


def _variant(problem: GemmProblem, split: SplitK, channels_fastest: bool, cost: float) -> Variant:
    """Return the kernel of one tile; channels_fastest: neighbours take blocks of columns, not of rows."""
    tile, slices, packed = split.tile, split.slices, problem.b_is_const
    problem = problem.with_packed_b(_panels(problem, tile)) if packed else problem
    b: Arg = problem.b_arg
    if packed:
        matrices = problem.b_matrices()
        b = problem.b.packed(lambda: pack(matrices(), tile))
    fetches = _fetches(problem, tile)
    order, how = "blocks" if channels_fastest else "rows", "packed" if packed else "direct"
    marks = "".join(f"{f.along[0]}{f.vw}" for f in fetches.values())
    rows, blocks = problem.tiles(tile.bm, tile.bn)
    counts = (blocks, rows) if channels_fastest else (rows, blocks)
    sizes = (counts[0] * tile.threads, counts[1], problem.matrices * slices)
    params = problem.params() | {
        "name": f"gemm_workgroup_f32_{how}_{marks}_{split.label}_{order}",
        "tile": tile,
        "b": None if packed else problem.product.b,
        "b_moves": not packed,
        "types": problem.types(b),
        "fetches": fetches,
        "matrices": problem.matrices,
        "aligned": _aligned(problem, tile.vc),
        "k_slices": slices,
        "loop_epilogue": heavy(problem.post_ops),
        "channels_fastest": channels_fastest,
        "wg": (tile.threads, 1, 1),
    }
    if slices > 1:
        launches = _in_slices(problem, params, b, sizes)
    else:
        args = problem.args(b)
        launches = (Launch("gemm/workgroup.cl.mako", params, args, sizes, params["wg"]),)
    return Variant(str(params["name"]), launches, cost)


def _panels(problem: GemmProblem, tile: GroupTile) -> Panels:
    """Return how b lies packed: blocks of whole chunks."""
    blocks, chunks = problem.tiles(1, tile.bn)[1], -(-problem.k // tile.bk)
    return Panels(tile.bn, tile.bn, 0, blocks * chunks * tile.bk * tile.bn)


def pack(b: Array, tile: GroupTile) -> Array:
    """Return matrices (..., k, n) as [...][blocks][chunks * bk][bn], zeros beyond k and n."""
    *outer, k, n = b.shape
    terms, blocks = -(-k // tile.bk) * tile.bk, -(-n // tile.bn)
    full = np.zeros((*outer, terms, blocks * tile.bn), np.float32)
    full[..., :k, :n] = b
    split = full.reshape(*outer, terms, blocks, tile.bn)
    return np.ascontiguousarray(np.moveaxis(split, -2, -3))


def _in_slices(
    problem: GemmProblem, params: dict[str, Any], b: Arg, sizes: tuple[int, ...]
) -> tuple[Launch, ...]:
    """Return the product that leaves the sums of each slice in scratch memory, and what adds them."""
    product, vc = problem.product, params["tile"].vc
    outer, results = product.batch.extents, problem.matrices * problem.m * problem.n
    scratch = Scratch("parts", params["k_slices"] * results * F32.itemsize)
    pitches = (*product.batch.pitches[:2], (0,) * len(outer))
    plain = params | {
        "extras": {},
        "post_ops": (),
        "scales": {},
        "types": (*params["types"][:2], F32.cl),
        "dst": (product.n, 1),
        "loop_epilogue": False,
        "batch": Loops(outer, pitches),
        "aligned": () if product.n % vc else (-1,),
    }
    args: tuple[Arg, ...] = (In(problem.views.inputs[0]), b, scratch)
    first = Launch("gemm/workgroup.cl.mako", plain, args, sizes, params["wg"])
    ends = [product.dst, *(pitch for _, pitch in product.extras.values())]
    operands = [
        ((*batch, row), column)
        for batch, (row, column) in zip(product.batch.pitches[2:], ends, strict=True)
    ]
    rest = {
        "k_slices": params["k_slices"],
        "operands": operands,
        "has_bias": False,
        "extras": {which: place for which, (place, _) in product.extras.items()},
        "post_ops": problem.post_ops,
        "scales": problem.scales,
        "types": (problem.dst.ctype, dict.fromkeys(range(len(product.extras)), problem.dst.ctype)),
    }
    args = (*(In(k) for k in problem.views.extras), Out(0))
    return first, sum_slices(problem.target, scratch, args, (*outer, product.m), product.n, rest)


def _fetches(problem: GemmProblem, tile: GroupTile) -> dict[str, Fetch]:
    """Return how chunks of both operands are read."""
    product, (moves_a, moves_b, *_) = problem.product, problem.batch_pitches()
    a = _reads(tile.bm, product.m, product.k, product.a, (problem.a.layout.offset, *moves_a))
    if problem.b_is_const:
        return {"a": left(tile, *a), "b": right(tile, "rows", 4)}
    columns = (product.b[1], product.b[0])
    b = _reads(tile.bn, product.n, product.k, columns, (problem.b.layout.offset, *moves_b))
    return {"a": left(tile, *a), "b": right(tile, *b)}


def _reads(
    tile: int, rows: int, terms: int, pitches: Pitches, starts: Sequence[int]
) -> tuple[str, int]:
    """Return the axis along which an operand is read, and how many neighbours at once.

    pitches: of the rows and of the terms. starts: offsets that a vector's address is made of.
    """
    outer, inner = pitches
    if inner == 1:
        return "terms", widest([outer, terms, *starts])
    if outer != 1:
        return "terms", 1
    if rows < tile:  # rows beyond the last are read one by one
        return "rows", 1
    return "rows", widest([inner, *starts, rows if rows % tile else 0])


def _aligned(problem: GemmProblem, vc: int) -> tuple[int, ...]:
    """Return the operands, by number and -1 for dst, whose vectors of columns are aligned."""
    product = problem.product
    ends = [(-1, product.dst, problem.dst.layout.offset)]
    ends += [
        (place, pitches, problem.node.input(which).layout.offset)
        for which, (place, pitches) in product.extras.items()
    ]
    return tuple(
        number
        for (number, (row, column), start), batch in zip(
            ends, problem.batch_pitches()[2:], strict=True
        )
        if column == 1 and not any(x % vc for x in (product.n, row, start, *batch))
    )

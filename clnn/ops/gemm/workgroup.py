"""Matrix products by work-groups that share slices of both operands in local memory, for GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from clnn.ops.gemm.mma import mma_variants
from clnn.ops.launch import Arg, Const, In, Launch, Out, Scratch, Variant, by_cost
from clnn.ops.shared.epilogue import heavy
from clnn.ops.shared.loops import Loops
from clnn.ops.shared.matrices import Panels, Pitches, Product, packed_view, product
from clnn.ops.shared.workgroup_tiles import (
    UNSHARED,
    Fetch,
    GemmShape,
    GroupTile,
    Split,
    group_tiles,
    left,
    right,
    sum_parts,
    widest,
)
from clnn.target import Target
from clnn.types import Array

if TYPE_CHECKING:
    from clnn.ops.gemm.spec import _Job

SWAPPED_ORDER_COST = 1.02  # cost of walking first along the shorter side of the result


def unshared(found: Product, items: int, tiles: int, parts: int, target: Target) -> float:
    """Return the factor on the cost of register tiles that GPUs make.

    Each of the `tiles` of rows fetches b anew, as far as caches bear it; sums in `parts` keep more
    units busy than `items` work-items would.
    """
    idle = max(1.0, target.compute_units * 64 / (items * found.matrices))
    return min(UNSHARED, tiles) / min(parts, idle)


def shared_variants(plain: _Job, job: _Job) -> list[Variant]:
    """Return the kernels whose work-groups share operands, best first.

    On CPUs, and of 16 bits, these are the ones of tensor cores. plain: the job in the node's own
    orientation.
    """
    found = mma_variants(plain)
    if job.target.is_cpu or any(o.stored for o in job.problem.inputs if o is not None):
        return found
    turned = plain if job.b_const is None and plain.b_const is not None else job
    return by_cost([*found, *group_variants(turned)])


def group_variants(job: _Job) -> list[Variant]:
    """Return the kernels that are worth a measurement, best first."""
    views = job.views
    sums = GemmShape(views.m, views.n, views.k, product(views).matrices)
    splits = group_tiles(sums, job.target)
    first = views.n <= views.m
    made = [group_variant(job, split, first) for split in splits]
    return made + [group_variant(job, split, not first, SWAPPED_ORDER_COST) for split in splits[:2]]


def group_variant(job: _Job, split: Split, first: bool, factor: float = 1.0) -> Variant:
    """Return the kernel of one tile; first: blocks of columns are neighbours, not tiles of rows."""
    tile, parts, b = split.tile, split.parts, job.b_const
    found = _packed(job, tile) if b is not None else product(job.views)
    fetches = _fetches(job, found, tile)
    order, how = "blocks" if first else "rows", "packed" if b is not None else "direct"
    marks = "".join(f"{f.along[0]}{f.vw}" for f in fetches.values())
    counts = (-(-found.n // tile.bn), -(-found.m // tile.bm))[:: 1 if first else -1]
    sizes = (counts[0] * tile.threads, counts[1], found.matrices * parts)
    params = job.params(found) | {
        "name": f"gemm_workgroup_f32_{how}_{marks}_{split.label}_{order}",
        "tile": tile,
        "b": found.b if b is None else None,
        "b_moves": b is None,
        "fetches": fetches,
        "matrices": found.matrices,
        "aligned": _aligned(job, found, tile.vc),
        "parts": parts,
        "loop_epilogue": heavy(job.post_ops),
        "channels_fastest": first,
        "wg": (tile.threads, 1, 1),
    }
    right_arg: Arg = In(job.views.inputs[1])
    if b is not None:
        right_arg = Const(lambda: pack(b, tile))
    if parts > 1:
        launches = _in_parts(job, found, params, right_arg, sizes)
    else:
        args = job.args(right_arg)
        launches = (Launch("gemm/workgroup.cl.mako", params, args, sizes, params["wg"]),)
    return Variant(str(params["name"]), launches, split.cost * factor)


def _packed(job: _Job, tile: GroupTile) -> Product:
    """Return the product whose b is packed for a tile."""
    views = job.views
    size = -(-views.n // tile.bn) * -(-views.k // tile.bk) * tile.bk * tile.bn
    return product(replace(views, b=packed_view(views.b, Panels(tile.bn, tile.bn, 0, size))))


def pack(b: Array, tile: GroupTile) -> Array:
    """Return matrices (..., k, n) as [...][blocks][slices * bk][bn], zeros beyond k and n."""
    *outer, k, n = b.shape
    terms, blocks = -(-k // tile.bk) * tile.bk, -(-n // tile.bn)
    full = np.zeros((*outer, terms, blocks * tile.bn), np.float32)
    full[..., :k, :n] = b
    split = full.reshape(*outer, terms, blocks, tile.bn)
    return np.ascontiguousarray(np.moveaxis(split, -2, -3))


def _in_parts(
    job: _Job, found: Product, params: dict[str, Any], b: Arg, sizes: tuple[int, ...]
) -> tuple[Launch, ...]:
    """Return the product that leaves parts of its sums in scratch memory, and what adds them."""
    outer, vc = found.batch.extents, params["tile"].vc
    scratch = Scratch("parts", params["parts"] * found.matrices * found.m * found.n * 4)
    pitches = (*found.batch.pitches[:2], (0,) * len(outer))
    plain = params | {
        "extras": {},
        "post_ops": (),
        "scales": {},
        "dst": (found.n, 1),
        "loop_epilogue": False,
        "batch": Loops(outer, pitches),
        "aligned": () if found.n % vc else (-1,),
    }
    args: tuple[Arg, ...] = (In(job.views.inputs[0]), b, scratch)
    first = Launch("gemm/workgroup.cl.mako", plain, args, sizes, params["wg"])
    ends = [found.dst, *(pitch for _, pitch in found.extras.values())]
    operands = [
        ((*batch, row), column)
        for batch, (row, column) in zip(found.batch.pitches[2:], ends, strict=True)
    ]
    rest = {
        "parts": params["parts"],
        "operands": operands,
        "has_bias": False,
        "extras": {which: place for which, (place, _) in found.extras.items()},
        "post_ops": params["post_ops"],
        "scales": params["scales"],
    }
    args = (*(In(k) for k in job.views.extras), Out(0))
    return first, sum_parts(job.target, scratch, args, (*outer, found.m), found.n, rest)


def _fetches(job: _Job, found: Product, tile: GroupTile) -> dict[str, Fetch]:
    """Return how slices of both operands are read."""
    starts = [job.problem.input(which).layout.offset for which in job.views.inputs]
    batch = _moves(found.batch)
    a = _reads(tile.bm, found.m, found.k, found.a, (starts[0], *batch[0]))
    if job.b_const is not None:
        return {"a": left(tile, *a), "b": right(tile, "rows", 4)}
    b = _reads(tile.bn, found.n, found.k, (found.b[1], found.b[0]), (starts[1], *batch[1]))
    return {"a": left(tile, *a), "b": right(tile, *b)}


def _moves(batch: Loops) -> list[tuple[int, ...]]:
    """Return the batch pitches of each operand on the loops that do move."""
    live = [k for k, extent in enumerate(batch.extents) if extent > 1]
    return [tuple(pitches[k] for k in live) for pitches in batch.pitches]


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


def _aligned(job: _Job, found: Product, vc: int) -> tuple[int, ...]:
    """Return the operands, by number and -1 for dst, whose vectors of columns are aligned."""
    ends = [(-1, found.dst, job.problem.outputs[0].layout.offset)]
    ends += [
        (place, pitches, job.problem.input(which).layout.offset)
        for which, (place, pitches) in found.extras.items()
    ]
    return tuple(
        which
        for (which, (row, column), start), batch in zip(ends, _moves(found.batch)[2:], strict=True)
        if column == 1 and not any(x % vc for x in (found.n, row, start, *batch))
    )

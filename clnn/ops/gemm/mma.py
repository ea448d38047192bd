"""Matrix products on tensor cores: gemm/mma.cl.mako where both operands lie as it reads them.

Constant matrices are packed in rows of k. Others must lie in rows that begin at multiples of 16
bytes: a in rows of k, b in rows of n or of k. Where a product does not fit as it stands, its
transpose may: b transposed times a transposed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from clnn.ops.gemm.problem import GemmProblem
from clnn.ops.launch import Arg, Launch, Variant
from clnn.ops.shared.matrices import Panels, packed_view
from clnn.ops.shared.tensor_core_tiles import kind_of, mma_tiles, rounding
from clnn.ops.shared.tensor_cores import BYTES, DST_TYPES, MmaProduct, MmaTile, mma_grid, mma_params
from clnn.records import dataclass
from clnn.types import Array

BY_COLUMNS_COST = 1.1  # cost of results that are stored by columns


@dataclass(frozen=True)
class _Fit:
    """A problem in an orientation that the kernel takes, its constants as they lie packed."""

    problem: GemmProblem
    kind: str
    b_rows: str


def mma_variants(problem: GemmProblem) -> Iterator[Variant]:
    """Yield the kernels that are worth a measurement, best first: none without tensor cores."""
    fit = _fit(problem) or _fit(problem.flipped())
    if fit is not None:
        for cost, tile in mma_tiles(fit.kind, fit.problem.shape, problem.target):
            yield _variant(fit, tile, cost)


def _fit(problem: GemmProblem) -> _Fit | None:
    """Return a problem as the kernel takes it, None where it does not."""
    kind = kind_of(problem.target, (problem.a, problem.b, problem.dst))
    moving = [operand.const is None for operand in (problem.a, problem.b)]
    if not kind or not any(moving) or problem.k < 2:
        return None
    packed = _packed(problem, kind)
    a, b = packed.product.a, packed.product.b
    b_rows = "n" if not moving[1] or b[0] == 1 else "k"
    for side, (row, inner) in enumerate((a, b if b_rows == "k" else b[::-1])):
        offset = (problem.a, problem.b)[side].layout.offset
        starts = (row, offset, *packed.batch_pitches()[side])
        if moving[side] and not (inner == 1 and _in_pieces(starts, kind)):
            return None
    return _Fit(packed, kind, b_rows)


def _in_pieces(starts: Sequence[int], kind: str) -> bool:
    """Whether rows begin at multiples of 16 bytes, where they begin at sums of these elements."""
    return all(p >= 0 and p % (16 // BYTES[kind]) == 0 for p in starts)


def _packed(problem: GemmProblem, kind: str) -> GemmProblem:
    """Return the problem with the views of constants as they lie packed."""
    views, pitch = problem.views, row_pitch(problem.k, kind)
    if problem.a.const is not None:
        views = replace(views, a=packed_view(views.a, Panels(0, 0, 0, problem.m * pitch)))
    if problem.b_is_const:
        views = replace(views, b=packed_view(views.b, Panels(0, 0, 0, problem.n * pitch)))
    return replace(problem, views=views)


def row_pitch(k: int, kind: str) -> int:
    """Return the elements from row to row of a packed matrix."""
    per = 16 // BYTES[kind]
    return -(-k // per) * per


def _variant(fit: _Fit, tile: MmaTile, cost: float) -> Variant:
    """Return the kernel of one tile."""
    problem, kind, product = fit.problem, fit.kind, fit.problem.product
    pitch, moves = row_pitch(problem.k, kind), (problem.a.const is None, problem.b.const is None)
    operands = MmaProduct(
        kind=kind,
        m=product.m,
        n=product.n,
        k=product.k,
        a=product.a[0] if moves[0] else pitch,
        b=product.b[0 if fit.b_rows == "k" else 1] if moves[1] else pitch,
        dst=product.dst,
        dst_type=DST_TYPES[kind],
        b_rows=fit.b_rows,
        rounded=kind == "tf32",
        batch=product.batch,
        extras=product.extras,
        scales=problem.scales,
        post_ops=problem.post_ops,
        extra_type=problem.dst.ctype,
        moves=moves,
    )
    params = mma_params(operands, tile, problem.target.tensor)
    params["name"] += "_" + "".join("m" if moving else "c" for moving in moves)
    a, b = _b_arg(problem.flipped(), pitch), _b_arg(problem, pitch)
    args = (a, *problem.args(b)[1:])
    size = mma_grid(product.m, product.n, product.matrices, tile)
    launch = Launch("gemm/mma.cl.mako", params, args, size, (tile.threads, 1))
    cost *= BY_COLUMNS_COST if product.dst[1] != 1 else 1.0
    return Variant(params["name"], (launch,), cost, rounding(kind, product.k))


def _b_arg(problem: GemmProblem, pitch: int) -> Arg:
    """Return the kernel argument of b, a constant as rows of k."""
    if not problem.b_is_const:
        return problem.b_arg
    matrices = problem.b_matrices()
    return problem.b.packed(lambda: pack_rows(matrices(), pitch))


def pack_rows(matrices: Array, pitch: int) -> Array:
    """Return matrices (..., k, n) as rows of k, [...][n][pitch], zeros beyond k."""
    *outer, k, n = matrices.shape
    full = np.zeros((*outer, n, pitch), np.float32)
    full[..., :k] = np.swapaxes(matrices, -1, -2)
    return full

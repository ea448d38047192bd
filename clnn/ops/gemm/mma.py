"""Matrix products on tensor cores: gemm/mma.cl.mako where both operands lie as it reads them.

Constant matrices are packed in rows of k. Others must lie in rows that begin at multiples of 16
bytes: a in rows of k, b in rows of n or of k. Where a product does not fit as it stands, its
transpose may: b transposed times a transposed.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from clnn.ops.launch import Arg, In, Launch, Out, Variant
from clnn.ops.shared.matrices import Panels, Product, Views, packed_view, product
from clnn.ops.shared.tensor_core_tiles import kind_of, mma_tiles, rounding
from clnn.ops.shared.tensor_cores import BYTES, DST_TYPES, MmaProduct, MmaTile, mma_grid, mma_params
from clnn.ops.shared.workgroup_tiles import GemmShape
from clnn.types import Array

if TYPE_CHECKING:
    from clnn.ops.gemm.spec import _Job

TURNED = 1.1  # cost of results that are stored by columns


@dataclass(frozen=True)
class _Matrices:
    """A product in one orientation: `job` as it stands there, constants of a and b as rows of k."""

    job: _Job
    found: Product
    consts: tuple[Array | None, Array | None]
    kind: str
    b_rows: str


def mma_variants(job: _Job) -> list[Variant]:
    """Return the kernels that are worth a measurement, best first: none without tensor cores."""
    turned = replace(job, views=job.views.flipped())
    given = next((m for m in (_matrices(job), _matrices(turned)) if m is not None), None)
    if given is None:
        return []
    found = given.found
    tiles = mma_tiles(given.kind, GemmShape(found.m, found.n, found.k, found.matrices), job.target)
    return [_variant(given, tile, cost) for cost, tile in tiles]


def _matrices(job: _Job) -> _Matrices | None:
    """Return a product as the kernel takes it, None where it does not."""
    problem, views = job.problem, job.views
    a, b = (problem.input(k) for k in views.inputs)
    kind = kind_of(job.target, (a, b, problem.outputs[0]))
    consts = replace(job, views=views.flipped()).b_const, job.b_const
    if not kind or all(c is not None for c in consts) or views.k < 2:
        return None
    found = product(_packed(views, consts, kind))
    b_rows = "n" if consts[1] is not None or found.b[0] == 1 else "k"
    rows = found.b if b_rows == "k" else found.b[::-1]
    for side, (row, inner) in enumerate((found.a, rows)):
        if consts[side] is None and not _even(
            found, side, row, inner, (a, b)[side].layout.offset, kind
        ):
            return None
    return _Matrices(job, found, consts, kind, b_rows)


def _even(found: Product, side: int, row: int, inner: int, offset: int, kind: str) -> bool:
    """Whether the rows of an operand are dense and begin at multiples of 16 bytes."""
    live = [k for k, extent in enumerate(found.batch.extents) if extent > 1]
    starts = [row, offset, *(found.batch.pitches[side][k] for k in live)]
    return inner == 1 and all(p >= 0 and p % (16 // BYTES[kind]) == 0 for p in starts)


def _packed(views: Views, consts: tuple[Array | None, Array | None], kind: str) -> Views:
    """Return the views with those of constants as they lie packed."""

    def rows(count: int) -> Panels:
        return Panels(0, 0, 0, count * row_pitch(views.k, kind))

    a = views.a if consts[0] is None else packed_view(views.a, rows(views.m))
    b = views.b if consts[1] is None else packed_view(views.b, rows(views.n))
    return replace(views, a=a, b=b)


def row_pitch(k: int, kind: str) -> int:
    """Return the elements from row to row of a packed matrix."""
    per = 16 // BYTES[kind]
    return -(-k // per) * per


def _variant(given: _Matrices, tile: MmaTile, cost: float) -> Variant:
    """Return the kernel of one tile."""
    found, job, kind = given.found, given.job, given.kind
    target, ctype = job.target, job.problem.outputs[0].ctype
    packed, (left, right) = row_pitch(found.k, kind), (c is not None for c in given.consts)
    scales = {2: job.spec.beta} if job.spec.beta != 1 else {}
    a = packed if left else found.a[0]
    b = packed if right else found.b[0 if given.b_rows == "k" else 1]
    made = MmaProduct(
        kind,
        found.m,
        found.n,
        found.k,
        a,
        b,
        found.dst,
        DST_TYPES[kind],
        given.b_rows,
        kind == "tf32",
        found.batch,
        found.extras,
        scales,
        job.post_ops,
        ctype,
        (not left, not right),
    )
    params = mma_params(made, tile, target.tensor)
    how = "".join("c" if c is not None else "m" for c in given.consts)
    params["name"] = f"{params['name']}_{how}"
    args: list[Arg] = [_arg(given, side) for side in (0, 1)]
    args += [*(In(k) for k in job.views.extras), Out(0)]
    grid = mma_grid(found.m, found.n, found.matrices, tile)
    launch = Launch("gemm/mma.cl.mako", params, tuple(args), grid, (tile.threads, 1))
    cost *= TURNED if found.dst[1] != 1 else 1.0
    return Variant(str(params["name"]), (launch,), cost, rounding(kind, found.k))


def _arg(given: _Matrices, side: int) -> Arg:
    """Return operand a (0) or b (1) of the kernel."""
    which, const = given.job.views.inputs[side], given.consts[side]
    if const is None:
        return In(which)
    make = functools.partial(pack_rows, const, row_pitch(given.found.k, given.kind))
    return given.job.problem.input(which).packed(make)


def pack_rows(matrices: Array, pitch: int) -> Array:
    """Return matrices (..., k, n) as rows of k, [...][n][pitch], zeros beyond k."""
    *outer, k, n = matrices.shape
    full = np.zeros((*outer, n, pitch), np.float32)
    full[..., :k] = np.swapaxes(matrices, -1, -2)
    return full

"""Attention by tiles of query rows: which tiles suit a problem, and the launches that compute it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from clnn.layout import TensorLayout
from clnn.ops.gemm.problem import GemmProblem
from clnn.ops.gemm.tiled import pack_launch
from clnn.ops.launch import Arg, In, Launch, Out, Scratch, Variant, grid
from clnn.ops.problem import Operand
from clnn.ops.shared.cache_sets import spread_pitch
from clnn.ops.shared.matrices import (
    Product,
    Tile,
    Views,
    flip,
    gemm_tiles,
    packed_view,
    panels_for,
    product,
)
from clnn.records import dataclass
from clnn.target import Target
from clnn.traced import is_open
from clnn.types import F32, DType

LEAST_ROWS = 4  # queries; below, keys are read once as they lie
MOST_ROWS = 64  # of a work-item
MOST_BYTES = 512 * 1024  # of a work-item's scores
NEAR_BYTES = 32 * 1024  # of scores that stay in the nearest cache
FAR = 1.1  # cost of scores that do not
EXP_SLOTS = 40  # of a vector's exponentials, with loads and stores
CHAINS = 8  # sums that keep the multiply-adds of a core busy
OUT_VECTORS = 4  # of columns of values
TILES = 6  # that are worth a measurement
VALUES, RESULT = -1, -2  # keys of operands among those of the post-ops


@dataclass(frozen=True)
class Form:
    """Where the result lies, as (..., queries, columns), in which type; Attention's trans_v and zeros_for_nan."""

    out: TensorLayout
    memory: DType
    trans_v: bool
    zeros_for_nan: bool


@dataclass(frozen=True)
class _Tiles:
    """Rows of a work-item, and the tiles of registers for its scores and for its results."""

    rows: int
    scores: Tile
    results: Tile
    cost: float


def attention_variants(scores: GemmProblem, values: Operand, form: Form) -> list[Variant]:
    """Return the kernels that keep scores in local memory, best first; none where they do not fit.

    scores: the product that makes them.
    """
    lies = values.layout.unpadded()
    lies = flip(lies) if form.trans_v else lies
    fits = scores.target.is_cpu and not scores.node.uses_narrow_storage and not values.stored
    extents = (*scores.views.dst.shape, *lies.shape)
    fits = fits and scores.fits_fast and not scores.b_is_const and not any(map(is_open, extents))
    beside = lies.pitches[-1] == 1 or lies.shape[-1] == 1
    if not (fits and beside) or scores.m < LEAST_ROWS or not lies.shape[-1]:
        return []
    found = sorted(_tiles(scores, lies.shape[-1]), key=lambda tiles: tiles.cost)
    best: dict[int, _Tiles] = {}
    for tiles in found:
        best.setdefault(tiles.rows, tiles)
    return [_variant(scores, lies, form, tiles) for tiles in [*best.values()][:TILES]]


def _tiles(scores: GemmProblem, columns: int) -> Iterator[_Tiles]:
    """Yield the tiles whose scores fit local memory, with what they are estimated to cost."""
    target, m, n = scores.target, scores.m, scores.n
    shapes = {tile for _, tile in gemm_tiles(m, n, scores.matrices, target)}
    made = [*_result_tiles(columns, target)]
    for rows in range(1, min(m, MOST_ROWS) + 1):
        for tile in shapes:
            held = rows * (_pitch(n, tile) + 1) * F32.itemsize
            if rows % tile.mr or held > min(MOST_BYTES, target.local_bytes // 2):
                continue
            mixed = min(
                (_slots(rows, columns, n, out), out.mr, out) for out in made if rows % out.mr == 0
            )
            slots = _slots(rows, n, scores.k, tile) + mixed[0]
            slots += rows * -(-n // tile.vw) * EXP_SLOTS
            items = -(-m // rows) * scores.matrices
            rounds = -(-items // target.compute_units)
            cost = rounds * slots / 2 * (FAR if held > NEAR_BYTES else 1.0)
            yield _Tiles(rows, tile, mixed[2], cost)


def _pitch(n: int, tile: Tile) -> int:
    """Return the elements from one row of scores to the next."""
    return spread_pitch(-(-n // tile.vw) * tile.vw)


def _result_tiles(columns: int, target: Target) -> Iterator[Tile]:
    """Yield the tiles of registers for results of so many columns."""
    vw = target.vector
    while vw > columns:
        vw //= 2
    for nv in range(1, min(OUT_VECTORS, columns // vw) + 1):
        for mr in range(1, (target.registers - 1) // nv):
            yield Tile(mr, nv, vw)


def _slots(rows: int, columns: int, terms: int, tile: Tile) -> int:
    """Return the slots of loads or multiply-adds that a product takes."""
    parts = rows // tile.mr * -(-columns // tile.width)
    each = max(tile.mr * tile.nv, tile.mr + tile.nv + 1, CHAINS) + 3
    return parts * (terms * each + 6 * tile.mr * tile.nv)


def _variant(scores: GemmProblem, values: TensorLayout, form: Form, tiles: _Tiles) -> Variant:
    """Return the launches of some tiles: one packs the keys, one does all else."""
    target, tile, result = scores.target, tiles.scores, tiles.results
    panels = panels_for(scores.k, scores.n, tile, target)
    packed = packed_view(scores.views.b, panels)
    scratch = Scratch("panels", max(packed.size, 1) * F32.itemsize)
    places = places_of(scores, packed, values, form)
    name = f"attention_f32_t{tile.mr}x{tile.width}_o{result.mr}x{result.width}_r{tiles.rows}"
    name += "_zeros" * form.zeros_for_nan
    size, local = grid(target, -(-scores.m // tiles.rows), places.matrices)
    params = params_of(scores, places, values.shape[-1], form) | {
        "name": name,
        "v": places.extras[VALUES][1],
        "panel": panels.panel,
        "pitch": _pitch(scores.n, tile),
        "rows": tiles.rows,
        "mr": tile.mr,
        "nv": tile.nv,
        "vw": tile.vw,
        "out_mr": result.mr,
        "out_nv": result.nv,
        "out_vw": result.vw,
        "wg": local,
    }
    last = len(scores.node.inputs)
    args: tuple[Arg, ...] = (
        In(scores.views.inputs[0]),
        scratch,
        *(In(k) for k in scores.views.extras),
        In(last),
        Out(0),
    )
    first = pack_launch(scores, tile, panels, packed, scratch)
    launch = Launch("transformer/attention.cl.mako", params, args, size, local)
    return Variant(name, (first, launch), tiles.cost)


def places_of(
    scores: GemmProblem, packed: TensorLayout, values: TensorLayout, form: Form
) -> Product:
    """Return where queries, packed keys, operands, values and the result lie, in this order.

    The scores themselves lie nowhere; the result tells the order of the batch axes.
    """
    outer = scores.views.dst.shape[:-2]
    extras = {
        **scores.views.extras,
        VALUES: values.broadcast((*outer, *values.shape[-2:])),
        RESULT: form.out,
    }
    places = product(Views(scores.views.a, packed, scores.views.dst, extras))
    batch = replace(places.batch, pitches=(*places.batch.pitches[:2], *places.batch.pitches[3:]))
    return replace(places, batch=batch)


def params_of(scores: GemmProblem, places: Product, columns: int, form: Form) -> dict[str, Any]:
    """Return the parameters that the templates share."""
    return {
        "m": scores.m,
        "n": scores.n,
        "d": scores.k,
        "e": columns,
        "q": places.a,
        "dst": places.extras[RESULT][1],
        "batch": places.batch,
        "extras": {k: places.extras[k] for k in scores.views.extras},
        "scales": scores.scales,
        "post_ops": scores.post_ops,
        "zeros_for_nan": form.zeros_for_nan,
    }

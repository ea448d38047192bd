"""Attention of bfloat16 by tiles of registers (x86's AMX): transformer/attention_amx.cl.mako."""

from __future__ import annotations

from clnn.layout import TensorLayout
from clnn.ops.gemm.packing import Unpacked, pack_matrices
from clnn.ops.gemm.problem import GemmProblem
from clnn.ops.launch import In, Launch, Out, Scratch, Variant, grid
from clnn.ops.problem import Operand
from clnn.ops.shared import amx
from clnn.ops.shared.cache_sets import spread_pitch
from clnn.ops.shared.matrices import Tile, flip, packed_view, panels_for
from clnn.ops.transformer.tiles import (
    EXP_SLOTS,
    LEAST_ROWS,
    MOST_BYTES,
    Form,
    params_of,
    places_of,
)
from clnn.traced import is_one, is_open
from clnn.types import F32, STORED_BF16

WIDTH = 2 * amx.COLUMNS  # columns of a panel
ERROR = 2.0**-7  # of results relative to the largest one: weights are rounded to bfloat16
KEYS = amx.BYTES // STORED_BF16.itemsize  # that a tile of weights takes at a time


def amx_attention(scores: GemmProblem, values: Operand, form: Form) -> list[Variant]:
    """Return the kernel that multiplies by tiles of registers; none where it does not fit.

    scores: the product that makes them.
    """
    stored = {scores.a.memory, scores.b.memory, values.memory, form.memory}
    if not amx.how(scores.target) or stored != {STORED_BF16}:
        return []
    lies = values.layout.unpadded()
    lies = flip(lies) if form.trans_v else lies
    known = not any(map(is_open, (*scores.views.dst.shape, *lies.shape, scores.k)))
    fits = known and scores.fits_fast and not scores.b_is_const and is_one(scores.product.a[1])
    if not fits or scores.m < LEAST_ROWS or scores.k % 2 or not (scores.n and lies.shape[-1]):
        return []
    for ma in (2, 1):
        tiles = -(-scores.m // (ma * amx.ROWS))
        mr = -(-scores.m // (tiles * ma)) * ma
        held = mr * (_pitch(scores.n) + 1) * F32.itemsize
        if mr <= scores.m and held <= min(MOST_BYTES, scores.target.local_bytes // 2):
            return [_variant(scores, lies, values.ctype, form, (ma, mr))]
    return []


def _pitch(n: int) -> int:
    """Return the elements from one row of scores to the next."""
    return spread_pitch(-(-n // WIDTH) * WIDTH)


def _variant(
    scores: GemmProblem, lies: TensorLayout, ctype: str, form: Form, rows: tuple[int, int]
) -> Variant:
    """Return the launches of tiles of `rows` (tiles of registers, queries): two pack, one does all else.

    lies, ctype: the values' layout and type.
    """
    target, (ma, mr), tile = scores.target, rows, Tile(rows[1], 2, amx.COLUMNS)
    keys = -(-scores.n // KEYS) * KEYS
    k_panels = panels_for(scores.k, scores.n, tile, target, True)
    v_panels = panels_for(keys, lies.shape[-1], tile, target, True)
    packed_k, packed_v = packed_view(scores.views.b, k_panels), packed_view(lies, v_panels)
    places = places_of(scores, packed_k, packed_v, form)
    name = f"attention_amx_bf16_{ma}x2_r{mr}" + "_zeros" * form.zeros_for_nan
    size, local = grid(target, -(-scores.m // mr), places.matrices)
    params = params_of(scores, places, lies.shape[-1], form) | {
        "name": name,
        "panel": k_panels.panel,
        "v_panel": v_panels.panel,
        "pitch": _pitch(scores.n),
        "types": (scores.a.ctype, form.memory.cl),
        "how": amx.how(target),
        "depth": amx.depth(2 * scores.k),
        "mr": mr,
        "ma": ma,
        "wg": local,
    }
    last = len(scores.node.inputs)
    k_scratch, v_scratch = (
        Scratch(which, max(view.size, 1) * STORED_BF16.itemsize, STORED_BF16.itemsize)
        for which, view in (("panels", packed_k), ("values", packed_v))
    )
    k_given = Unpacked(scores.views.b, scores.b.ctype, scores.b_arg, True)
    v_given = Unpacked(lies, ctype, In(last), True)
    launches = (
        pack_matrices(k_given, tile, k_panels, packed_k, k_scratch, target),
        pack_matrices(v_given, tile, v_panels, packed_v, v_scratch, target, keys // 2),
        Launch(
            "transformer/attention_amx.cl.mako",
            params,
            (
                In(scores.views.inputs[0]),
                k_scratch,
                *(In(k) for k in scores.views.extras),
                v_scratch,
                Out(0),
            ),
            size,
            local,
        ),
    )
    return Variant(name, launches, _cost(scores, lies.shape[-1], (ma, mr)), ERROR)


def _cost(scores: GemmProblem, columns: int, rows: tuple[int, int]) -> float:
    """Return the estimated cycles."""
    (ma, mr), n, target = rows, scores.n, scores.target
    items = -(-scores.m // mr) * scores.matrices
    steps = -(-n // WIDTH) * (-(-2 * scores.k // amx.BYTES) + -(-columns // WIDTH))
    cycles = steps * amx.step_cycles(ma, 2) + 2 * amx.SHAPE_CYCLES
    cycles += mr * -(-n // amx.COLUMNS) * EXP_SLOTS / 2
    return -(-items // target.compute_units) * cycles

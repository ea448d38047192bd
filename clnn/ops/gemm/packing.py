"""Matrices that are packed into panels of columns in each run: gemm/pack.cl.mako."""

from __future__ import annotations

from math import prod

from clnn.layout import TensorLayout
from clnn.ops.launch import In, Launch, Scratch, grid
from clnn.ops.shared.matrices import Panels, Tile, packing
from clnn.records import dataclass
from clnn.target import Target
from clnn.traced import is_one, is_open

PACK_ELEMENTS = 8192  # elements that one CPU work-item packs


@dataclass(frozen=True)
class Unpacked:
    """Matrices (..., k, n) as they lie, their type, and where kernels find them; pairs: rows are packed two by two."""

    layout: TensorLayout
    ctype: str
    arg: In
    pairs: bool


def pack_matrices(
    given: Unpacked,
    tile: Tile,
    panels: Panels,
    packed: TensorLayout,
    scratch: Scratch,
    target: Target,
    to: int = 0,
) -> Launch:
    """Return the launch that packs matrices; its batch loops run over their own.

    to: rows, or pairs of them, of panels that are longer than the matrices; zeros follow these.
    """
    (rows, n), pairs = given.layout.shape[-2:], given.pairs
    k = -(-rows // 2) if pairs else rows
    src, batch = packing(given.layout, packed)
    strips = -(-n // panels.width) * tile.nv
    most = PACK_ELEMENTS // tile.vw
    longest = max(k, to) if to else k
    chunk = -(-(most if is_open(k) else min(most, longest)) // tile.vw) * tile.vw
    chunk = chunk if target.is_cpu else tile.vw
    size, local = grid(target, strips, -(-longest // chunk), prod(batch.extents))
    how = "columns" if is_one(src[1]) else "rows" if is_one(src[0]) else "any"
    params = {
        "name": f"gemm_pack_{'pairs' if pairs else 'f32'}_{how}_w{panels.width}",
        "ctype": given.ctype,
        "pairs": pairs,
        "k": rows,
        "n": n,
        "src": src,
        "batch": batch,
        "row": panels.row,
        "panel": panels.panel,
        "strips": strips,
        "to": to,
        "nv": tile.nv,
        "vw": tile.vw,
        "chunk": chunk,
        "wg": local,
    }
    return Launch("gemm/pack.cl.mako", params, (given.arg, scratch), size, local)

"""Matrix products with a constant matrix as launches of the universal set."""

from __future__ import annotations

import numpy as np

from clnn.layout import TensorLayout
from clnn.ops.gemm.problem import GemmProblem
from clnn.ops.launch import Arg, Const, In, Out, Variant
from clnn.ops.universal.functions import tile_channels, tiling, universal_launch
from clnn.ops.universal.packing import pack_columns
from clnn.ops.universal.post_ops import encoded, is_plain, limited, operands
from clnn.types import Array


def universal_product(whole: GemmProblem) -> Variant | None:
    """Return a product as launches of the set, None where it has no form there."""
    node = whole.node
    if not whole.fits_fast or whole.scales or not is_plain(node, 0, 1):
        return None
    problem = (whole if whole.b_is_const else whole.flipped()).folded()
    if not problem.b_is_const or problem.matrices != 1 or not np.isfinite(problem.b.largest):
        return None
    product = problem.product
    ordered = {k: place for place, k in enumerate(product.extras)}
    images = {
        k: (place, _as_image(product.extras[k][1], problem.m, problem.n))
        for k, place in ordered.items()
    }
    codes = encoded(problem.post_ops, ordered)
    extra = operands(node, problem.post_ops, images)
    if codes is None or extra is None:
        return None
    low, high, codes = limited(codes)
    target, wide = problem.target, tile_channels(problem.target)
    tiles = tiling(problem.m, problem.n, 1, problem.k, target)
    (row, term), (dst_row, dst_column) = product.a, product.dst
    numbers = (
        *(problem.m, 1, problem.m, tiles.band, tiles.across),
        *(0, 0, row, 0),
        *(0, dst_column, 0, dst_row),
        *(problem.k, problem.k, term, 1, 0, 0),
        *(tiles.blocks, tiles.span, problem.n, low, high, *extra[1], *codes),
    )
    matrices, columns = problem.b_matrices(), tiles.blocks * wide

    def pack() -> Array:
        return pack_columns(matrices().reshape(1, problem.k, problem.n).transpose(0, 2, 1), wide)

    args: tuple[Arg, ...] = (
        In(problem.views.inputs[0]),
        Const(pack),
        Const(lambda: np.zeros(columns, np.float32)),
        *extra[0],
        Out(0),
    )
    launch = universal_launch("conv", target, args, numbers, tiles.sizes)
    return Variant("universal_product", (launch,))


def _as_image(pitches: tuple[int, int], rows: int, columns: int) -> TensorLayout:
    """Return an operand (row, column) as an image: rows along x, columns as channels."""
    row, column = pitches
    return TensorLayout.of_pitches((1, columns, 1, rows), (0, column, 0, row))

"""Filters in the orders in which ESP-DL's kernels read them, and as (output, input, height, width).

    NHWC          filter by filter, in the order of the input (C kernels)
    HWCN          outputs innermost
    (N/16)HWC16   outputs in blocks of 16 (int8) or 8 (int16), innermost; those that fill no block
                  ("_UNALIGNED") follow as NHWC, of depthwise filters as HWN

Filters of one spatial axis have no H; N16HWC16 is another spelling of (N/16)HWC16. 1.x on the ESP32-S3
has the same orders.
"""

from __future__ import annotations

import numpy as np

from clnn.errors import ModelError
from clnn.types import Array

BLOCKS = {"16": 16, "8": 8}


def block_of(layout: str) -> int:
    """Return how many outputs are neighbours in blocks of a layout, 0 where there are no blocks."""
    plain = layout.removesuffix("_UNALIGNED")
    return next((n for text, n in BLOCKS.items() if plain.endswith(f"C{text}")), 0)


def unpacked(data: Array, dims: tuple[int, ...], layout: str, depthwise: bool) -> Array:
    """Return a filter as (o, i, h, w), or (o, i, w) where it has one spatial axis.

    dims: (h, w, i, o), of depthwise filters (h, w, o, 1), each perhaps without h. Raises ModelError for
    a layout that clnn does not know.
    """
    *spatial, a, b = dims
    if depthwise and b != 1 and a != 1:
        raise ModelError(f"a depthwise filter has the shape {dims}: one axis behind must be 1.")
    inner, outs = (1, a * b) if depthwise else (a, b)
    block, plain = block_of(layout), layout.removesuffix("_UNALIGNED")
    if plain in ("HWCN", "WCN"):
        return np.ascontiguousarray(
            np.moveaxis(data.reshape(*spatial, inner, outs), (-1, -2), (0, 1))
        )
    if not block and plain not in ("NHWC", "NWC"):
        raise ModelError(
            f"a filter is stored as {layout!r}; (N/16)HWC16, (N/8)HWC8, NHWC and HWCN are known."
        )
    whole = outs // block * block if block else 0
    size = inner * int(np.prod(spatial, dtype=np.int64))
    rows = np.zeros((outs, *spatial, inner), data.dtype)
    if whole:
        packed = data[: whole * size].reshape(whole // block, *spatial, inner, block)
        rows[:whole] = np.moveaxis(packed, -1, 1).reshape(whole, *spatial, inner)
    if outs > whole:
        rest = data[whole * size :]
        if depthwise and block:
            rows[whole:] = np.moveaxis(rest.reshape(*spatial, inner, outs - whole), -1, 0)
        else:
            rows[whole:] = rest.reshape(outs - whole, *spatial, inner)
    return np.ascontiguousarray(np.moveaxis(rows, -1, 1))


def packed(filters: Array, layout: str, depthwise: bool) -> Array:
    """Return the elements of a filter (o, i, h, w) or (o, i, w) in the order of a layout."""
    rows = np.moveaxis(filters, 1, -1)  # o, spatial, i
    if layout in ("HWCN", "WCN"):
        return np.moveaxis(rows, 0, -1).reshape(-1)
    block, outs = block_of(layout), len(rows)
    whole = outs // block * block if block else 0
    parts = []
    if whole:
        blocks = rows[:whole].reshape(whole // block, block, *rows.shape[1:])
        parts.append(np.moveaxis(blocks, 1, -1).reshape(-1))
    rest = rows[whole:]
    parts.append((np.moveaxis(rest, 0, -1) if depthwise and block else rest).reshape(-1))
    return np.concatenate(parts)

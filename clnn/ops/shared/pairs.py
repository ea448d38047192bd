"""Products of values stored as bfloat16, two at a time: pairs that lie along the sums (_common/dot.cl.mako)."""

from __future__ import annotations

from clnn.target import Target

# Registers that pairs taken apart fill besides those of other operands, and pairs of weights alone.
PLAIN_OPERANDS, WIDE_OPERANDS = 4, 2
MOST_ROWS = 32  # of a tile
MOST_WIDE_BYTES = 2**19  # of rows as floats, which a core keeps close


def pairs_of(target: Target, terms: int = 0) -> str:
    """Return the `dot` for pairs of bfloat16 on a device, "" where they are not taken as pairs.

    One instruction where the device has it and gains by it; else both elements are made float32 by a
    shift and a mask: those of the weights as they are met, those of the other operand for all sums of a
    tile before, in local memory. terms: of its rows, 0 where a tile's rows do not lie so.
    """
    if not target.is_cpu:
        return ""
    if target.features >= {"x86_bf16", "fast_bf16"}:
        return "bf16x2"
    most = min(MOST_WIDE_BYTES, target.local_bytes // 2)
    fits = terms and terms % target.vector == 0 and 4 * MOST_ROWS * terms <= most
    return "spreadbf16x2" if fits else "plainbf16x2"


def operands_of(dot: str) -> int:
    """Return the registers that pairs fill besides those of other operands."""
    return {"plainbf16x2": PLAIN_OPERANDS, "spreadbf16x2": WIDE_OPERANDS}.get(dot, 0)

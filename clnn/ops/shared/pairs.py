"""Products of values stored as bfloat16, two at a time: pairs that lie along the sums (_common/dot.cl.mako)."""

from __future__ import annotations

from clnn.target import Target

PLAIN_OPERANDS = 4  # registers that pairs taken apart fill besides those of other operands


def pairs_of(target: Target) -> str:
    """Return the `dot` for pairs of bfloat16 on a device, "" where they are not taken as pairs.

    One instruction where the device has it and gains by it; else both elements are made float32 by a
    shift and a mask, which takes fewer instructions than one element at a time.
    """
    if not target.is_cpu:
        return ""
    return "bf16x2" if target.features >= {"x86_bf16", "fast_bf16"} else "plainbf16x2"

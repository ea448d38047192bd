"""The launch that fills the border of a storage with its value."""

from __future__ import annotations

from math import prod

from clnn.layout import TensorLayout
from clnn.ops.launch import Launch, Out, grid
from clnn.ops.shared.element_types import move_type, move_value
from clnn.target import Target
from clnn.types import DType

MOST_WIDE = 512  # work-items of a line on GPUs


def fill_launch(layout: TensorLayout, dtype: DType, fill: float, target: Target) -> Launch:
    """Return the launch that writes `fill` to all padding of a storage's root layout.

    The storage is walked as lines along its innermost padded axis: a line inside the padding of an
    outer axis is filled whole, any other at its two ends. On GPUs work-items share a line, as many as
    its two ends have elements; on CPUs each has one.
    """
    axes = sorted(range(layout.rank), key=lambda a: -layout.pitches[a])
    padded = [a for a in axes if layout.before[a] or layout.after[a]]
    inner = padded[-1]
    outer = axes[: axes.index(inner)]
    pitch = layout.pitches[inner]
    total = [layout.before[a] + layout.shape[a] + layout.after[a] for a in outer]
    lines, front, back = prod(total), layout.before[inner] * pitch, layout.after[inner] * pitch
    wide = 1 if target.is_cpu else min(1 << (front + back - 1).bit_length(), MOST_WIDE)
    global_size, local = grid(target, *([wide] if wide > 1 else []), lines)
    params = {
        "name": "border_fill",
        "ctype": move_type(dtype),
        "fill": move_value(fill, dtype),
        "wg": local,
        "wide": wide,
        "lines": lines,
        "outer": tuple(total),
        "low": tuple(layout.before[a] for a in outer),
        "high": tuple(layout.before[a] + layout.shape[a] for a in outer),
        "pitches": tuple(layout.pitches[a] for a in outer),
        "front": front,
        "real": layout.shape[inner] * pitch,
        "back": back,
    }
    return Launch("movement/border_fill.cl.mako", params, (Out(0),), global_size, local)

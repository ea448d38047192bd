"""Images whose channels lie on the last axis, for ops that have them on the second."""

from __future__ import annotations

from clnn.ops.movement.views import Transpose
from clnn.ops.onnx_registry import Emit, Source


def channels_first(x: Source, rank: int) -> Emit:
    """Return (n, spatial..., c) as (n, c, spatial...)."""
    return Emit(Transpose((0, rank - 1, *range(1, rank - 1))), [x])


def channels_last(x: Source, rank: int) -> Emit:
    """Return (n, c, spatial...) as (n, spatial..., c)."""
    return Emit(Transpose((0, *range(2, rank), 1)), [x])

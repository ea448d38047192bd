"""Convolutions of few channels as convolutions of rows: bytes of a window's row are neighbours in memory.

    pixels of a row, 3 channels    p0c0 p0c1 p0c2 p1c0 | p1c1 p1c2 p2c0 p2c1 | p2c2 ...
    a tap row of 3 pixels          three steps of four bytes; weights are 0 where a step is not of the window

So a kernel (kh, kw) over c channels is one of (kh, 1) over kw * c, filled up to a multiple of 4, and its
products are added four at a time as those of many channels are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property

import numpy as np

from clnn.ops.conv import direct
from clnn.ops.conv.problem import FEW_CHANNELS, ConvProblem, innermost
from clnn.ops.launch import Variant
from clnn.ops.problem import Border
from clnn.ops.shared.window import Window
from clnn.records import dataclass
from clnn.types import I8, U8, Array, TensorType

STEP = 4  # bytes


@dataclass(frozen=True)
class RowProblem(ConvProblem):
    """A convolution of few channels of bytes as one of rows."""

    @property
    def pitch(self) -> int:
        """Bytes from pixel to pixel."""
        return int(self.src.pitches[3])

    @property
    def ic(self) -> int:
        """Bytes of a row of the window."""
        columns = self.window.pairs()["kernel"][1]
        used = (columns - 1) * self.pitch + self.src.shape[1]
        return int(-(-used // STEP) * STEP)

    @property
    def taps(self) -> int:
        """Rows of the window."""
        return self.geometry["kernel"][0]

    @cached_property
    def geometry(self) -> dict[str, tuple[int, int]]:
        """The window with one column."""
        given = self.window.pairs()
        return given | {"kernel": (given["kernel"][0], 1)}

    @cached_property
    def weights(self) -> Array:
        """Weights (oc, bytes of a row, kh, 1)."""
        given = super().weights
        rows, columns = self.window.pairs()["kernel"]
        split = given.reshape(*given.shape[:2], rows, columns)
        made = np.zeros((len(given), self.ic, rows, 1), given.dtype)
        for column in range(columns):
            begin = column * self.pitch
            made[:, begin : begin + given.shape[1], :, 0] = split[..., column]
        return made


def reach_beyond(window: Window, channels: int) -> int:
    """Return the pixels behind a row that its last window reads, for which weights are 0."""
    columns = window.pairs()["kernel"][1]
    return -(-(-columns * channels % STEP) // max(channels, 1))


def takes_rows(x: TensorType, window: Window, group: int) -> bool:
    """Whether a convolution of bytes has so few channels that rows of windows are worth packing."""
    few = group == 1 and 0 < x.shape[1] < FEW_CHANNELS
    return few and x.dtype in (I8, U8) and window.dilations[-1] == 1


def wide_border(window: Window, x: TensorType, fill: float) -> Border:
    """Return the border that windows reach, and what their last rows read beyond."""
    border = window.border(x.shape, fill)
    *others, last = border.after
    return replace(border, after=(*others, last + reach_beyond(window, x.shape[1])))


def variants(problem: ConvProblem) -> Iterator[Variant]:
    """Yield kernels of packed rows, by rising cost."""
    made = _rows_of(problem)
    if made is None:
        return
    for variant in direct.packed_variants(made):
        yield replace(variant, again=_again(variant))


def _again(variant: Variant) -> Callable[[ConvProblem], Variant | None]:
    def again(other: ConvProblem) -> Variant | None:
        rows = _rows_of(other)
        found = None if rows is None or variant.again is None else variant.again(rows)
        return None if found is None else replace(found, again=_again(found))

    return again


def _rows_of(problem: ConvProblem) -> RowProblem | None:
    """Return a problem as one of rows, None where that does not fit."""
    x, arith = problem.input(0), problem.arith
    if not takes_rows(x.type, problem.window, problem.group) or not arith.wraps:
        return None
    dense = innermost(problem.src) and problem.src.pitches[3] == x.type.shape[1]
    if arith.channelwise or not dense:
        return None
    border = wide_border(problem.window, x.type, float(arith.fill))
    if not (problem.has_border and x.border.covers(border)):
        return None
    node = (problem.inputs, problem.outputs, problem.target)
    return RowProblem(*node, problem.window, problem.group, problem.post_ops, arith)

"""One input or output buffer: its geometry as TIDL addresses it, as a TensorLayout.

NCHW                                             NHWC
linePitch   = width + padL + padR                (width + padL + padR) * pixelPitch
pixelPitch  = 1                                  channels + padCh
channelPitch as the field says                   1
dim2Pitch   = field channelPitch * (channels + padCh), in both
dim1Pitch   = dim2Pitch * DIM2
batchPitch  = dim1Pitch * DIM1
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from clnn.apis.tidl.enums import NUMPY_TYPES, ElementType, TensorOrder
from clnn.errors import ModelError, SettingError, ShapeError
from clnn.layout import TensorLayout
from clnn.records import dataclass

MOST_ELEMENTS = 2**31 - 1  # TIDL counts in 32 bits
STARTS = ("rows", "document")
MOST_RANK = 6


@dataclass(frozen=True)
class IOTensor:
    """One buffer of a sTIDL_IOBufDesc_t; all sizes and pitches are in elements.

    side: "in" or "out". pads: left, top, right, bottom. buffer_size: as the structure has it, 0 where
    it has none. order: a TensorOrder.
    """

    side: str
    name: str
    batches: int
    dim1: int
    dim2: int
    channels: int
    height: int
    width: int
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    pad_channels: int = 0
    channel_pitch: int = 0
    element_type: int = ElementType.TIDL_SinglePrecFloat
    order: int = TensorOrder.TIDL_LT_NCHW
    scale: float = 1.0
    zero_point: int = 0
    buffer_size: int = 0
    data_id: int = 0

    @staticmethod
    def make(side: str, name: str, shape: Sequence[int], **fields: Any) -> IOTensor:
        """Return the buffer of a tensor of at most six axes, the last one its width.

        fields: of IOTensor. Pitch and size are the least that hold it where they are not given.
        Raises ShapeError for more axes, ModelError for values that describe no buffer.
        """
        if len(shape) > MOST_RANK:
            raise ShapeError(f"{name!r} has {len(shape)} axes {tuple(shape)}: TIDL has six.")
        sizes = (1,) * (MOST_RANK - len(shape)) + tuple(shape)
        batches, dim1, dim2, channels, height, width = sizes
        made = IOTensor(side, name, batches, dim1, dim2, channels, height, width, **fields)
        _, top, _, bottom = made.pads
        if not made.channel_pitch:
            plane = made.row * (top + made.height + bottom)
            made = replace(made, channel_pitch=plane)
        made.check()
        return made if made.buffer_size else replace(made, buffer_size=made.nbytes)

    def __str__(self) -> str:
        return f"{self.side}put {self.name[:60]!r}"

    @property
    def shape(self) -> tuple[int, ...]:
        """Batches, DIM1, DIM2, channels, height, width."""
        return self.batches, self.dim1, self.dim2, self.channels, self.height, self.width

    @property
    def valid_dims(self) -> int:
        """How many axes there are behind those of extent 1 in front."""
        return next((MOST_RANK - a for a, n in enumerate(self.shape) if n != 1), 1)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy type of the elements. Raises ModelError for a number that is no element type."""
        if self.element_type not in NUMPY_TYPES:
            raise ModelError(
                f"{self} has element type {self.element_type}: must be from 0 to"
                f" {len(NUMPY_TYPES) - 1}."
            )
        return NUMPY_TYPES[self.element_type]

    @property
    def row(self) -> int:
        """Pixels from one row to the next: the width with its pads."""
        return self.width + self.pads[0] + self.pads[2]

    @property
    def pixel_pitch(self) -> int:
        """Elements from one pixel to the next."""
        return self.channels + self.pad_channels if self.order else 1

    @property
    def line_pitch(self) -> int:
        """Elements from one row to the next."""
        return self.row * self.pixel_pitch

    @property
    def pitches(self) -> tuple[int, ...]:
        """Elements between neighbours along each axis of `shape`."""
        dim2 = self.channel_pitch * (self.channels + self.pad_channels)
        dim1 = dim2 * self.dim2
        channel = 1 if self.order else self.channel_pitch
        return dim1 * self.dim1, dim1, dim2, channel, self.line_pitch, self.pixel_pitch

    def start(self, formula: str = "rows") -> int:
        """Return the element at which the tensor begins.

        formula: "rows" steps over padT whole rows and padL pixels, as TI's applications do;
        "document" over padT + padL pixels, as the document's code has it. Raises SettingError.
        """
        if formula not in STARTS:
            raise SettingError(f"start {formula!r} is not one of {', '.join(STARTS)}.")
        left, top, _, _ = self.pads
        rows = self.row if formula == "rows" else 1
        return (top * rows + left) * self.pixel_pitch

    @property
    def volume(self) -> int:
        """Elements of all batches, pads included."""
        return self.pitches[0] * self.batches

    def elements(self, formula: str = "rows") -> int:
        """Return how many elements the buffer must have, pads included."""
        pairs = zip(self.shape, self.pitches, strict=True)
        reach = sum((extent - 1) * pitch for extent, pitch in pairs)
        return max(self.volume, self.start(formula) + reach + 1)

    @property
    def nbytes(self) -> int:
        """Bytes that the buffer must have."""
        return self.elements() * self.dtype.itemsize

    @property
    def allocation(self) -> int:
        """Bytes to allocate: what the structure asks for, and at least what the tensor takes."""
        return max(self.buffer_size, self.nbytes)

    def check(self) -> None:
        """Raise ModelError where these numbers describe no buffer."""
        _ = self.dtype
        if self.order not in (TensorOrder.TIDL_LT_NCHW, TensorOrder.TIDL_LT_NHWC):
            raise ModelError(f"{self} has layout {self.order}: must be 0 (NCHW) or 1 (NHWC).")
        if min(self.shape) < 1:
            raise ModelError(
                f"{self} is {self.shape} (batches, DIM1, DIM2, channels, height, width): each must"
                " be at least 1."
            )
        if min(*self.pads, self.pad_channels, self.buffer_size) < 0:
            raise ModelError(
                f"{self} has pads {self.pads} (left, top, right, bottom), {self.pad_channels}"
                f" channels of padding and {self.buffer_size} as its size: none may be negative."
            )
        least = (self.height - 1) * self.row + self.width
        if self.channel_pitch < least:
            raise ModelError(
                f"{self} has channel pitch {self.channel_pitch}: {self.height} rows of {self.row}"
                f" take {least}, so channels would share elements."
            )
        if self.elements() * self.dtype.itemsize > MOST_ELEMENTS:
            raise ModelError(
                f"{self} of {self.shape} takes {self.elements()} elements of"
                f" {self.dtype.itemsize} bytes: more than TIDL counts, {MOST_ELEMENTS} bytes."
            )
        if 0 < self.buffer_size < self.elements():
            raise ModelError(
                f"{self} has a buffer of {self.buffer_size}, its tensor takes {self.elements()} elements."
            )

    def layout(self, formula: str = "rows") -> TensorLayout:
        """Return where the element (batch, dim1, dim2, channel, row, column) lies.

        The padding belongs to the layout where no two tensors' pads share elements and the tensor
        begins behind it. Raises ModelError where the numbers describe no buffer, SettingError for a
        formula that is not there.
        """
        self.check()
        left, top, right, bottom = self.pads
        layout = TensorLayout.of_pitches(
            self.shape, self.pitches, self.start(formula), self.elements(formula)
        )
        whole = self.channel_pitch >= (top + self.height + bottom) * self.row
        if not whole or self.start(formula) != self.start():
            return layout
        before, after = (0, 0, 0, 0, top, left), (0, 0, 0, self.pad_channels, bottom, right)
        return replace(layout, before=before, after=after)

    def layout_of(self, shape: Sequence[int], formula: str = "rows") -> TensorLayout:
        """Return the layout under a network's shape: the same extents but for those of 1.

        A network may have channels behind the width where the order is NHWC. Raises ShapeError where
        the extents differ, and as `layout` does.
        """
        whole = self.layout(formula)
        last = whole.transpose((0, 1, 2, 4, 5, 3)) if self.order else whole
        wanted = [n for n in shape if n != 1]
        for layout in (whole, last):
            axes = [a for a in range(MOST_RANK) if layout.shape[a] != 1]
            if [layout.shape[a] for a in axes] == wanted:
                return _with_ones(layout, axes, shape)
        raise ShapeError(
            f"{self} is {self.shape} (batches, DIM1, DIM2, channels, height, width), the network has"
            f" {tuple(shape)}: all extents but 1 must be the same."
        )

    def fields(self) -> dict[str, Any]:
        """Return the fields of the structure by their names without "in" or "out"."""
        left, top, right, bottom = self.pads
        return {
            "DataName": self.name,
            "NumBatches": self.batches,
            "DIM1": self.dim1,
            "DIM2": self.dim2,
            "NumChannels": self.channels,
            "Height": self.height,
            "Width": self.width,
            "PadL": left,
            "PadT": top,
            "PadR": right,
            "PadB": bottom,
            "PadCh": self.pad_channels,
            "ChannelPitch": self.channel_pitch,
            "ElementType": int(self.element_type),
            "Layout": int(self.order),
            "TensorScale": self.scale,
            "ZeroPoint": self.zero_point,
            "BufSize": self.buffer_size,
            "DataId": self.data_id,
        }


def _with_ones(layout: TensorLayout, axes: Sequence[int], shape: Sequence[int]) -> TensorLayout:
    """Return the layout of `axes` with axes of extent 1 between them, as `shape` has them.

    Of an axis of extent 1 the padding counts only where its place in `shape` is that from the end.
    """
    rest, pitches, before, after = iter(axes), [], [], []
    lead = MOST_RANK - len(shape)
    same = lead >= 0 and tuple(layout.shape) == (1,) * lead + tuple(shape)
    for place, extent in enumerate(shape):
        axis = next(rest) if extent != 1 else place + lead if same else None
        pitches.append(0 if axis is None else layout.pitches[axis])
        before.append(0 if axis is None else layout.before[axis])
        after.append(0 if axis is None else layout.after[axis])
    pitches = [p or math.prod(shape) for p in pitches]
    return TensorLayout(
        tuple(shape), tuple(pitches), tuple(before), tuple(after), layout.offset, layout.size
    )

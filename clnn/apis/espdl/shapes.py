"""Sizes of outputs and padding of windows, by padding type; shapes with axes added, taken away, turned."""

from __future__ import annotations

from collections.abc import Sequence

from clnn.apis.espdl.constants import PaddingType
from clnn.errors import ShapeError
from clnn.ops.shared.window import Window
from clnn.types import normalise_axis

SAME = (PaddingType.PADDING_SAME_BEGIN, PaddingType.PADDING_SAME_END)


def get_output_shape(
    input_shape: Sequence[int],
    filter_shape: Sequence[int],
    stride_y: int,
    stride_x: int,
    padding_type: PaddingType,
    channels: int | None = None,
    padding: Sequence[int] = (0, 0, 0, 0),
) -> list[int]:
    """Return (height, width, channels) of what a window makes of an image.

    filter_shape: as far as taps reach. channels: of the output, those of the input where left out.
    Raises ShapeError where the window does not fit, or a stride is below 1.
    """
    if len(input_shape) != 3 or min(stride_y, stride_x) < 1:
        raise ShapeError(
            f"a window with strides {stride_y}, {stride_x} over {list(input_shape)}: it needs (height,"
            " width, channel) and strides of at least 1."
        )
    found = []
    for axis, stride in enumerate((stride_y, stride_x)):
        extent, reach = input_shape[axis], filter_shape[axis]
        if padding_type in SAME:
            found.append(-(-extent // stride))
            continue
        if padding_type == PaddingType.PADDING_NOT_SET:
            extent += padding[2 * axis] + padding[2 * axis + 1]
        if extent < reach or reach < 1:
            raise ShapeError(f"a window of {reach} does not fit {extent} of {list(input_shape)}.")
        found.append((extent - reach) // stride + 1)
    return [*found, input_shape[2] if channels is None else channels]


def get_pad_size(
    output_shape: Sequence[int],
    input_shape: Sequence[int],
    filter_shape: Sequence[int],
    stride_y: int,
    stride_x: int,
    padding_type: PaddingType,
    padding: Sequence[int] = (0, 0, 0, 0),
) -> list[int]:
    """Return [top, bottom, left, right] that a window needs around its input.

    SAME_END puts the odd one at the bottom and at the right, SAME_BEGIN at the top and at the left.
    """
    if padding_type == PaddingType.PADDING_NOT_SET:
        return [int(p) for p in padding]
    if padding_type == PaddingType.PADDING_VALID:
        return [0, 0, 0, 0]
    found: list[int] = []
    for axis, stride in enumerate((stride_y, stride_x)):
        reach = (output_shape[axis] - 1) * stride + filter_shape[axis]
        total = max(reach - input_shape[axis], 0)
        pair = (total // 2, total - total // 2)
        found += pair if padding_type == PaddingType.PADDING_SAME_END else pair[::-1]
    return found


def window_of(
    kernel: Sequence[int], strides: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> Window:
    """Return a window over height and width, with padding [top, bottom, left, right]."""
    return Window(
        (kernel[0], kernel[1]),
        (strides[0], strides[1]),
        (dilation[0], dilation[1]),
        (padding[0], padding[2]),
        (padding[1], padding[3]),
    )


def squeezed(shape: Sequence[int], axis: int | None = None) -> list[int]:
    """Return a shape without an axis of extent 1, or without all of them. Raises ShapeError."""
    if axis is None:
        return [d for d in shape if d != 1]
    place = normalise_axis(axis, len(shape))
    if shape[place] != 1:
        raise ShapeError(f"squeeze of axis {axis} of {list(shape)}: its extent must be 1.")
    return [d for k, d in enumerate(shape) if k != place]


def expanded(shape: Sequence[int], axis: int | Sequence[int]) -> list[int]:
    """Return a shape with axes of extent 1 at these places of it. Raises ShapeError."""
    axes = [axis] if isinstance(axis, int) else list(axis)
    rank = len(shape) + len(axes)
    places = {normalise_axis(a, rank) for a in axes}
    if len(places) != len(axes):
        raise ShapeError(f"expand_dims of {list(shape)} with {axes}: an axis is named twice.")
    rest = iter(shape)
    return [1 if k in places else next(rest) for k in range(rank)]


def order_of(shape: Sequence[int], perm: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the order of axes that `perm` says, all turned around where it is empty."""
    order = tuple(int(k) for k in perm) or tuple(range(len(shape)))[::-1]
    if sorted(order) != list(range(len(shape))):
        raise ShapeError(f"transpose of {list(shape)} with {list(perm)}: no order of its axes.")
    return order

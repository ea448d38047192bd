"""dl::Filter, dl::Bias and dl::Activation: constants with exponents; activation and padding types."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, IntEnum

import numpy as np

from clnn.errors import DTypeError, ShapeError
from clnn.importers.espdl.filters import unpacked
from clnn.types import Array

Exponent = int | Sequence[int]


class ActivationType(IntEnum):
    """activation_type_t."""

    Linear = 0
    ReLU = 1
    LeakyReLU = 2
    PReLU = 3


class PaddingType(Enum):
    """padding_type_t. SAME_END is TensorFlow's: an odd pixel goes to the end; SAME_BEGIN is MXNet's."""

    PADDING_NOT_SET = "explicit"
    PADDING_VALID = "valid"
    PADDING_SAME_BEGIN = "begin"
    PADDING_SAME_END = "end"
    PADDING_SAME = PADDING_SAME_END
    PADDING_SAME_MXNET = PADDING_SAME_BEGIN


class Constant:
    """Integers with an exponent, or one for each output channel."""

    def __init__(self, element: Array, exponent: Exponent, shape: Sequence[int] = ()) -> None:
        """Raises ShapeError where the shape has another number of elements, DTypeError for floats."""
        array = np.asarray(element)
        if array.dtype.kind != "i":
            raise DTypeError(f"a constant of {array.dtype}: it must be quantised, int8 or int16.")
        self.shape = tuple(int(d) for d in shape) or array.shape
        if int(np.prod(self.shape, dtype=np.int64)) != array.size:
            raise ShapeError(f"a constant of {array.size} elements with the shape {self.shape}.")
        self.element = np.ascontiguousarray(array).reshape(-1)
        given = [exponent] if isinstance(exponent, int) else exponent
        self.exponents = tuple(int(e) for e in given)

    @property
    def exponent(self) -> int:
        """The exponent, of the first channel where they differ."""
        return self.exponents[0]

    @property
    def array(self) -> Array:
        """The elements in their shape."""
        return self.element.reshape(self.shape)


class Filter(Constant):
    """Shape (height, width, input channels, output channels); depthwise: (height, width, channels, 1).

    exponent: one, or one for each output channel (channel_exponent). layout: the order of `element`:
    "HWIO" as the shape says, or one of those of clnn.importers.espdl.filters.
    """

    def __init__(
        self,
        element: Array,
        exponent: Exponent,
        shape: Sequence[int],
        dilation: Sequence[int] = (1, 1),
        layout: str = "HWIO",
    ) -> None:
        super().__init__(element, exponent, shape)
        if len(self.shape) != 4 or len(dilation) != 2 or min(dilation) < 1:
            raise ShapeError(
                f"a filter of shape {self.shape} with dilation {tuple(dilation)}: it needs (height,"
                " width, input, output) and two numbers of at least 1."
            )
        self.dilation, self.layout = (int(dilation[0]), int(dilation[1])), layout

    @property
    def channel_exponent(self) -> tuple[int, ...]:
        """Exponents of the channels, () where there is one for all."""
        return self.exponents if len(self.exponents) > 1 else ()

    @property
    def shape_with_dilation(self) -> tuple[int, int, int, int]:
        """The shape as far as its taps reach."""
        h, w, i, o = self.shape
        return (h - 1) * self.dilation[0] + 1, (w - 1) * self.dilation[1] + 1, i, o

    def weights(self, depthwise: bool = False) -> Array:
        """Return the filter as (output, input, height, width)."""
        if self.layout == "HWIO":
            rows = np.moveaxis(self.array, -2, 0) if depthwise else self.array.transpose(3, 2, 0, 1)
            moved = np.moveaxis(rows, -1, 1) if depthwise else rows
            return np.ascontiguousarray(moved)
        dims = self.shape
        return unpacked(self.element, dims, self.layout, depthwise)

    def print2d_n(self, n: int, message: str = "") -> None:
        """Print the n-th filter."""
        print(f"{message} filter {n}, exponent {self.exponents[n % len(self.exponents)]}")
        print(self.weights(self.shape[3] == 1)[n])


class Bias(Constant):
    """A bias for each output channel: at the exponent of the output, or above that of the sums."""


class Activation(Constant):
    """Linear, ReLU, LeakyReLU (one slope) or PReLU (one for each channel)."""

    def __init__(
        self,
        type: ActivationType,
        element: Array | None = None,
        exponent: int = 0,
        shape: Sequence[int] = (),
    ) -> None:
        given = np.zeros(0, np.int16) if element is None else np.asarray(element)
        super().__init__(given, exponent, shape)
        self.type = ActivationType(type)
        sloped = self.type in (ActivationType.LeakyReLU, ActivationType.PReLU)
        if sloped != bool(given.size) or (
            self.type == ActivationType.LeakyReLU and given.size != 1
        ):
            raise ShapeError(f"{self.type.name} with {given.size} slopes.")

"""MaxPool2D, AvgPool2D, GlobalMaxPool2D, GlobalAvgPool2D."""

from __future__ import annotations

from collections.abc import Sequence

from clnn.apis.espdl.base import Layer
from clnn.apis.espdl.constants import PaddingType
from clnn.apis.espdl.shapes import get_output_shape, get_pad_size, window_of
from clnn.apis.espdl.tensor import Tensor
from clnn.apis.images import from_image, to_image
from clnn.arith.espdl_maps import MOST_APART, EspAverage
from clnn.errors import ShapeError
from clnn.graph.builder import GraphBuilder
from clnn.ops.pool.spec import Pool
from clnn.ops.shared.window import Window


class _Pool(Layer):
    """A window over the image of each channel."""

    def __init__(
        self,
        filter_shape: Sequence[int],
        padding_type: PaddingType,
        stride_y: int,
        stride_x: int,
        name: str | None,
        padding: Sequence[int],
        exponent: int | None = None,
    ) -> None:
        super().__init__(name, exponent)
        self.filter_shape = [int(d) for d in filter_shape]
        self.padding_type, self.strides = padding_type, (stride_y, stride_x)
        self.padding = [int(p) for p in padding]

    def build(self, input: Tensor) -> None:
        """Set the output's shape, and let the input's padding grow. Raises ShapeError."""
        where = (*self.strides, self.padding_type)
        shape = get_output_shape(input.shape, self.filter_shape, *where, None, self.padding)
        self.padding = get_pad_size(shape, input.shape, self.filter_shape, *where, self.padding)
        input.set_padding_size(self.padding)
        self.built(shape, input)

    def pool(self, input: Tensor) -> Pool:
        """Return the op."""
        raise NotImplementedError

    def window(self) -> Window:
        """Return the window over height and width."""
        return window_of(self.filter_shape, self.strides, self.padding, (1, 1))

    def call(self, input: Tensor) -> Tensor:
        """Return the output."""
        self.bits(input)
        spec = self.pool(input)

        def ops(build: GraphBuilder, value: str) -> str:
            return to_image(build, build.add(spec, from_image(build, value)))

        return self.run(spec, ops, input)


class MaxPool2D(_Pool):
    """The largest element of each window; padding is never the largest."""

    def __init__(
        self,
        filter_shape: Sequence[int],
        padding_type: PaddingType = PaddingType.PADDING_VALID,
        stride_y: int = 1,
        stride_x: int = 1,
        name: str | None = None,
        padding: Sequence[int] = (0, 0, 0, 0),
    ) -> None:
        super().__init__(filter_shape, padding_type, stride_y, stride_x, name, padding)

    def pool(self, input: Tensor) -> Pool:
        """Return the op."""
        return Pool(self.window(), "max")


class AvgPool2D(_Pool):
    """The average of each window. count_include_pad: padding counts, as zeros."""

    def __init__(
        self,
        output_exponent: int,
        filter_shape: Sequence[int],
        padding_type: PaddingType = PaddingType.PADDING_VALID,
        stride_y: int = 1,
        stride_x: int = 1,
        name: str | None = None,
        padding: Sequence[int] = (0, 0, 0, 0),
        count_include_pad: bool = True,
    ) -> None:
        super().__init__(
            filter_shape, padding_type, stride_y, stride_x, name, padding, output_exponent
        )
        self.count_include_pad = count_include_pad

    def pool(self, input: Tensor) -> Pool:
        """Return the op. Raises ShapeError where exponents are too far apart."""
        shift = self.output.exponent - input.exponent
        if abs(shift) > MOST_APART:
            raise ShapeError(f"{self.name}: exponents {input.exponent}, {self.output.exponent}.")
        rule = EspAverage(self.bits(input), shift, self.modes().way.rounding)
        return Pool(self.window(), "average", self.count_include_pad, rule=rule)


class GlobalMaxPool2D(MaxPool2D):
    """The largest element of each channel."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__((1, 1), name=name)

    def build(self, input: Tensor) -> None:
        """Set the output's shape."""
        self.filter_shape = list(input.shape[:2])
        super().build(input)


class GlobalAvgPool2D(AvgPool2D):
    """The average of each channel."""

    def __init__(self, output_exponent: int, name: str | None = None) -> None:
        super().__init__(output_exponent, (1, 1), name=name)

    def build(self, input: Tensor) -> None:
        """Set the output's shape."""
        self.filter_shape = list(input.shape[:2])
        super().build(input)

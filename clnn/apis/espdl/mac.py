"""Layers that multiply and accumulate: Conv2D, DepthwiseConv2D, FullyConnected."""

from __future__ import annotations

import math
from collections.abc import Sequence

from clnn.apis.espdl.base import Layer
from clnn.apis.espdl.constants import Activation, ActivationType, Bias, Filter, PaddingType
from clnn.apis.espdl.shapes import get_output_shape, get_pad_size, window_of
from clnn.apis.espdl.tensor import Tensor
from clnn.apis.images import digest, from_image, to_image
from clnn.arith.espdl import EspProducts
from clnn.arith.espdl_maps import EspSlope
from clnn.errors import ShapeError
from clnn.graph.builder import GraphBuilder
from clnn.ops.conv.spec import Conv2d
from clnn.ops.elementwise.fixed_map import FixedMap
from clnn.ops.espdl.build import Exponents, products
from clnn.ops.shared.window import Window
from clnn.types import Array

POINT = Window((1, 1), (1, 1), (1, 1), (0, 0), (0, 0))
ZERO = (0, 0, 0, 0)


class _Products(Layer):
    """What these layers have in common: filter, bias, activation."""

    depthwise = False

    def __init__(
        self,
        output_exponent: int,
        filter: Filter,
        bias: Bias | None,
        activation: Activation | None,
        name: str | None,
    ) -> None:
        super().__init__(name, output_exponent)
        self.filter, self.bias, self.activation = filter, bias, activation
        self._weights = filter.weights(self.depthwise)
        count = len(self._weights)
        if bias is not None and bias.element.size != count:
            raise ShapeError(f"{self.name} has a bias of {bias.element.size} for {count} filters.")
        slopes = 0 if activation is None else activation.element.size
        if slopes not in (0, 1, count):
            raise ShapeError(f"{self.name} has {slopes} slopes for {count} channels.")

    def arithmetic(self, input: Tensor) -> tuple[EspProducts, Array | None]:
        """Return how sums are computed, and the bias."""
        bias = self.bias
        exponents = Exponents(
            input.exponent,
            self.filter.exponents,
            self.output.exponent,
            () if bias is None else bias.exponents,
        )
        relu = self.activation is not None and self.activation.type == ActivationType.ReLU
        element = None if bias is None else bias.element
        return products(self.bits(input), exponents, self._weights, element, self.modes().way, relu)

    def finish(self, build: GraphBuilder, value: str) -> str:
        """Add a leaky activation behind sums (height, width, channel)."""
        activation = self.activation
        if activation is None or not activation.element.size:
            return value
        dtype = self.output.dtype
        slope = EspSlope(8 * dtype.itemsize, -activation.exponent)
        return build.add(FixedMap(slope), value, build.const(activation.element.astype(dtype)))

    def compute(self, input: Tensor, window: Window, group: int) -> Tensor:
        """Return the output for an input seen as an image."""
        arith, bias = self.arithmetic(input)
        spec, weights, shape = Conv2d(window, group, arith=arith), self._weights, self.output.shape

        def ops(build: GraphBuilder, value: str) -> str:
            seen = value
            if window is POINT:  # rows as the pixels of an image
                rows = math.prod(build.shape(value)) // weights.shape[1]
                seen = build.reshape(value, (1, rows, weights.shape[1]))
            fixed = None if bias is None else build.const(bias)
            made = build.add(spec, from_image(build, seen), build.const(weights), fixed)
            return build.reshape(self.finish(build, to_image(build, made)), shape)

        held = [a for a in (weights, bias) if a is not None]
        slopes = () if self.activation is None else (digest(self.activation.element),)
        kind = 0 if self.activation is None else (self.activation.type, self.activation.exponent)
        return self.run((spec, digest(*held), kind, slopes, tuple(shape)), ops, input)


class Conv2D(_Products):
    """Activation(convolution of the input with the filter, plus bias)."""

    def __init__(
        self,
        output_exponent: int,
        filter: Filter,
        bias: Bias | None = None,
        activation: Activation | None = None,
        padding_type: PaddingType = PaddingType.PADDING_VALID,
        stride_y: int = 1,
        stride_x: int = 1,
        name: str | None = None,
        padding: Sequence[int] = ZERO,
    ) -> None:
        """padding: [top, bottom, left, right] of PADDING_NOT_SET."""
        super().__init__(output_exponent, filter, bias, activation, name)
        self.padding_type, self.strides = padding_type, (stride_y, stride_x)
        self.padding = [int(p) for p in padding]

    def build(self, input: Tensor) -> None:
        """Set the output's shape, and let the input's padding grow. Raises ShapeError."""
        reach, channels = self.filter.shape_with_dilation, len(self._weights)
        wanted = channels if self.depthwise else self._weights.shape[1]
        if len(input.shape) != 3 or input.shape[2] != wanted:
            raise ShapeError(f"{self.name} of {input.shape}: the filter takes {wanted} channels.")
        where = (*self.strides, self.padding_type)
        shape = get_output_shape(input.shape, reach, *where, channels, self.padding)
        self.padding = get_pad_size(shape, input.shape, reach, *where, self.padding)
        input.set_padding_size(self.padding)
        self.built(shape, input)

    def call(self, input: Tensor) -> Tensor:
        """Return the output."""
        kernel = self.filter.shape[:2]
        window = window_of(kernel, self.strides, self.padding, self.filter.dilation)
        return self.compute(input, window, len(self._weights) if self.depthwise else 1)


class DepthwiseConv2D(Conv2D):
    """The same with one filter for each channel, of shape (height, width, channels, 1)."""

    depthwise = True


class FullyConnected(_Products):
    """Activation(input times filter, plus bias). The filter is (1, 1, inputs, outputs).

    flatten: the input is one row; else its last axis is, and the others stay.
    """

    def __init__(
        self,
        output_exponent: int,
        filter: Filter,
        bias: Bias | None = None,
        activation: Activation | None = None,
        flatten: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(output_exponent, filter, bias, activation, name)
        self.flatten = flatten
        if filter.shape[:2] != (1, 1):
            raise ShapeError(f"{self.name} has a filter {filter.shape}: it needs (1, 1, in, out).")

    def build(self, input: Tensor) -> None:
        """Set the output's shape. Raises ShapeError where the input has other counts."""
        outs, inputs = self._weights.shape[:2]
        given = math.prod(input.shape) if self.flatten else (input.shape or [0])[-1]
        if given != inputs:
            raise ShapeError(f"{self.name} of {input.shape}: the filter takes {inputs} elements.")
        self.built([outs] if self.flatten else [*input.shape[:-1], outs], input)

    def call(self, input: Tensor) -> Tensor:
        """Return the output."""
        return self.compute(input, POINT, 1)

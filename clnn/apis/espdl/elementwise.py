"""Add2D, Sub2D, Mul2D, Max2D, Min2D, activations, Softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from clnn.apis.espdl.base import Layer
from clnn.apis.espdl.constants import Activation, ActivationType
from clnn.apis.espdl.tensor import Tensor
from clnn.apis.images import digest
from clnn.arith import espdl_maps as maps
from clnn.arith._base import Elementwise
from clnn.arith.mli_maps import FixedExtreme
from clnn.arith.quantised_maps import Dequantise
from clnn.errors import ShapeError
from clnn.graph.builder import GraphBuilder
from clnn.ops.elementwise.fixed_map import FixedMap
from clnn.ops.espdl.nodes import clip, sigmoid
from clnn.ops.rows.softmax import Softmax as SoftmaxRows
from clnn.types import Array, normalise_axis


class _Binary(Layer):
    """A function of two tensors of one shape, perhaps with an activation behind it."""

    def __init__(
        self,
        output_exponent: int | None = None,
        activation: Activation | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name, output_exponent)
        self.activation = activation

    def build(self, input0: Tensor, input1: Tensor) -> None:
        """Set the output's shape. Raises ShapeError for inputs of two shapes."""
        if input0.shape != input1.shape or input0.dtype != input1.dtype:
            raise ShapeError(
                f"{self.name} of {input0.shape} {input0.dtype} and {input1.shape} {input1.dtype}:"
                " they must be equal."
            )
        self.built(input0.shape, input0, input1)

    def function(self, bits: int, exponents: tuple[int, int]) -> Elementwise:
        """Return the function."""
        raise NotImplementedError

    def call(self, input0: Tensor, input1: Tensor) -> Tensor:
        """Return the output."""
        bits, activation = self.bits(input0), self.activation
        steps: list[Elementwise] = [self.function(bits, (input0.exponent, input1.exponent))]
        slopes: Array | None = None
        if activation is not None and activation.type == ActivationType.ReLU:
            steps.append(clip(bits))
        elif activation is not None and activation.element.size:
            steps.append(maps.EspSlope(bits, -activation.exponent))
            slopes = activation.element.astype(input0.dtype)

        def ops(build: GraphBuilder, a: str, b: str) -> str:
            made = build.add(FixedMap(steps[0]), a, b)
            for step in steps[1:]:
                others = [] if slopes is None else [build.const(slopes)]
                made = build.add(FixedMap(step), made, *others)
            return made

        key = (tuple(steps), b"" if slopes is None else digest(slopes))
        return self.run(key, ops, input0, input1)


class Add2D(_Binary):
    """input0 + input1, saturated."""

    minus: ClassVar[bool] = False

    def function(self, bits: int, exponents: tuple[int, int]) -> Elementwise:
        """Return the sum."""
        rounding = self.modes().way.rounding
        return maps.total(bits, exponents, self.output.exponent, self.minus, rounding)


class Sub2D(Add2D):
    """input0 - input1, saturated."""

    minus = True


class Mul2D(_Binary):
    """input0 * input1, saturated."""

    def function(self, bits: int, exponents: tuple[int, int]) -> Elementwise:
        """Return the product."""
        return maps.product(bits, exponents, self.output.exponent, self.modes().way.rounding)


class Max2D(_Binary):
    """The larger of two elements."""

    larger: ClassVar[bool] = True

    def __init__(self, name: str | None = None) -> None:
        super().__init__(None, None, name)

    def build(self, input0: Tensor, input1: Tensor) -> None:
        """Set the output's shape. Raises ShapeError for two shapes or exponents."""
        self.same_exponents(input0, input1)
        super().build(input0, input1)

    def function(self, bits: int, exponents: tuple[int, int]) -> Elementwise:
        """Return the extreme."""
        return FixedExtreme(bits, 0, self.larger, True)


class Min2D(Max2D):
    """The smaller of two elements."""

    larger = False


class _Unary(Layer):
    """A function of each element."""

    def build(self, input: Tensor) -> None:
        """Set the output's shape and exponent."""
        self.built(input.shape, input)

    def function(self, input: Tensor) -> Elementwise:
        """Return the function."""
        raise NotImplementedError

    def operands(self, input: Tensor) -> tuple[Array, ...]:
        """Return further operands of the function."""
        return ()

    def call(self, input: Tensor) -> Tensor:
        """Return the output."""
        function, others = self.function(input), self.operands(input)

        def ops(build: GraphBuilder, value: str) -> str:
            return build.add(FixedMap(function), value, *(build.const(o) for o in others))

        return self.run((function, digest(*others)), ops, input)


class ReLU(_Unary):
    """Negative elements become 0."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)

    def function(self, input: Tensor) -> Elementwise:
        """Return the function."""
        return clip(self.bits(input))


class LeakyReLU(_Unary):
    """Negative elements times an integer of 2**activation_exponent, rounded down."""

    def __init__(
        self, activation_alpha: int, activation_exponent: int, name: str | None = None
    ) -> None:
        super().__init__(name)
        self.slopes, self.exponent = np.array([activation_alpha], np.int64), activation_exponent

    def function(self, input: Tensor) -> Elementwise:
        """Return the function."""
        return maps.EspSlope(self.bits(input), -self.exponent)

    def operands(self, input: Tensor) -> tuple[Array, ...]:
        """Return the slopes. Raises ShapeError for another number than of channels."""
        if self.slopes.size not in (1, input.shape[-1]):
            raise ShapeError(f"{self.name} has {self.slopes.size} slopes for {input.shape}.")
        return (self.slopes.astype(input.dtype),)


class PReLU(LeakyReLU):
    """The same with a slope for each channel."""

    def __init__(
        self, activation_element: Sequence[int], activation_exponent: int, name: str | None = None
    ) -> None:
        super().__init__(0, activation_exponent, name)
        self.slopes = np.asarray(activation_element, np.int64).reshape(-1)


class Sigmoid(_Unary):
    """1 / (1 + exp(-x)), as a table of all inputs."""

    def __init__(self, output_exponent: int, name: str | None = None) -> None:
        super().__init__(name, output_exponent)

    def function(self, input: Tensor) -> Elementwise:
        """Return the table."""
        way, real = self.modes().way, sigmoid if type(self) is Sigmoid else np.tanh
        bits = self.bits(input)
        return maps.tabulated(bits, input.exponent, self.output.exponent, real, way.rounding)


class Tanh(Sigmoid):
    """The hyperbolic tangent, as a table of all inputs."""


class Softmax(Layer):
    """exp(x) over its sum along an axis, in float32.

    output_exponent: of the output's integers; None for an output of float32, as 3.x has it.
    """

    def __init__(
        self, output_exponent: int | None = None, axis: int = -1, name: str | None = None
    ) -> None:
        super().__init__(name, 0 if output_exponent is None else output_exponent)
        self.real, self.axis = output_exponent is None, axis

    def build(self, input: Tensor) -> None:
        """Set the output's shape and type."""
        self.bits(input)
        normalise_axis(self.axis, len(input.shape))
        self.built(input.shape, input, kind=np.float32 if self.real else input.dtype)

    def call(self, input: Tensor) -> Tensor:
        """Return the output."""
        scale = np.array(maps.power(input.exponent), np.float32)
        axis = normalise_axis(self.axis, len(input.shape))
        way = self.modes().way
        last = maps.EspQuantise(self.bits(input), self.output.exponent, way.rounding)

        def ops(build: GraphBuilder, value: str) -> str:
            real = build.add(FixedMap(Dequantise()), value, build.const(scale))
            made = build.add(SoftmaxRows((axis,)), real)
            return made if self.real else build.add(FixedMap(last), made)

        return self.run((input.exponent, axis, self.real, last), ops, input)

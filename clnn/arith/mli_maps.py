"""embARC MLI 2.0: elementwise functions in fx8, fx16 and sa8 (kernels_cl/_arith/mli_map.cl.mako).

The fields of each class are the integers that its kernel is made of; functions at the end derive
them from the operands' quantisation. `up` is the rounding mode: ties up, else to even.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from clnn.arith._base import Array, IntegerMap
from clnn.arith.mli_primitives import (
    add,
    cast,
    divide,
    limits,
    normalise,
    redundant_sign_bits,
    round_shift,
    saturate,
    shift_left,
    wrap,
)
from clnn.arith.mli_quant import Quant, narrowed, rescale
from clnn.records import dataclass
from clnn.types import I8, I16, I32, DType

BY_BITS = {8: I8, 16: I16, 32: I32}
SUM, DIFFERENCE, PRODUCT, LARGER, SMALLER = "add", "sub", "mul", "max", "min"


class MliMap(IntegerMap):
    """A function of MLI."""

    library = "_arith/mli_map.cl.mako"
    name: ClassVar[str]
    up: bool = False


def end(value: Array, zero: int, bits: int) -> Array:
    """Return a 16-bit value moved by a zero point, saturated in 16 bits and then in `bits`."""
    return saturate(saturate(value + zero, 16), bits)


@dataclass(frozen=True)
class FixedSum(MliMap):
    """a * 2**left[0] + (or -) b * 2**left[1], rounded to the output's fraction."""

    bits: int
    left: tuple[int, int]
    shift: int
    minus: bool = False
    up: bool = False

    name = "fixed_sum"

    @property
    def types(self) -> tuple[DType, ...]:
        """Three tensors of one format."""
        return (BY_BITS[self.bits],) * 3

    def compute(self, *operands: Array) -> Array:
        """Return the aligned sum, saturated to 32 bits, rounded in 64."""
        a, b = (shift_left(o, n, 32) for o, n in zip(operands, self.left, strict=True))
        total = add(a, -b if self.minus else b, 32)
        return cast(total, self.shift, 64, self.bits, self.up)


@dataclass(frozen=True)
class FixedProduct(MliMap):
    """a * b, rounded to the output's fraction."""

    bits: int
    shift: int
    up: bool = False

    name = "fixed_product"

    @property
    def types(self) -> tuple[DType, ...]:
        """Three tensors of one format."""
        return (BY_BITS[self.bits],) * 3

    def compute(self, *operands: Array) -> Array:
        """Return the product rounded in 64 bits."""
        return cast(operands[0] * operands[1], self.shift, 64, self.bits, self.up)


@dataclass(frozen=True)
class FixedExtreme(MliMap):
    """The larger or smaller of a and b, rounded to the output's fraction in the element's width."""

    bits: int
    shift: int
    larger: bool = True
    up: bool = False

    name = "fixed_extreme"

    @property
    def types(self) -> tuple[DType, ...]:
        """Three tensors of one format."""
        return (BY_BITS[self.bits],) * 3

    def compute(self, *operands: Array) -> Array:
        """Return the extreme, shifted."""
        chosen = (np.maximum if self.larger else np.minimum)(*operands)
        return cast(chosen, self.shift, self.bits, self.bits, self.up)


@dataclass(frozen=True)
class AffineSum(MliMap):
    """The sum or difference of two sa8 tensors, each scaled to the output's scale."""

    zeros: tuple[int, int, int]
    scales: tuple[int, int]
    shifts: tuple[int, int]
    minus: bool = False
    up: bool = False

    name = "affine_sum"
    types = (I8, I8, I8)

    def compute(self, *operands: Array) -> Array:
        """Return the sum of both scaled operands."""
        a, b = (
            round_shift((o - z) * f, n, 32, self.up)
            for o, z, f, n in zip(operands, self.zeros[:2], self.scales, self.shifts, strict=True)
        )
        total = add(a, -b if self.minus else b, 32)
        return end(saturate(total, 16), self.zeros[2], 8)


@dataclass(frozen=True)
class AffineProduct(MliMap):
    """The product of two sa8 tensors: rounded to 16 bits by `first`, scaled, rounded by `shift`."""

    zeros: tuple[int, int, int]
    scale: int
    first: int
    shift: int
    up: bool = False

    name = "affine_product"
    types = (I8, I8, I8)

    def compute(self, *operands: Array) -> Array:
        """Return the scaled product."""
        product = (operands[0] - self.zeros[0]) * (operands[1] - self.zeros[1])
        short = cast(product, self.first, 32, 16, self.up)
        return end(cast(short * self.scale, self.shift, 32, 16, self.up), self.zeros[2], 8)


@dataclass(frozen=True)
class AffineExtreme(MliMap):
    """The larger or smaller of two sa8 tensors, both at the first one's scale."""

    zeros: tuple[int, int, int]
    scale: int
    shift: int
    larger: bool = True
    up: bool = False

    name = "affine_extreme"
    types = (I8, I8, I8)

    def compute(self, *operands: Array) -> Array:
        """Return the scaled extreme."""
        a, b = ((o - z) * self.scale for o, z in zip(operands, self.zeros[:2], strict=True))
        chosen = np.maximum(a, b) if self.larger else np.minimum(a, b)
        return end(cast(chosen, self.shift, 32, 16, self.up), self.zeros[2], 8)


@dataclass(frozen=True)
class Clip(MliMap):
    """Values below `low` and above `high` become these."""

    bits: int
    low: int
    high: int

    name = "clip"

    @property
    def types(self) -> tuple[DType, ...]:
        """Two tensors of one format."""
        return (BY_BITS[self.bits],) * 2

    def compute(self, *operands: Array) -> Array:
        """Return the clipped operand."""
        return np.maximum(np.minimum(operands[0], self.high), self.low)


@dataclass(frozen=True)
class Complement(MliMap):
    """`top` less the operand."""

    bits: int
    top: int

    name = "complement"

    @property
    def types(self) -> tuple[DType, ...]:
        """Two tensors of one format."""
        return (BY_BITS[self.bits],) * 2

    def compute(self, *operands: Array) -> Array:
        """Return the saturated difference."""
        return saturate(self.top - operands[0], self.bits)


@dataclass(frozen=True)
class FixedLeaky(MliMap):
    """x, or where it is negative x * slope, rounded; operands x and slope."""

    bits: int
    shift: int
    up: bool = False

    name = "fixed_leaky"

    @property
    def types(self) -> tuple[DType, ...]:
        """Input, slope and output of one format."""
        return (BY_BITS[self.bits],) * 3

    def compute(self, *operands: Array) -> Array:
        """Return positive parts plus scaled negative ones."""
        x, slope = operands
        scaled = cast(wrap(np.minimum(x, 0) * slope, 32), self.shift, 32, self.bits, self.up)
        return saturate(np.maximum(x, 0) + scaled, self.bits)


@dataclass(frozen=True)
class AffineLeaky(MliMap):
    """sa8 x scaled to the output, by its own multiplier and shift where it is below zero.

    Operands: x, then multiplier and shift of the negative side, which may differ along an axis.
    """

    zero_in: int
    zero_out: int
    scale: int
    shift: int
    up: bool = False

    name = "affine_leaky"
    types = (I8, I32, I32, I8)

    def compute(self, *operands: Array) -> Array:
        """Return both sides, chosen by the sign."""
        x, scale, shift = operands
        given = x - self.zero_in
        above = round_shift(given * self.scale, self.shift, 32, self.up)
        below = round_shift(given * scale, shift, 32, self.up)
        return saturate(add(np.where(given >= 0, above, below), self.zero_out, 32), 8)


def binary(op: str, a: Quant, b: Quant, out: Quant, up: bool) -> MliMap:
    """Return the function of mli_krn_eltwise_OP for these operands."""
    return _affine(op, a, b, out, up) if out.affine else _fixed(op, a, b, out, up)


def _fixed(op: str, a: Quant, b: Quant, out: Quant, up: bool) -> MliMap:
    bits = out.bits
    if op == PRODUCT:
        return FixedProduct(bits, min(a.frac + b.frac - out.frac, 2 * bits - 1), up)
    if op in (LARGER, SMALLER):
        return FixedExtreme(bits, min(a.frac - out.frac, bits - 1), op == LARGER, up)
    left = max(b.frac - a.frac, 0), max(a.frac - b.frac, 0)
    shift = min(max(a.frac, b.frac) - out.frac, 2 * bits - 1)
    return FixedSum(bits, left, shift, op == DIFFERENCE, up)


def _affine(op: str, a: Quant, b: Quant, out: Quant, up: bool) -> MliMap:
    zeros = (a.zero, b.zero, out.zero)
    if op in (SUM, DIFFERENCE):
        one, two = (narrowed(*_scaled(q.scale, q.frac, out, up), 23, up) for q in (a, b))
        return AffineSum(zeros, (one[0], two[0]), (one[1], two[1]), op == DIFFERENCE, up)
    if op == PRODUCT:
        scale, shift = _scaled(a.scale * b.scale, a.frac + b.frac, out, up)
        scale, shift = narrowed(scale, shift, 31, up)
        first = min(max(shift - 21, 0), 3)
        return AffineProduct(zeros, scale, first, shift - first, up)
    scale, shift = narrowed(*_scaled(a.scale, a.frac, out, up), 23, up)
    return AffineExtreme(zeros, scale, shift, op == LARGER, up)


def _scaled(scale: int, frac: int, out: Quant, up: bool) -> tuple[int, int]:
    """Return (multiplier of 16 bits, shift) from a scale to the output's."""
    n = redundant_sign_bits(scale)
    value, more = normalise(divide(scale << n, out.scale), 32, 16, up)
    return value, n + frac - out.frac - more


def fixed_leaky(x: Quant, slope: Quant, out: Quant, up: bool) -> FixedLeaky:
    """Return PReLU in fx8 or fx16."""
    return FixedLeaky(out.bits, min(x.frac + slope.frac - out.frac, 31), up)


def normalised_slope(
    x: Quant, slope: Quant, value: int, out: Quant, up: bool
) -> tuple[int, FixedLeaky]:
    """Return (slope, function) of leaky ReLU: in fx16 its slope is normalised first."""
    shift, moved = x.frac + slope.frac - out.frac, 0
    if out.bits == 16:
        value, moved = normalise(value, 16, 16, up)
    return value, FixedLeaky(out.bits, min(shift - moved, 31), up)


def affine_leaky(
    x: Quant, slopes: Sequence[tuple[int, Quant]], out: Quant, up: bool
) -> tuple[AffineLeaky, Array, Array]:
    """Return (function, multipliers, shifts) of leaky ReLU or PReLU in sa8.

    slopes: each slope's integer and quantisation; multipliers and shifts are int32, one for each.
    """
    scale, shift = rescale(x, out, up)
    left = max(-shift, 0)
    scale, shift = int(shift_left(scale, left, 16)), max(shift, 0)
    found = [_slope_scaling(v, q, scale, shift, up) for v, q in slopes]
    multipliers, shifts = np.array(found, np.int32).reshape(-1, 2).T
    return AffineLeaky(x.zero, out.zero, scale, shift, up), multipliers, shifts


def _slope_scaling(value: int, slope: Quant, scale: int, shift: int, up: bool) -> tuple[int, int]:
    short, more = normalise((value - slope.zero) * slope.scale, 32, 16, up)
    below = shift + slope.frac - more
    short, more = normalise(scale * short, 32, 16, up)
    return short, below - more


def clip(quant: Quant, low: int, high: int) -> Clip:
    """Return the function that keeps a tensor between two limits."""
    least, most = limits(quant.bits)
    return Clip(quant.bits, max(low, least), min(high, most))

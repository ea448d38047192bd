"""embARC MLI 2.0: quantisation of a tensor, limits of the ReLUs, and scaling from one to another.

A real value is (integer - zero) * scale * 2**-frac; fx tensors have scale 1 and zero 0.
"""

from __future__ import annotations

from clnn.arith.mli_primitives import (
    cast,
    divide,
    limits,
    normalise,
    redundant_sign_bits,
    round_shift,
    saturate,
)
from clnn.records import dataclass

RELU_NONE, RELU_GEN, RELU_1, RELU_6 = 0, 1, 2, 3


@dataclass(frozen=True)
class Quant:
    """How the integers of one tensor stand for real values.

    bits: of an element. affine: an sa format, which may have a scale and a zero point.
    """

    bits: int
    frac: int = 0
    scale: int = 1
    zero: int = 0
    affine: bool = False


@dataclass(frozen=True)
class Requant:
    """Multiplier (16 bits), rounding shift, and what is added after it."""

    scale: int
    shift: int
    offset: int


def requant(given: Quant, wanted: Quant, up: bool) -> Requant:
    """Return the scaling of one tensor's integers to another's, with both zero points folded in."""
    scale, shift = rescale(given, wanted, up)
    moved = int(cast(scale * given.zero, shift, 32, 16, up))
    return Requant(scale, shift, int(saturate(wanted.zero - moved, 16)))


def rescale(given: Quant, wanted: Quant, up: bool) -> tuple[int, int]:
    """Return (multiplier of 16 bits, rounding shift) from one tensor's scale to another's."""
    before = redundant_sign_bits(given.scale) - redundant_sign_bits(wanted.scale, 16)
    moved = given.scale << before if before >= 0 else given.scale >> -before
    scale, after = normalise(divide(moved, wanted.scale), 32, 16, up)
    return scale, before + given.frac - wanted.frac - after


def relu_limits(kind: int, quant: Quant) -> tuple[int, int]:
    """Return the least and largest integer that a ReLU of MLI lets through in a tensor."""
    low, high = limits(quant.bits)
    if kind == RELU_NONE:
        return low, high
    if kind == RELU_GEN:
        return max(quant.zero, low), high
    if kind == RELU_6:
        return max(quant.zero, low), min(_six(quant, high) + quant.zero, high)
    one = _one(quant, high)
    return max(quant.zero - one, low), min(quant.zero + one, high)


def _six(quant: Quant, most: int) -> int:
    shift = quant.frac
    if shift >= 0:
        return divide(6 << shift, quant.scale) if shift < 28 else most
    return divide(6 >> -shift, quant.scale) if shift > -3 else 0


def _one(quant: Quant, most: int) -> int:
    shift = quant.frac
    if shift < 0:
        return 0
    return divide(1 << shift, quant.scale) if shift < 30 else most


def narrowed(scale: int, shift: int, least: int, up: bool) -> tuple[int, int]:
    """Return (multiplier, shift) with the shift brought into least..23 (or 31) for 32-bit products.

    least: 23 for sums, 31 for products: the largest shift that is left as it is.
    """
    excess = max(shift - least, 0) + min(31 + shift, 0)
    return int(round_shift(scale, excess, 16, up)), shift - excess

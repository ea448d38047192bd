"""embARC MLI 2.0: mli_hlp_convert_tensor, from any format to any other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from clnn.arith._base import Array
from clnn.arith.mli_maps import BY_BITS, MliMap
from clnn.arith.mli_primitives import add, redundant_sign_bits, round_shift, saturate, shift_left
from clnn.arith.mli_quant import Quant, rescale
from clnn.types import F32, DType


@dataclass(frozen=True)
class ConvertShort(MliMap):
    """Integers of at most 16 bits to such: (x - zero_in) * scale, rounded, + zero_out."""

    bits: tuple[int, int]
    zeros: tuple[int, int]
    scale: int
    shift: int
    up: bool = False

    name = "convert_short"

    @property
    def types(self) -> tuple[DType, ...]:
        """From and to."""
        return (BY_BITS[self.bits[0]], BY_BITS[self.bits[1]])

    def compute(self, *operands: Array) -> Array:
        """Return the rounded product in 32 bits."""
        given = saturate(operands[0] - self.zeros[0], 16)
        moved = round_shift(given * self.scale, self.shift, 32, self.up)
        return saturate(add(moved, self.zeros[1], 32), self.bits[1])


@dataclass(frozen=True)
class ConvertLong(MliMap):
    """As ConvertShort where one side has 32 bits: the high half of a normalised product.

    scale: normalised to 32 bits. shift: before the normalisation of each element adds its own.
    """

    bits: tuple[int, int]
    zeros: tuple[int, int]
    scale: int
    shift: int
    up: bool = False

    name = "convert_long"

    @property
    def types(self) -> tuple[DType, ...]:
        """From and to."""
        return (BY_BITS[self.bits[0]], BY_BITS[self.bits[1]])

    def compute(self, *operands: Array) -> Array:
        """Return the rounded high half."""
        given = saturate(operands[0] - self.zeros[0], 32)
        norm = sign_bits(given)
        high = ((given << norm) * self.scale) >> 32
        moved = round_shift(high, norm + self.shift, 32, self.up)
        return saturate(add(moved, self.zeros[1], 32), self.bits[1])


def sign_bits(x: Array, bits: int = 32) -> Array:
    """Return the redundant sign bits of each element in `bits` bits."""
    rest, length = np.where(x < 0, ~x, x), np.zeros_like(x)
    for step in (32, 16, 8, 4, 2, 1):
        big = rest >> step > 0
        length, rest = np.where(big, length + step, length), np.where(big, rest >> step, rest)
    return bits - 1 - (length + (rest > 0))


@dataclass(frozen=True)
class FromFloat(MliMap):
    """float32 to integers: x * factor, ties away from zero, + zero."""

    bits: int
    factor: float
    zero: int

    name = "from_float"

    @property
    def types(self) -> tuple[DType, ...]:
        """From and to."""
        return (F32, BY_BITS[self.bits])

    def compute(self, *operands: Array) -> Array:
        """Return the rounded integers; NaN as the least one."""
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = operands[0] * np.float32(self.factor)
            half = np.where(scaled > 0, np.float32(0.5), np.float32(-0.5))
            moved = np.trunc((scaled + half).astype(np.float32)).astype(np.float64)
        whole = np.clip(np.nan_to_num(moved, nan=-(2.0**31)), -(2.0**31), 2.0**31 - 1)
        return saturate(add(whole.astype(np.int64), self.zero, 32), self.bits)


@dataclass(frozen=True)
class ToFloat(MliMap):
    """Integers to float32: (x - zero) * factor."""

    bits: int
    factor: float
    zero: int

    name = "to_float"

    @property
    def types(self) -> tuple[DType, ...]:
        """From and to."""
        return (BY_BITS[self.bits], F32)

    def compute(self, *operands: Array) -> Array:
        """Return the product in single precision."""
        return (operands[0] - self.zero).astype(np.float32) * np.float32(self.factor)


def convert(given: Quant | None, wanted: Quant | None, up: bool) -> MliMap:
    """Return the conversion of a tensor; None stands for float32, which one side may be."""
    if given is None and wanted is not None:
        factor = np.ldexp(np.float32(1) / np.float32(wanted.scale), wanted.frac)
        return FromFloat(wanted.bits, float(factor), wanted.zero)
    assert given is not None
    if wanted is None:
        return ToFloat(given.bits, float(np.ldexp(np.float32(given.scale), -given.frac)), given.zero)
    scale, shift = rescale(given, wanted, up)
    common: dict[str, Any] = {
        "bits": (given.bits, wanted.bits), "zeros": (given.zero, wanted.zero), "up": up,
    }  # fmt: skip
    if 32 not in common["bits"]:
        return ConvertShort(scale=scale, shift=min(shift, 31), **common)
    norm = redundant_sign_bits(scale)
    moved = int(shift_left(scale, norm, 32))
    return ConvertLong(scale=moved, shift=min(shift, 63) + norm - 32, **common)

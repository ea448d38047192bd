"""embARC MLI 2.0: mli_hlp_convert_tensor, from any format to any other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clnn.arith._base import Array
from clnn.arith.mli_maps import BY_BITS, MliMap
from clnn.arith.mli_primitives import add, redundant_sign_bits, round_shift, saturate
from clnn.arith.mli_quant import Quant, rescale
from clnn.records import dataclass
from clnn.types import F32, I32, DType


@dataclass(frozen=True)
class ConvertShort(MliMap):
    """Integers of at most 16 bits to such: (x - zero_in) * scale, rounded, + zero_out.

    Operands: x, zero_in, scale, shift, zero_out, of which the last four may differ along an axis.
    """

    bits: tuple[int, int]
    up: bool = False

    name = "convert_short"

    @property
    def types(self) -> tuple[DType, ...]:
        """From, scaling, and to."""
        return (BY_BITS[self.bits[0]], I32, I32, I32, I32, BY_BITS[self.bits[1]])

    def compute(self, *operands: Array) -> Array:
        """Return the rounded product in 32 bits."""
        x, zero_in, scale, shift, zero_out = operands
        moved = round_shift(saturate(x - zero_in, 16) * scale, shift, 32, self.up)
        return saturate(add(moved, zero_out, 32), self.bits[1])


@dataclass(frozen=True)
class ConvertLong(MliMap):
    """As ConvertShort where one side has 32 bits: the high half of a normalised product.

    The scale is normalised to 32 bits; to the shift the normalisation of each element is added.
    """

    bits: tuple[int, int]
    up: bool = False

    name = "convert_long"

    @property
    def types(self) -> tuple[DType, ...]:
        """From, scaling, and to."""
        return (BY_BITS[self.bits[0]], I32, I32, I32, I32, BY_BITS[self.bits[1]])

    def compute(self, *operands: Array) -> Array:
        """Return the rounded high half."""
        x, zero_in, scale, shift, zero_out = operands
        given = saturate(x - zero_in, 32)
        norm = sign_bits(given)
        moved = round_shift(((given << norm) * scale) >> 32, norm + shift, 32, self.up)
        return saturate(add(moved, zero_out, 32), self.bits[1])


def sign_bits(x: Array, bits: int = 32) -> Array:
    """Return the redundant sign bits of each element in `bits` bits."""
    rest, length = np.where(x < 0, ~x, x), np.zeros_like(x)
    for step in (32, 16, 8, 4, 2, 1):
        big = rest >> step > 0
        length, rest = np.where(big, length + step, length), np.where(big, rest >> step, rest)
    return bits - 1 - (length + (rest > 0))


@dataclass(frozen=True)
class FromFloat(MliMap):
    """float32 to integers: x * factor, ties away from zero, + zero; a NaN counts as 0.

    Operands: x, factor, zero.
    """

    bits: int
    up: bool = False

    name = "from_float"

    @property
    def types(self) -> tuple[DType, ...]:
        """From, scaling, and to."""
        return (F32, F32, I32, BY_BITS[self.bits])

    def compute(self, *operands: Array) -> Array:
        """Return the rounded integers."""
        x, factor, zero = operands
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = x.astype(np.float32) * factor.astype(np.float32)
            half = np.where(scaled > 0, np.float32(0.5), np.float32(-0.5))
            moved = np.trunc((scaled + half).astype(np.float32)).astype(np.float64)
        whole = np.clip(np.nan_to_num(moved, nan=0.0), -(2.0**31), 2.0**31 - 1)
        return saturate(add(whole.astype(np.int64), zero, 32), self.bits)


@dataclass(frozen=True)
class ToFloat(MliMap):
    """Integers to float32: (x - zero) * factor. Operands: x, factor, zero."""

    bits: int
    up: bool = False

    name = "to_float"

    @property
    def types(self) -> tuple[DType, ...]:
        """From, scaling, and to."""
        return (BY_BITS[self.bits], F32, I32, F32)

    def compute(self, *operands: Array) -> Array:
        """Return the product in single precision."""
        x, factor, zero = operands
        return saturate(x - zero, 32).astype(np.float32) * factor.astype(np.float32)


def convert(
    given: Sequence[Quant] | None, wanted: Sequence[Quant] | None, up: bool
) -> tuple[MliMap, list[Array]]:
    """Return (function, further operands) that convert a tensor.

    given, wanted: quantisation for each index of the axis that has several, else one; None stands
    for float32, which one side may be.
    """
    if given is None:
        assert wanted is not None
        found = [(np.ldexp(np.float32(1) / np.float32(q.scale), q.frac), q.zero) for q in wanted]
        return FromFloat(wanted[0].bits, up), _columns(found)
    if wanted is None:
        found = [(np.ldexp(np.float32(q.scale), -q.frac), q.zero) for q in given]
        return ToFloat(given[0].bits, up), _columns(found)
    bits = given[0].bits, wanted[0].bits
    count = max(len(given), len(wanted))
    pairs = [(given[k % len(given)], wanted[k % len(wanted)]) for k in range(count)]
    rows = np.array([_scaling(g, w, up) for g, w in pairs], np.int32)
    function: MliMap = ConvertLong(bits, up) if 32 in bits else ConvertShort(bits, up)
    return function, [np.ascontiguousarray(column) for column in rows.T]


def _columns(rows: Sequence[tuple[Any, int]]) -> list[Array]:
    factors, zeros = zip(*rows, strict=True)
    return [np.array(factors, np.float32), np.array(zeros, np.int32)]


def _scaling(given: Quant, wanted: Quant, up: bool) -> tuple[int, int, int, int]:
    scale, shift = rescale(given, wanted, up)
    if 32 not in (given.bits, wanted.bits):
        return given.zero, scale, min(shift, 31), wanted.zero
    norm = redundant_sign_bits(scale)
    return given.zero, scale << norm, min(shift, 63) + norm - 32, wanted.zero

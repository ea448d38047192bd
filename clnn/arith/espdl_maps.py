"""ESP-DL: elementwise functions and averages of int8 and int16 (kernels_cl/_arith/espdl_map.cl.mako).

The fields of each class are the integers that its kernel is made of. Rounding is one of
clnn.arith.espdl.ROUNDINGS; shifts are the exponent of the result less that of what is shifted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import ClassVar

import numpy as np

from clnn.arith._base import Array, Averaging, Elementwise, IntegerMap
from clnn.arith.espdl import BY_BITS, FLOOR, HALF_EVEN, HALF_UP, clamped, moved, rounded
from clnn.arith.mli_primitives import saturate
from clnn.arith.quantised_maps import ByteTable, every_byte
from clnn.errors import DTypeError
from clnn.records import dataclass
from clnn.types import F32, I8, I16, DType

MOST_APART = 31  # bits by which exponents of the operands of a sum, or of an average, may differ


class EspMap(IntegerMap):
    """A function of ESP-DL."""

    library = "_arith/espdl_map.cl.mako"
    name: ClassVar[str]
    rounding: str = HALF_UP


@dataclass(frozen=True)
class EspSum(EspMap):
    """a * 2**left[0] + (or -) b * 2**left[1], shifted to the result's exponent, saturated."""

    bits: int
    left: tuple[int, int] = (0, 0)
    shift: int = 0
    minus: bool = False
    rounding: str = HALF_UP

    name = "esp_sum"

    @property
    def types(self) -> tuple[DType, ...]:
        """Three tensors of one type."""
        return (BY_BITS[self.bits],) * 3

    def compute(self, *operands: Array) -> Array:
        """Return the aligned sum, shifted and saturated."""
        a, b = (o << n for o, n in zip(operands, self.left, strict=True))
        return saturate(moved(a - b if self.minus else a + b, self.shift, self.rounding), self.bits)


@dataclass(frozen=True)
class EspProduct(EspMap):
    """a * b, shifted to the result's exponent, saturated.

    single: the product is rounded to float32 first, and scaled and rounded there.
    """

    bits: int
    shift: int
    rounding: str = HALF_UP
    single: bool = False

    name = "esp_product"

    @property
    def types(self) -> tuple[DType, ...]:
        """Three tensors of one type."""
        return (BY_BITS[self.bits],) * 3

    def compute(self, *operands: Array) -> Array:
        """Return the shifted product."""
        product = operands[0] * operands[1]
        if not self.single:
            return saturate(moved(product, self.shift, self.rounding), self.bits)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            scaled = product.astype(np.float32) * power(-self.shift)
            return clamped(rounded(scaled, self.rounding), self.bits)


@dataclass(frozen=True)
class EspSlope(EspMap):
    """x shifted by `keep`, or where it is negative x * slope shifted by `shift`, rounded down.

    Operands: x and slope.
    """

    bits: int
    shift: int
    keep: int = 0
    rounding: str = HALF_UP

    name = "esp_slope"

    @property
    def types(self) -> tuple[DType, ...]:
        """Input, slope and output of one type."""
        return (BY_BITS[self.bits],) * 3

    def compute(self, *operands: Array) -> Array:
        """Return both sides, chosen by the sign."""
        x, slope = operands
        below = moved(x * slope, self.shift, FLOOR)
        return saturate(np.where(x < 0, below, moved(x, self.keep, self.rounding)), self.bits)


@dataclass(frozen=True)
class EspRequantise(EspMap):
    """Integers of one exponent and width as those of another. bits: from, to."""

    bits: tuple[int, int]
    shift: int
    rounding: str = HALF_UP

    name = "esp_requantise"

    @property
    def types(self) -> tuple[DType, ...]:
        """From, to."""
        return tuple(BY_BITS[b] for b in self.bits)

    def compute(self, *operands: Array) -> Array:
        """Return the shifted operand."""
        return saturate(moved(operands[0], self.shift, self.rounding), self.bits[1])


@dataclass(frozen=True)
class EspQuantise(EspMap):
    """float32 numbers in steps of 2**exponent, rounded and saturated; a NaN becomes 0."""

    bits: int
    exponent: int
    rounding: str = HALF_UP

    name = "esp_quantise"

    @property
    def types(self) -> tuple[DType, ...]:
        """Real numbers to integers."""
        return (F32, BY_BITS[self.bits])

    def compute(self, *operands: Array) -> Array:
        """Return the rounded steps."""
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            steps = operands[0].astype(np.float32) * power(-self.exponent)
            return clamped(rounded(steps, self.rounding), self.bits)


@dataclass(frozen=True)
class EspTable(EspMap):
    """A function of int16 by a table of every 2**step-th input: the nearest entry, by `rounding`.

    Inputs count from the least one on, so that there are 2**(16 - step) entries and one behind them.
    """

    step: int
    entries: tuple[int, ...] = field(metadata={"data": True})
    rounding: str = HALF_UP

    name = "esp_table"
    types = (I16, I16)

    def tables(self) -> tuple[Array, ...]:
        """Return the entries."""
        return (np.array(self.entries, np.int16),)

    def compute(self, *operands: Array) -> Array:
        """Return the entries that inputs are nearest to."""
        places = moved(operands[0] + 32768, self.step, self.rounding) if self.step else operands[0]
        return self.tables()[0][places if self.step else places + 32768]


@dataclass(frozen=True)
class EspAverage(Averaging):
    """Averages of windows of int8 or int16. shift: exponent of the result less that of the input.

    Rounded down, they are exact quotients; else the sum in float32 times the reciprocal of the count.
    """

    bits: int
    shift: int = 0
    rounding: str = HALF_UP

    library = "_arith/espdl_pool.cl.mako"

    def accepts(self, dtype: DType) -> bool:
        """Whether this is the type of the elements."""
        return dtype == BY_BITS[self.bits]

    @property
    def name(self) -> str:
        """Name in kernels."""
        return f"espdl_s{self.bits}_{self.rounding}"

    def table(self, most: int) -> Array:
        """Return the bits of the factor for windows of 0..most elements, or these numbers."""
        if self.rounding == FLOOR:
            return np.maximum(np.arange(most + 1, dtype=np.int32), 1).reshape(-1, 1)
        return self._factors(most).view(np.int32).reshape(-1, 1)

    def _factors(self, most: int) -> Array:
        counts = np.maximum(np.arange(most + 1), 1).astype(np.float32)
        return np.asarray(np.float32(1) / counts * power(-self.shift), np.float32)

    def finish(self, total: Array, count: Array) -> Array:
        """Return the averages of int64 sums over `count` elements."""
        if self.rounding == FLOOR:
            parts = np.maximum(count, 1).astype(np.int64) << max(self.shift, 0)
            return saturate((total << max(-self.shift, 0)) // parts, self.bits)
        factors = self._factors(int(count.max(initial=0)))[count]
        scaled = total.astype(np.float32) * factors
        return clamped(rounded(scaled, self.rounding), self.bits)


def power(exponent: int) -> np.float32:
    """Return 2**exponent as float32."""
    return np.float32(np.ldexp(np.float32(1), int(exponent)))


def aligned(exponents: Sequence[int], result: int) -> tuple[tuple[int, int], int]:
    """Return (left shifts, right shift) that bring two operands and then their sum to exponents.

    Raises DTypeError where exponents are too far apart.
    """
    least = min(exponents)
    left = exponents[0] - least, exponents[1] - least
    if max(left) > MOST_APART:
        raise DTypeError(
            f"a sum of values with exponents {tuple(exponents)}: they may differ by {MOST_APART}."
        )
    return left, result - least


def total(
    bits: int, exponents: Sequence[int], result: int, minus: bool, rounding: str = HALF_UP
) -> EspSum:
    """Return the sum or difference of two tensors. Raises DTypeError as `aligned` does."""
    return EspSum(bits, *aligned(exponents, result), minus, rounding)


def product(
    bits: int, exponents: Sequence[int], result: int, rounding: str = HALF_UP
) -> EspProduct:
    """Return the product of two tensors: of int16, rounded in float32 unless it rounds down."""
    shift = result - sum(exponents)
    return EspProduct(bits, shift, rounding, bits == 16 and rounding != FLOOR)


def lookup(entries: Array) -> ByteTable:
    """Return the function of int8 whose results for -128, -127, ... are given."""
    ordered = entries[every_byte(I8).astype(np.int64) + 128]
    return ByteTable(I8, I8, tuple(int(v) for v in ordered))


def table_of(entries: Array, rounding: str) -> EspTable:
    """Return the function of int16 by a table. Raises DTypeError for a number of entries it has not."""
    steps = {2 ** (16 - k) + (k > 0): k for k in range(16)} | {2**16 + 1: 0}
    if len(entries) not in steps:
        raise DTypeError(
            f"a table of int16 with {len(entries)} entries: it needs 2**k and one, k up to 16."
        )
    kept = entries[: 2**16]
    nearest = HALF_EVEN if rounding == HALF_EVEN else HALF_UP
    return EspTable(steps[len(entries)], tuple(int(v) for v in kept), nearest)


def tabulated(
    bits: int, given: int, wanted: int, function: Callable[[Array], Array], rounding: str
) -> Elementwise:
    """Return a real function as a table of all inputs of exponent `given`, in steps of `wanted`."""
    low = -(1 << bits - 1)
    inputs = np.ldexp(np.arange(low, -low, dtype=np.float64), given)
    with np.errstate(all="ignore"):
        steps = np.ldexp(function(inputs), -wanted).astype(np.float32)
    entries = clamped(rounded(steps, rounding), bits)
    return lookup(entries) if bits == 8 else table_of(entries, rounding)

"""Elementwise functions of quantised tensors (kernels_cl/_arith/quantised_map.cl.mako).

Scales and zero points are operands where they may differ from place to place or are computed, and
parameters where they are one number known beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import field, replace
from typing import ClassVar

import numpy as np

from clnn.arith._base import Array, Elementwise
from clnn.arith.quantised import Quantisation, fused, quantised
from clnn.errors import DTypeError
from clnn.records import dataclass
from clnn.types import F32, I8, I16, I32, U8, U16, DType

NARROW = (I8, U8, I16, U16)
SHIFT = 128  # of int8 as uint8


class QuantisedMap(Elementwise):
    """A function of quantised tensors."""

    library = "_arith/quantised_map.cl.mako"
    name: ClassVar[str]

    def refused(self, types: Sequence[DType]) -> DTypeError:
        """Return the error for operands of other types."""
        return DTypeError(f"{self.name} of {', '.join(t.name for t in types)}: not its operands.")


def _of_uint8(steps: Array, kind: DType, limits: tuple[int, int] | None, shifted: bool) -> Array:
    """Return steps rounded and saturated; shifted: they are 128 more than what is returned, int8."""
    if not shifted:
        return quantised(steps, np.float32(1), np.int64(0), kind, limits)
    whole = quantised(steps, np.float32(1), np.int64(0), U8)
    return np.asarray(whole.astype(np.int16) - SHIFT).astype(np.int8)


@dataclass(frozen=True)
class Dequantise(QuantisedMap):
    """(q - zero) * scale as float32; operands q, scale and perhaps zero, of the type of q."""

    name = "dequantise"

    def output(self, types: Sequence[DType]) -> DType:
        """Return float32. Raises DTypeError where operands do not fit."""
        whole = types[0] in NARROW or types[0] == I32
        if not whole or types[1] != F32 or any(t != types[0] for t in types[2:]):
            raise self.refused(types)
        return F32

    def reference(self, *operands: Array) -> Array:
        """Return the real numbers."""
        zero = operands[2].astype(np.int64) if len(operands) > 2 else 0
        steps = operands[0].astype(np.int64) - zero
        return np.asarray(steps.astype(np.float32) * operands[1])


@dataclass(frozen=True)
class Quantise(QuantisedMap):
    """x / scale rounded to nearest, ties to even, plus zero, saturated; operands x, scale, zero.

    late: zero is added before rounding, as ONNX Runtime's average pooling of bytes does. whole: x is
    int32, or whole float32 numbers, and is multiplied with the scale instead. limits: of results, None:
    those of the type. shifted: of late ones, the zero point is that of int8 as uint8, 128 more, and 128 is
    taken off the result.
    """

    kind: DType
    late: bool = False
    whole: bool = False
    limits: tuple[int, int] | None = None
    shifted: bool = False

    name = "quantise"

    def output(self, types: Sequence[DType]) -> DType:
        """Return the type of results. Raises DTypeError where operands do not fit."""
        first = I32 if self.whole and types[0] == I32 else F32
        if list(types) != [first, F32, self.kind] or self.kind not in NARROW:
            raise self.refused(types)
        return self.kind

    def reference(self, *operands: Array) -> Array:
        """Return the integers."""
        x, scale, zero = operands[0], operands[1], operands[2].astype(np.int64)
        if self.whole:
            return quantised(
                x.astype(np.float32) * scale, np.float32(1), zero, self.kind, self.limits
            )
        if not self.late:
            return quantised(x, scale, zero, self.kind, self.limits)
        with np.errstate(all="ignore"):
            moved = x / scale + (zero + SHIFT * self.shifted).astype(np.float32)
        return _of_uint8(moved, self.kind, self.limits, self.shifted)


@dataclass(frozen=True)
class QuantisedSum(QuantisedMap):
    """a * ratios[0] + b * ratios[1] + offset rounded to nearest, ties to even, and saturated.

    Each product is added in one rounding, the second one first: what ONNX Runtime does on x86. shifted:
    operands and the result are int8 as uint8, 128 more, of which the offset is.
    """

    kind: DType
    ratios: tuple[float, float] = field(metadata={"data": True})
    offset: float = field(metadata={"data": True})
    shifted: bool = False

    name = "quantised_sum"

    def output(self, types: Sequence[DType]) -> DType:
        """Return the type of the operands. Raises DTypeError where they do not fit."""
        if list(types) != [self.kind] * 2 or self.kind not in (I8, U8):
            raise self.refused(types)
        return self.kind

    def reference(self, *operands: Array) -> Array:
        """Return the integers."""
        shift = np.float32(SHIFT * self.shifted)
        a, b = (o.astype(np.float32) + shift for o in operands)
        ra, rb = map(np.float32, self.ratios)
        total = fused(a, ra, fused(b, rb, np.float32(self.offset)))
        return _of_uint8(total, self.kind, None, self.shifted)


@dataclass(frozen=True)
class QuantisedProduct(QuantisedMap):
    """(a - zeros[0]) * (b - zeros[1]) * ratio + zeros[2], rounded and saturated.

    shifted: zeros[2] is 128 more, as of int8 as uint8, and 128 is taken off the result.
    """

    kind: DType
    zeros: tuple[int, int, int]
    ratio: float = field(metadata={"data": True})
    shifted: bool = False

    name = "quantised_product"

    def output(self, types: Sequence[DType]) -> DType:
        """Return the type of the operands. Raises DTypeError where they do not fit."""
        if list(types) != [self.kind] * 2 or self.kind not in (I8, U8):
            raise self.refused(types)
        return self.kind

    def reference(self, *operands: Array) -> Array:
        """Return the integers."""
        a, b = (o.astype(np.int64) - z for o, z in zip(operands, self.zeros, strict=False))
        zero = np.float32(self.zeros[2] + SHIFT * self.shifted)
        moved = (a * b).astype(np.float32) * np.float32(self.ratio) + zero
        return _of_uint8(moved, self.kind, None, self.shifted)


@dataclass(frozen=True)
class WrittenBinary(QuantisedMap):
    """A real function of two quantised tensors as it is written: dequantised, computed, quantised.

    kinds, steps, zeros: types, scales and zero points of a, b and the result. low, high: what results
    are clipped to. Each step is rounded in float32.
    """

    fn: str
    kinds: tuple[DType, DType, DType]
    zeros: tuple[int, int, int]
    steps: tuple[float, float, float] = field(metadata={"data": True})
    low: int
    high: int

    name = "written_binary"

    def output(self, types: Sequence[DType]) -> DType:
        """Return the type of the result. Raises DTypeError where operands do not fit."""
        if list(types) != list(self.kinds[:2]) or any(k not in NARROW for k in self.kinds):
            raise self.refused(types)
        return self.kinds[2]

    def reference(self, *operands: Array) -> Array:
        """Return the integers."""
        pairs = zip(operands, self.zeros, self.steps, strict=False)
        a, b = ((o.astype(np.int64) - z).astype(np.float32) * np.float32(s) for o, z, s in pairs)
        with np.errstate(all="ignore"):
            made = WRITTEN[self.fn](a, b)
        whole = quantised(made, np.float32(self.steps[2]), np.int64(self.zeros[2]), self.kinds[2])
        return np.clip(whole, self.low, self.high)


WRITTEN: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
}


@dataclass(frozen=True)
class ByteTable(QuantisedMap):
    """Any function of bytes: entry q & 255 of a table holds the result for q.

    permuted: x86's permutations of bytes look entries up, which are bytes.
    """

    kind: DType
    result: DType
    entries: tuple[float, ...] = field(metadata={"data": True})
    permuted: bool = False

    name = "byte_table"

    def output(self, types: Sequence[DType]) -> DType:
        """Return the type of results. Raises DTypeError where the operand is of another type."""
        if list(types) != [self.kind] or self.kind not in (I8, U8):
            raise self.refused(types)
        return self.result

    def tables(self) -> tuple[Array, ...]:
        """Return the entries."""
        return (np.array(self.entries, self.result.numpy),)

    def on(self, features: Set[str]) -> ByteTable:
        """Return the function by x86's permutations where the device has them."""
        return replace(self, permuted="x86_vbmi" in features and self.result in (I8, U8))

    def reference(self, *operands: Array) -> Array:
        """Return the entries that bytes stand for."""
        return self.tables()[0][operands[0].view(np.uint8)]


@dataclass(frozen=True)
class ByteLine(QuantisedMap):
    """ratio * q + offset of bytes in one rounding, rounded to nearest, ties to even, plus zero, saturated."""

    kind: DType
    result: DType
    zero: int
    ratio: float = field(metadata={"data": True})
    offset: float = field(metadata={"data": True})

    name = "byte_line"

    def output(self, types: Sequence[DType]) -> DType:
        """Return the type of results. Raises DTypeError where the operand is of another type."""
        if list(types) != [self.kind] or self.kind not in (I8, U8) or self.result not in (I8, U8):
            raise self.refused(types)
        return self.result

    def reference(self, *operands: Array) -> Array:
        """Return the integers."""
        steps = fused(
            operands[0].astype(np.float32), np.float32(self.ratio), np.float32(self.offset)
        )
        return quantised(steps, np.float32(1), np.int64(self.zero), self.result)


def line_through(given: Quantisation, wanted: Quantisation, entries: Array) -> ByteLine | None:
    """Return the line that makes bytes of one quantisation those of another, None where there is none.

    It gives all entries of a table, in the order of every_byte, and is looked for among the float32 numbers
    next to the ratio of the scales and to its offset.
    """
    ratio = np.float64(given.step) / np.float64(wanted.step)
    for first in _near(ratio):
        for second in _near(-given.zero[0] * ratio):
            numbers = float(first), float(second)
            line = ByteLine(given.dtype, wanted.dtype, wanted.zero[0], *numbers)
            if (line.reference(every_byte(given.dtype)) == entries).all():
                return line
    return None


def _near(value: float) -> list[np.float32]:
    """Return a float32 number and its neighbours, the nearest first."""
    middle = np.float32(value)
    ends = [np.nextafter(middle, np.float32(end)) for end in (-np.inf, np.inf)]
    return [middle, *ends]


def every_byte(kind: DType) -> Array:
    """Return all values of an 8-bit type in the order of a ByteTable's entries."""
    return np.arange(256, dtype=np.uint8).view(kind.numpy)

"""OpenVX neural-network arithmetic as devices compute it: sums of products, elementwise functions.

The numpy references are the formulas of clnn/arith/openvx.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from clnn.arith._base import Arithmetic, Array, Elementwise
from clnn.arith.openvx import Format, Scale, add, divide, lookup, multiply, shifted
from clnn.errors import DTypeError
from clnn.records import dataclass
from clnn.types import I8, I16, I32, U8, DType

LIBRARY = "_arith/openvx.cl.mako"
LARGEST = {I8: 2**14, U8: 255 * 255, I16: 2**30}  # magnitude of a product


def bias_shape(bias: Array, group: int, outs: int) -> Array:
    """Return a bias (oc) or (oc, outs...) as (1, group, oc / group, outs...) in int64."""
    return bias.reshape(1, group, -1, *(bias.shape[1:] or (1,) * outs)).astype(np.int64)


class _Sums(Arithmetic):
    """Sums of products of elements of the format `out`; wide: they need 64 bits."""

    out: Format
    wide: bool

    library = LIBRARY
    plain_bias = True

    @property
    def acc(self) -> str:
        """Type of the accumulator."""
        return "long" if self.wide else "int"

    def output(self, x: DType, w: DType) -> DType:
        """Return the operands' type. Raises DTypeError for others."""
        return same_types(self.name, (x, w), self.out.dtype)

    def bias(self, x: DType, w: DType) -> DType:
        """Return int32."""
        return I32


@dataclass(frozen=True)
class VxMac(_Sums):
    """How convolution and fully connected layers round, convert and sum products.

    out: format of the output. shift: fraction bits dropped of each product. rounding: "zero",
    "even" or "biased" (half is added, then cut towards zero). wrap: conversions keep low bits,
    else clamp. bits: width that products and sums are converted to, below 63; unsigned: of
    0..2**bits - 1. channels: sums are converted after each input channel, else once. bias_first:
    sums begin with the bias, else it is added behind their conversion. biased: there is a bias.
    wide: sums need 64 bits. small: no product of these weights lies outside of the limits.
    """

    out: Format
    shift: int
    rounding: str
    wrap: bool
    bits: int
    unsigned: bool = False
    channels: bool = False
    bias_first: bool = True
    biased: bool = True
    wide: bool = False
    small: bool = False

    @property
    def name(self) -> str:
        """Name in kernels."""
        return f"vx_{self.out.dtype.name}_{'wrap' if self.wrap else 'sat'}"

    @property
    def channelwise(self) -> bool:  # type: ignore[override]
        """Whether sums are clamped after each input channel; low bits need no such step."""
        return self.channels and not self.wrap

    @property
    def wraps(self) -> bool:  # type: ignore[override]
        """Whether sums are plain."""
        return self.wrap and self.shift == 0

    @property
    def acc(self) -> str:
        """Type of the accumulator; low bits are right in 32 bits."""
        return "long" if self.wide and not self.wrap else "int"

    @property
    def starts(self) -> bool:
        """Whether sums begin with the bias: as low bits, its place does not matter."""
        return self.bias_first or self.wrap

    @property
    def limits(self) -> tuple[int, int]:
        """Smallest and largest value after a conversion to `bits` bits."""
        low = 0 if self.unsigned else -(1 << (self.bits - 1))
        return low, low + (1 << self.bits) - 1

    def exceeds(self, product: int) -> bool:
        """Whether a product of up to this magnitude may lie outside of the limits."""
        top = (product >> self.shift) + 1
        low, high = self.limits
        return top > high or (low > -top and self.out.low < 0)

    @property
    def clamps_products(self) -> bool:
        """Whether products have to be clamped."""
        return not self.wrap and not self.small and self.exceeds(LARGEST[self.out.dtype])

    def refine(self, weights: Array, bias: Array | None) -> Arithmetic:
        """Return the rule without clamping where no product of these weights needs it."""
        largest = int(np.abs(weights.astype(np.int64)).max(initial=0))
        product = largest * max(-self.out.low, self.out.high)
        return replace(self, small=True) if not self.exceeds(product) else self

    @property
    def clamps_sums(self) -> bool:
        """Whether the accumulator may hold more than the limits."""
        return not self.wrap and self.bits < (63 if self.acc == "long" else 32)

    def table(self, weights: Array, bias: Array | None) -> Array | None:
        """Return the bias as the only row; plain sums always have one."""
        if bias is None:
            return np.zeros((1, len(weights)), np.int32) if self.wraps else None
        return bias.reshape(1, -1)

    def narrowed(self, values: Array) -> Array:
        """Return integers converted to `bits` bits."""
        low, high = self.limits
        return ((values - low) & (high - low)) + low if self.wrap else np.clip(values, low, high)

    def reference(self, columns: Array, weights: Array, bias: Array | None) -> Array:
        """Return sums over channels and taps as elements of `result`."""
        n, group, channels = columns.shape[:3]
        outs = columns.shape[4:]
        start = 0 if bias is None else bias_shape(bias, group, len(outs))
        total = np.zeros((n, group, weights.shape[1], *outs), np.int64)
        total += start if self.bias_first else 0
        for c in range(channels):
            x = columns[:, :, None, c].astype(np.int64)
            w = weights[:, :, c].astype(np.int64)
            products = x * w.reshape(*w.shape, *(1,) * len(outs))
            total += self.narrowed(shifted(products, self.shift, self.rounding)).sum(3)
            total = self.narrowed(total) if self.channels else total
        if not self.bias_first:
            total = self.narrowed(total) + start
        return self.out.convert(total, self.wrap)


@dataclass(frozen=True)
class VxAverage(_Sums):
    """Sums of windows (weights are not read) over `count`, cut towards zero and clamped.

    wide: sums need 64 bits.
    """

    out: Format
    count: int
    wide: bool = False

    @property
    def name(self) -> str:
        """Name in kernels."""
        return f"vx_average_{self.out.dtype.name}"

    def output(self, x: DType, w: DType) -> DType:
        """Return the input's type. Raises DTypeError for another one."""
        return same_types(self.name, (x,), self.out.dtype)

    def table(self, weights: Array, bias: Array | None) -> Array | None:
        """Return nothing: there is no bias."""
        return None

    def reference(self, columns: Array, weights: Array, bias: Array | None) -> Array:
        """Return averages."""
        total = columns.astype(np.int64).sum((2, 3))[:, :, None]
        return self.out.convert(divide(total, self.count), False)


@dataclass(frozen=True)
class VxMatrix(_Sums):
    """Matrix products: (sum of products + bias << shift + half) >> shift, cut towards zero, clamped.

    wide: sums need 64 bits.
    """

    out: Format
    shift: int
    wide: bool = False

    @property
    def name(self) -> str:
        """Name in kernels."""
        return f"vx_matrix_{self.out.dtype.name}"

    def table(self, weights: Array, bias: Array | None) -> Array | None:
        """Return the bias as the only row."""
        return None if bias is None else bias.reshape(1, -1)

    def reference(self, columns: Array, weights: Array, bias: Array | None) -> Array:
        """Return the products."""
        outs = columns.shape[4:]
        total = np.einsum(
            "ngct...,goct->ngo...", columns.astype(np.int64), weights.astype(np.int64)
        )
        if bias is not None:
            total = total + (bias_shape(bias, columns.shape[1], len(outs)) << self.shift)
        return self.out.convert(shifted(total, self.shift, "biased"), False)


def same_types(name: str, types: Sequence[DType], wanted: DType) -> DType:
    """Return `wanted` after checking that all operands have it. Raises DTypeError."""
    if any(t != wanted for t in types):
        listed = ", ".join(t.name for t in types)
        raise DTypeError(f"{name} of {listed}: all must be {wanted.name}.")
    return wanted


@dataclass(frozen=True)
class VxSum(Elementwise):
    """x + y, or x - y (sign -1), wrapped or clamped."""

    out: Format
    wrap: bool
    sign: int = 1

    library = LIBRARY
    name = "vx_sum"

    def output(self, types: Sequence[DType]) -> DType:
        """Return the operands' type."""
        return same_types(self.name, types, self.out.dtype)

    def reference(self, *operands: Array) -> Array:
        """Return the sum."""
        return add(operands[0], operands[1], self.out, self.wrap, self.sign)


@dataclass(frozen=True)
class VxProduct(Elementwise):
    """x * y * scale / 2**shift, rounded to nearest even or cut, wrapped or clamped.

    bits: significant bits that the scaled product is rounded to first, 0: all.
    """

    out: Format
    scale: Scale
    shift: int
    wrap: bool
    even: bool
    bits: int = 0

    library = LIBRARY
    name = "vx_product"

    @property
    def rounds(self) -> bool:
        """Whether a product may have more than `bits` significant bits."""
        longest = LARGEST[self.out.dtype].bit_length() + abs(self.scale.mantissa).bit_length()
        return bool(self.bits) and longest > self.bits

    def output(self, types: Sequence[DType]) -> DType:
        """Return the operands' type."""
        return same_types(self.name, types, self.out.dtype)

    def reference(self, *operands: Array) -> Array:
        """Return the product."""
        return multiply(
            operands[0],
            operands[1],
            self.scale,
            self.out,
            self.shift,
            self.wrap,
            self.even,
            self.bits,
        )


@dataclass(frozen=True)
class VxClamp(Elementwise):
    """x, or its magnitude, clamped to low..high."""

    out: Format
    low: int
    high: int
    magnitude: bool = False

    library = LIBRARY
    name = "vx_clamp"

    def output(self, types: Sequence[DType]) -> DType:
        """Return the operand's type."""
        return same_types(self.name, types, self.out.dtype)

    def reference(self, *operands: Array) -> Array:
        """Return the clamped elements."""
        wide = operands[0].astype(np.int64)
        kept = np.clip(np.abs(wide) if self.magnitude else wide, self.low, self.high)
        return kept.astype(self.out.dtype.numpy)


@dataclass(frozen=True)
class VxTable(Elementwise):
    """table[x - first]; where that is outside, the second operand (all are inside without one).

    source: type of x. out: type of the table. data: its bytes.
    """

    source: DType
    out: DType
    first: int
    data: bytes
    library = LIBRARY
    name = "vx_table"

    @staticmethod
    def of(source: DType, result: DType, first: int, table: Array) -> VxTable:
        """Return the function for a table of `result` elements."""
        return VxTable(source, result, first, table.astype(result.numpy).tobytes())

    @property
    def count(self) -> int:
        """Number of entries."""
        return len(self.data) // self.out.itemsize

    @property
    def whole(self) -> bool:
        """Whether every x has an entry."""
        bounds = Format(self.source)
        return self.first <= bounds.low and bounds.high < self.first + self.count

    def tables(self) -> tuple[Array, ...]:
        """Return the table."""
        return (np.frombuffer(self.data, self.out.numpy),)

    def output(self, types: Sequence[DType]) -> DType:
        """Return the table's type. Raises DTypeError where the operands do not fit."""
        same_types(self.name, types[:1], self.source)
        same_types(self.name, types[1:], self.out)
        if len(types) == 1 and not self.whole:
            raise DTypeError(
                f"a table of {self.count} entries from {self.first} does not hold "
                f"every {self.source.name}: a second operand is needed."
            )
        return self.out

    def reference(self, *operands: Array) -> Array:
        """Return the entries."""
        return lookup(operands[0], self.tables()[0], self.first, *operands[1:])

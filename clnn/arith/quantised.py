"""Affine quantisation of tensors, and sums of products of integers that stand for real numbers.

A quantised value is integers and what they stand for: (q - zero) * scale, with one scale and zero point
for the tensor or one for each index of an axis. Sums of products are exact in 32 bits; `Requantised`
makes integers of the next value of them, `Sums` gives them as they are. Rounding is that of ONNX: to
nearest, ties to even, of the sum in float32 times one float32 factor; results saturate.
"""

from __future__ import annotations

import math
from dataclasses import field, replace
from typing import Any

import ml_dtypes
import numpy as np

from clnn.arith._base import Arithmetic, Array, Averaging
from clnn.arith.mli import dot, per_channel
from clnn.arith.mli_primitives import wrap
from clnn.errors import DTypeError, PlanError
from clnn.records import dataclass
from clnn.types import I8, I16, I32, U8, DType

INPUTS, WEIGHTS = (I8, U8, I16), (I8, I16)
EXACT = 2**24  # up to here float32 holds every integer
AT_ONCE = 2**18  # weights that are widened at once
LARGEST_I16 = 2**15
LARGEST_I32 = 2**30  # well below what 32 bits hold, so that no rounding leaves them
Numbers = Array | np.generic  # arrays and numbers


def limits_of(dtype: DType) -> tuple[int, int]:
    """Return the least and the largest integer of a type."""
    info: Any = ml_dtypes.iinfo(dtype.numpy)  # type: ignore[no-untyped-call]
    return int(info.min), int(info.max)


def magnitudes(weights: Array) -> Array:
    """Return what the magnitudes of each output channel's weights come to, int64. Few are widened at once."""
    each = math.prod(weights.shape[1:])
    flat, rows = weights.reshape(len(weights), each), max(1, AT_ONCE // max(each, 1))
    parts = (flat[k : k + rows].astype(np.int64) for k in range(0, len(flat), rows))
    return np.concatenate([np.zeros(0, np.int64), *(np.abs(part).sum(1) for part in parts)])


@dataclass(frozen=True)
class Quantisation:
    """What integers of a tensor stand for: (q - zero) * scale.

    scale, zero: one each, or one for each index of `axis`.
    """

    dtype: DType
    scale: tuple[float, ...]
    zero: tuple[int, ...]
    axis: int | None = None

    @property
    def per_tensor(self) -> bool:
        """Whether there is one scale and one zero point."""
        return len(self.scale) == len(self.zero) == 1

    @property
    def limits(self) -> tuple[int, int]:
        """Least and largest integer."""
        return limits_of(self.dtype)

    @property
    def step(self) -> np.float32:
        """The scale of a tensor that has one."""
        return np.float32(self.scale[0])

    def quantise(self, values: Array) -> Array:
        """Return real numbers as integers of a tensor that has one scale."""
        return quantised(values, self.step, np.int64(self.zero[0]), self.dtype)

    def dequantise(self, values: Array) -> Array:
        """Return integers of a tensor that has one scale as float32."""
        return (values.astype(np.int64) - self.zero[0]).astype(np.float32) * self.step


def quantised(
    values: Array,
    scale: Numbers,
    zero: Numbers,
    dtype: DType,
    limits: tuple[int, int] | None = None,
) -> Array:
    """Return float32 values in steps of `scale`, rounded to nearest, ties to even, and saturated.

    limits: of integers, instead of those of the type. A NaN becomes the least integer.
    """
    begin = np.asarray(zero, np.int64)
    low, high = (limit - begin for limit in limits or limits_of(dtype))
    with np.errstate(all="ignore"):
        steps = np.rint(np.asarray(values, np.float32) / np.asarray(scale, np.float32))
    inside = np.where(steps > low, np.minimum(steps, high), low)
    return np.asarray(inside.astype(np.int64) + begin).astype(dtype.numpy)


def fused(a: Numbers, b: Numbers, c: Numbers) -> Array:
    """Return a * b + c of float32 numbers rounded once to float32.

    The product is exact in float64. Its sum with c is rounded to odd there, so that rounding it
    again to float32 is rounding it once.
    """
    product, more = np.asarray(a, np.float64) * np.float64(b), np.asarray(c, np.float64)
    total = product + more
    virtual = total - product
    error = (product - (total - virtual)) + (more - virtual)
    bits = np.asarray(total).view(np.int64) if total.ndim else np.array([total]).view(np.int64)
    even = (bits & 1) == 0
    away = np.where((error > 0) == (total > 0), 1, -1)
    odd = np.where((error != 0) & even, bits + away, bits).view(np.float64)
    return odd.reshape(total.shape).astype(np.float32)


@dataclass(frozen=True)
class Sums(Arithmetic):
    """Sums of products of integers, as int32; inputs count from `zero`.

    floats: no sum leaves the integers that float32 holds, so that it may be kept in float32. most: the
    largest magnitude of an input: of bytes, or of int16. nine_bits: weights are -255 to 254.
    """

    zero: int = 0
    floats: bool = False
    most: int = 255
    nine_bits: bool = False

    library = "_arith/quantised.cl.mako"
    wraps = True
    strict = True
    requantises = False
    written = False

    @property
    def name(self) -> str:
        """Name in kernels."""
        return "sums"

    @property
    def acc(self) -> str:
        """OpenCL type of the accumulator."""
        return "float" if self.floats else "int"

    @property
    def product(self) -> str:  # type: ignore[override]
        """OpenCL type of the operands of a product."""
        return self.acc

    @property
    def halves(self) -> bool:
        """Whether weights are sums of two bytes."""
        return self.nine_bits

    @property
    def fill(self) -> int:
        """The zero point of the input."""
        return self.zero

    def output(self, x: DType, w: DType) -> DType:
        """Return int32. Raises DTypeError for other operands."""
        self._check(x, w)
        return I32

    def _check(self, x: DType, w: DType) -> None:
        if x not in INPUTS or w not in WEIGHTS:
            raise DTypeError(
                f"quantised product of {x.name} with {w.name}: it takes int8, uint8 or int16 with "
                "int8 or int16."
            )
        if x == I16 and self.most < LARGEST_I16:
            raise DTypeError(f"quantised product of int16 that says inputs are up to {self.most}.")

    def bias(self, x: DType, w: DType) -> DType:
        """Return int32."""
        return I32

    def start(self, weights: Array, bias: Array | None) -> Array:
        """Return what sums of each output channel begin with, int64."""
        given = np.zeros(len(weights), np.int64) if bias is None else bias.astype(np.int64)
        above = weights.reshape(len(weights), -1).sum(1, dtype=np.int64)
        return np.asarray(given - self.zero * above)

    def refine(self, weights: Array, bias: Array | None) -> Arithmetic:
        """Return the arithmetic with what is known of its sums. Raises PlanError for other weights."""
        if self.nine_bits and weights.size and not -256 < weights.min() <= weights.max() < 255:
            raise PlanError(
                f"weights of {weights.min()} up to {weights.max()} in {self.name}: it takes -255 to 254."
            )
        return replace(self, floats=bool((self.largest(weights, bias) <= EXACT).all()))

    def largest(self, weights: Array, bias: Array | None) -> Array:
        """Return what magnitude the sums of each output channel cannot exceed, int64."""
        return np.asarray(self.most * magnitudes(weights) + np.abs(self.start(weights, bias)))

    def packed_products(self) -> Arithmetic:
        """Return the arithmetic with sums of integers."""
        return replace(self, floats=False)

    def table(self, weights: Array, bias: Array | None) -> Array | None:
        """Return rows: what sums begin with."""
        return wrap(self.start(weights, bias), 32).astype(np.int32).reshape(1, -1)

    def sums(self, columns: Array, weights: Array, bias: Array | None) -> Array:
        """Return sums as int64, wrapped to 32 bits."""
        total = dot(columns.astype(np.int64) - self.zero, weights)
        if bias is not None:
            total = total + per_channel(bias.astype(np.int64), total)
        return wrap(total, 32)

    def reference(self, columns: Array, weights: Array, bias: Array | None) -> Array:
        """Return the sums as int32."""
        return self.sums(columns, weights, bias).astype(np.int32)


@dataclass(frozen=True)
class Requantised(Sums):
    """Sums of products in steps of the result, rounded once.

    factors: what a step of the sum is worth in steps of the result, one for all or one per output
    channel. kind, zero_out: of results. low, high: what they are clipped to. bounded: results fit 32
    bits before they are clipped.
    """

    factors: tuple[float, ...] = field(default=(), metadata={"data": True})
    kind: DType = I8
    zero_out: int = 0
    low: int = -128
    high: int = 127
    bounded: bool = field(default=False, kw_only=True)

    requantises = True

    @property
    def name(self) -> str:
        """Name in kernels."""
        return f"q_{'u' if self.kind == U8 else 's'}8"

    def output(self, x: DType, w: DType) -> DType:
        """Return the type of results. Raises DTypeError for other operands."""
        self._check(x, w)
        return self.kind

    def refine(self, weights: Array, bias: Array | None) -> Arithmetic:
        """Return the arithmetic with what is known of its sums and results. Raises PlanError."""
        known = super().refine(weights, bias)
        assert isinstance(known, Requantised)
        steps = self.steps_of(self.largest(weights, bias))
        return replace(known, bounded=bool((steps < LARGEST_I32).all()))

    def steps_of(self, sums: Array) -> Array:
        """Return what magnitude, in steps of the result, sums of each channel come to at most."""
        return np.asarray(sums * np.abs(self.scaling(len(sums)).astype(np.float64)))

    def scaling(self, count: int) -> Array:
        """Return the factor of each of `count` output channels, float32."""
        return np.broadcast_to(np.array(self.factors, np.float32), (count,))

    def table(self, weights: Array, bias: Array | None) -> Array | None:
        """Return rows: what sums begin with, bits of the factor."""
        start = wrap(self.start(weights, bias), 32).astype(np.int32)
        return np.stack([start, np.ascontiguousarray(self.scaling(len(weights))).view(np.int32)])

    def reference(self, columns: Array, weights: Array, bias: Array | None) -> Array:
        """Return rounded, clipped results."""
        total = self.sums(columns, weights, bias).astype(np.float32)
        factors = self.scaling(weights.shape[0] * weights.shape[1])
        steps = np.rint(total * per_channel(factors, total)).astype(np.float64) + self.zero_out
        return np.asarray(np.clip(steps, self.low, self.high)).astype(self.kind.numpy)


@dataclass(frozen=True)
class Written(Requantised):
    """Sums of products as if real numbers were multiplied: scaled, the bias added, divided, rounded.

    That is how dequantised operands are multiplied in float32, but for the rounding of sums, which are
    exact here. steps: what a step of the sum is worth, as float64 numbers in `factors`. offsets: the
    bias as float32, step_out: scale of the result.
    """

    offsets: tuple[float, ...] = field(default=(), metadata={"data": True})
    step_out: float = 1.0

    written = True

    @property
    def name(self) -> str:
        """Name in kernels."""
        return f"w_{'u' if self.kind == U8 else 's'}8"

    def steps_of(self, sums: Array) -> Array:
        """Return what magnitude, in steps of the result, sums of each channel come to at most."""
        whole = sums * np.abs(np.broadcast_to(np.array(self.factors, np.float64), (len(sums),)))
        offsets = np.abs(np.array(self.offsets or (0.0,), np.float64))
        return np.asarray((whole + offsets) / self.step_out)

    def _halves(self, count: int) -> tuple[Array, Array]:
        """Return factors as sums of two float32 numbers."""
        whole = np.broadcast_to(np.array(self.factors, np.float64), (count,))
        high = whole.astype(np.float32)
        return high, (whole - high).astype(np.float32)

    def table(self, weights: Array, bias: Array | None) -> Array | None:
        """Return rows: what sums begin with; bits of the factor in two parts, and of the bias."""
        start, count = wrap(self.start(weights, bias), 32).astype(np.int32), len(weights)
        offsets = np.broadcast_to(np.array(self.offsets or (0.0,), np.float32), (count,))
        rows = (*self._halves(count), np.ascontiguousarray(offsets))
        return np.stack([start, *(row.view(np.int32) for row in rows)])

    def reference(self, columns: Array, weights: Array, bias: Array | None) -> Array:
        """Return rounded, clipped results."""
        total = self.sums(columns, weights, bias).astype(np.float32)
        count = weights.shape[0] * weights.shape[1]
        high, low = (per_channel(part, total) for part in self._halves(count))
        scaled = total.astype(np.float64) * high + (total * low).astype(np.float64)
        offsets = np.broadcast_to(np.array(self.offsets or (0.0,), np.float32), (count,))
        moved = scaled.astype(np.float32) + per_channel(offsets, total)
        steps = np.rint(moved / np.float32(self.step_out)).astype(np.float64) + self.zero_out
        return np.asarray(np.clip(steps, self.low, self.high)).astype(self.kind.numpy)


@dataclass(frozen=True)
class QuantisedAverage(Averaging):
    """Averages of windows of bytes: the sum above the zero point times one float32 factor, rounded.

    zeros, steps: zero point and scale of the elements and of their average.
    """

    kind: DType
    zeros: tuple[int, int]
    steps: tuple[float, float] = field(metadata={"data": True})

    library = "_arith/quantised_pool.cl.mako"

    def accepts(self, dtype: DType) -> bool:
        """Whether this is the type of the elements."""
        return dtype == self.kind and dtype in (I8, U8)

    @property
    def name(self) -> str:
        """Name in kernels."""
        return f"average_{self.kind.name}"

    def table(self, most: int) -> Array:
        """Return the bits of the factor for windows of 0..most elements."""
        return self._factors(most).view(np.int32).reshape(-1, 1)

    def _factors(self, most: int) -> Array:
        counts = np.maximum(np.arange(most + 1), 1).astype(np.float32)
        given, wanted = self.steps
        return np.asarray(np.float32(given) / (np.float32(wanted) * counts), np.float32)

    def finish(self, total: Array, count: Array) -> Array:
        """Return the averages of sums over `count` elements."""
        factors = self._factors(int(count.max(initial=0)))[count]
        sums = (total - self.zeros[0] * count).astype(np.float32)
        return quantised(sums * factors, np.float32(1), np.int64(self.zeros[1]), self.kind)


@dataclass(frozen=True)
class RealAverage(QuantisedAverage):
    """Averages of the float32 numbers that a window's bytes stand for, divided, then rounded to steps."""

    acc = "float"

    @property
    def name(self) -> str:
        """Name in kernels."""
        return f"real_average_{self.kind.name}"

    def table(self, most: int) -> Array:
        """Return the bits of both scales."""
        return np.array(self.steps, np.float32).view(np.int32).reshape(-1, 1)

    def element(self, x: Array) -> Array:
        """Return the real numbers."""
        steps = (x.astype(np.int64) - self.zeros[0]).astype(np.float32)
        return np.asarray(steps * np.float32(self.steps[0]))

    def finish(self, total: Array, count: Array) -> Array:
        """Return the averages of sums over `count` elements."""
        real = total / count.astype(np.float32)
        return quantised(real, np.float32(self.steps[1]), np.int64(self.zeros[1]), self.kind)

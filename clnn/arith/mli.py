"""embARC MLI 2.0: sums of products in fx16, fx16_fx8_fx8 and sa8_sa8_sa32.

Source: embARC MLI 2.0, MAC-based kernels, as its reference implementation for x86 computes; that one
has two round modes (ties up, or to even) and a switch for full accumulation.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np

from clnn.arith._base import Arithmetic, Array
from clnn.arith.mli_primitives import (
    add,
    cast,
    divide,
    redundant_sign_bits,
    round_shift,
    saturate,
    shift_left,
    wrap,
)
from clnn.errors import DTypeError
from clnn.records import dataclass
from clnn.types import I8, I16, I32, DType


def dot(columns: Array, weights: Array) -> Array:
    """Return sums of products (n, group, oc / group, outs...) as int64."""
    taps = int(np.prod(weights.shape[2:], dtype=np.int64))
    exact = _exact(taps * _highest(columns) * _highest(weights))
    moved = np.moveaxis(columns, (2, 3), (-2, -1)).astype(exact)  # n, g, outs, c, t
    left = moved.reshape(*moved.shape[:-2], taps)
    right = weights.astype(exact).reshape(*weights.shape[:2], taps)
    shape = left.shape[0], *left.shape[2:-1]
    rows = int(np.prod(shape, dtype=np.int64)), taps  # of one product, for numpy's of many are slow
    sums = [
        (left[:, g].reshape(rows) @ right[g].T).reshape(*shape, right.shape[1])
        for g in range(len(right))
    ]
    return np.stack([np.moveaxis(s, -1, 1) for s in sums], axis=1).astype(np.int64, copy=False)


def _highest(values: Array) -> int:
    return max(int(values.max()), -int(values.min())) if values.size else 0


def _exact(limit: int) -> type[np.generic]:
    """Return a type in which sums of integers up to a limit are exact: numpy multiplies floats far faster."""
    return np.float32 if limit < 1 << 24 else np.float64 if limit < 1 << 53 else np.int64


def per_channel(values: Array, like: Array) -> Array:
    """Return values (oc) in the shape that broadcasts to results (n, group, oc / group, ...)."""
    return values.reshape(1, *like.shape[1:3], *(1,) * (like.ndim - 3))


@dataclass(frozen=True)
class MliFixed(Arithmetic):
    """fx16 (w_bits 16) and fx16_fx8_fx8 (w_bits 8): powers of two as scales.

    bias_shift, out_shift: fraction bits of the products above those of bias and of output. low,
    high: limits of the ReLU. up: ties go up, else to even. safe: no sum with its bias leaves the
    accumulator, so that sums may begin with the bias.
    """

    w_bits: int
    bias_shift: int
    out_shift: int
    low: int = -32768
    high: int = 32767
    up: bool = False
    safe: bool = False

    library = "_arith/mli.cl.mako"
    wraps = True

    @property
    def name(self) -> str:
        """Name in kernels."""
        return f"mli_fx16_w{self.w_bits}"

    @property
    def bits(self) -> int:
        """Width of the accumulator."""
        return 64 if self.w_bits == 16 else 32

    @property
    def acc(self) -> str:
        """Type of the accumulator."""
        return "long" if self.w_bits == 16 else "int"

    def output(self, x: DType, w: DType) -> DType:
        """Return int16. Raises DTypeError where the operands are not of this format."""
        if x != I16 or w != (I16 if self.w_bits == 16 else I8):
            raise DTypeError(f"{self.name} of {x.name} with {w.name}: not its operands.")
        return I16

    def bias(self, x: DType, w: DType) -> DType:
        """Return the type of the weights."""
        return w

    def refine(self, weights: Array, bias: Array | None) -> Arithmetic:
        """Return the arithmetic with what is known of its sums."""
        if self.w_bits == 16:
            return self
        moved = self._bias(len(weights), bias)
        return replace(self, safe=bool((_largest(weights, 32768) + abs(moved) < 2**31).all()))

    def _bias(self, count: int, bias: Array | None) -> Array:
        """Return the bias at the accumulator's precision."""
        given = np.zeros(count, np.int64) if bias is None else bias.astype(np.int64)
        return wrap(round_shift(given, -self.bias_shift, self.bits, self.up), 32)

    def table(self, weights: Array, bias: Array | None) -> Array | None:
        """Return rows: what sums begin with, bias at the accumulator's precision."""
        moved = self._bias(len(weights), bias)
        start = moved if self.safe else np.zeros_like(moved)
        return np.stack([start, moved]).astype(np.int32)

    def reference(self, columns: Array, weights: Array, bias: Array | None) -> Array:
        """Return results as int16."""
        acc = wrap(dot(columns, weights), self.bits)
        moved = self._bias(weights.shape[0] * weights.shape[1], bias)
        acc = add(acc, per_channel(moved, acc), self.bits)
        y = cast(acc, self.out_shift, self.bits, 16, self.up)
        return np.maximum(np.minimum(y, self.high), self.low).astype(np.int16)


@dataclass(frozen=True)
class MliAffine(Arithmetic):
    """sa8_sa8_sa32: 8-bit data with a scale and a zero point, weights with a scale per channel.

    Scales are scale * 2**-frac. zero_in: subtracted from inputs (0 for a bias that holds it
    already). w_scale, w_frac: of each output channel. full: products are kept in full
    ("FULL_ACCU"). low, high: limits of the ReLU. up: ties go up, else to even. safe: no sum with
    its bias leaves 32 bits, so that sums may begin with the bias.
    """

    in_scale: int
    in_frac: int
    out_scale: int
    out_frac: int
    w_scale: tuple[int, ...]
    w_frac: tuple[int, ...]
    zero_in: int = 0
    zero_out: int = 0
    low: int = -128
    high: int = 127
    full: bool = False
    up: bool = False
    safe: bool = False

    library = "_arith/mli.cl.mako"
    name = "mli_sa8"
    wraps = True

    @property
    def fill(self) -> int:
        """Return the zero point."""
        return self.zero_in

    def output(self, x: DType, w: DType) -> DType:
        """Return int8. Raises DTypeError for other operands."""
        if x != I8 or w != I8:
            raise DTypeError(f"{self.name} of {x.name} with {w.name}: both must be int8.")
        return I8

    def bias(self, x: DType, w: DType) -> DType:
        """Return int32."""
        return I32

    @cached_property
    def ratio(self) -> tuple[int, int]:
        """Return (multiplier of 16 bits, shift) from the input's scale to the output's."""
        n = redundant_sign_bits(self.in_scale)
        quotient = divide(self.in_scale << n, self.out_scale)
        bits = redundant_sign_bits(quotient)
        value = int(cast(quotient, 16 - bits, 32, 16, self.up))
        return value, self.in_frac + n - self.out_frac - (16 - bits)

    @cached_property
    def scaling(self) -> Array:
        """Return rows multiplier, shift after the first one, first shift, of each channel."""
        ratio, shift = self.ratio
        rows = [
            self._scaling(ratio * s, shift + f)
            for s, f in zip(self.w_scale, self.w_frac, strict=True)
        ]
        return np.array(rows, np.int64).T

    def _scaling(self, mul: int, shift: int) -> tuple[int, int, int]:
        if self.full:
            return mul, min(shift, 63), 0
        bits = redundant_sign_bits(mul)
        mul = int(round_shift(mul << bits, 16, 32, self.up))
        shift += bits - 16
        first = min(max(shift - 21, 0), 8)
        return mul, min(shift - first, 63), first

    @cached_property
    def short(self) -> bool:
        """Whether all shifts go right by at most 30, after products of 16 bits."""
        shifts = self.scaling[1]
        return not self.full and bool(((shifts > 0) & (shifts <= 30)).all())

    @cached_property
    def two_shifts(self) -> bool:
        """Whether a sum is shifted before it is multiplied, in any channel."""
        return bool(self.scaling[2].any())

    def refine(self, weights: Array, bias: Array | None) -> Arithmetic:
        """Return the arithmetic with what is known of its sums."""
        given = self._bias(len(weights), bias)
        return replace(self, safe=bool((_largest(weights, 255) + abs(given) < 2**31).all()))

    def _bias(self, count: int, bias: Array | None) -> Array:
        given = np.zeros(count, np.int64) if bias is None else bias.astype(np.int64)
        return given if self.full else _leading(given)

    def table(self, weights: Array, bias: Array | None) -> Array | None:
        """Return rows: what sums begin with, bias, multiplier, shift, first shift."""
        count = len(weights)
        given = self._bias(count, bias)
        start = -self.zero_in * weights.reshape(count, -1).sum(axis=1, dtype=np.int64)
        start = wrap(start + given if self.safe else start, 32)
        return np.stack([start, given, *self.scaling]).astype(np.int32)

    def reference(self, columns: Array, weights: Array, bias: Array | None) -> Array:
        """Return results as int8."""
        acc = wrap(dot(columns.astype(np.int64) - self.zero_in, weights), 32)
        mul, shift, first = (per_channel(row, acc) for row in self.scaling)
        count = weights.shape[0] * weights.shape[1]
        acc = add(acc, per_channel(self._bias(count, bias), acc), 32)
        if not self.full:
            acc = saturate(round_shift(acc, first, 32, self.up), 16)
        y = cast(acc * mul, shift, 64, 16, self.up)
        y = saturate(saturate(y + self.zero_out, 16), 8)
        return np.maximum(np.minimum(y, self.high), self.low).astype(np.int8)


def _largest(weights: Array, factor: int) -> Array:
    """Return the largest sum of products, per output channel, with inputs of up to `factor`."""
    sums: Array = np.abs(weights.reshape(len(weights), -1).astype(np.int64)).sum(axis=1)
    return sums * factor


def _leading(bias: Array) -> Array:
    """Return 32-bit numbers with only their 16 leading bits kept."""
    drop = [max(16 - redundant_sign_bits(int(b)), 0) for b in bias.reshape(-1)]
    shifts = np.array(drop, np.int64).reshape(bias.shape)
    return shift_left(bias >> shifts, shifts, 32)

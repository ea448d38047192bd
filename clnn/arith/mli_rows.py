"""embARC MLI 2.0: softmax and L2 normalisation of rows, in fx16, fx8 and sa8."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clnn.arith._base import Array
from clnn.arith.mli_convert import sign_bits
from clnn.arith.mli_primitives import cast, round_shift, saturate
from clnn.arith.mli_quant import Quant
from clnn.arith.mli_tables import EXP, INVERSE_ROOT, Lookup, byte_fraction, lookup

ROOT_FRAC = 8  # fraction bits that sums of squares are normalised to
ONE = 1 << 29


@dataclass(frozen=True)
class SoftmaxRule:
    """Softmax of rows: exp(x - largest) by table, times the reciprocal of their sum.

    quant: of the input. up: rounding mode.
    """

    quant: Quant
    up: bool = False

    @property
    def look(self) -> Lookup:
        """How differences to the largest element are looked up."""
        frac = byte_fraction(EXP) if self.quant.affine else self.quant.frac
        return lookup(EXP, frac, self.up, self.quant.affine)

    @property
    def moved(self) -> int:
        """Rounding shift of sa8 differences (times the scale) before they are looked up."""
        return self.quant.frac - byte_fraction(EXP)

    @property
    def out(self) -> Quant:
        """Quantisation of the result."""
        if self.quant.affine:
            return Quant(8, 8, 1, -128, True)
        return Quant(self.quant.bits, self.quant.bits - 1)

    def powers(self, x: Array, axes: Sequence[int]) -> Array:
        """Return the exponentials for int64 `x`."""
        away = x - x.max(axis=tuple(axes), keepdims=True)
        if self.quant.affine:
            away = round_shift(away * self.quant.scale, self.moved, 32, self.up)
        return self.look(away)

    def __call__(self, x: Array, axes: Sequence[int]) -> Array:
        """Return the softmax over `axes` taken together, as the input's type."""
        power = self.powers(x.astype(np.int64), axes)
        total = power.sum(axis=tuple(axes), keepdims=True)
        n = sign_bits(total)
        short = cast(total, 16 - n, 32, 16, self.up)
        inverse = np.minimum(ONE // np.maximum(short, 1), 32767)
        shift = np.minimum(2 * 15 + 15 - n - self.out.frac, 31)
        y = round_shift(power * inverse, shift, 32, self.up)
        return saturate(y + self.out.zero, self.quant.bits).astype(x.dtype)


@dataclass(frozen=True)
class L2Rule:
    """Rows divided by the root of their sum of squares, by table."""

    quant: Quant
    up: bool = False

    @property
    def look(self) -> Lookup:
        """How normalised sums of squares are looked up."""
        return lookup(INVERSE_ROOT, ROOT_FRAC, self.up)

    @property
    def out(self) -> Quant:
        """Quantisation of the result."""
        if self.quant.affine:
            return Quant(8, 7, 1, 0, True)
        return Quant(self.quant.bits, self.quant.bits - 1)

    def __call__(self, x: Array, axes: Sequence[int]) -> Array:
        """Return x over the norm along `axes` taken together, as the input's type."""
        given = x.astype(np.int64) - self.quant.zero
        total = (given * given).sum(axis=tuple(axes), keepdims=True)
        n = 48 - sign_bits(total, 64)
        n += n & 1
        root = self.look(cast(total, n, 64, 16, self.up))
        shift = INVERSE_ROOT.out_frac + ((n + ROOT_FRAC) >> 1) - self.out.frac
        return cast(root * given, shift, 32, self.quant.bits, self.up).astype(x.dtype)

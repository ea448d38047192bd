"""embARC MLI 2.0: softmax and L2 normalisation of rows, in fx16, fx8 and sa8."""

from __future__ import annotations

import numpy as np

from clnn.arith._base import Array
from clnn.arith.mli_convert import sign_bits
from clnn.arith.mli_maps import BY_BITS, MliMap
from clnn.arith.mli_primitives import cast, round_shift, saturate
from clnn.arith.mli_quant import Quant
from clnn.arith.mli_tables import EXP, INVERSE_ROOT, Lookup, byte_fraction, lookup
from clnn.records import dataclass
from clnn.types import I32, I64, DType

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

    def power(self, away: Array) -> Array:
        """Return the exponentials of differences (int64)."""
        if self.quant.affine:
            away = round_shift(away * self.quant.scale, self.moved, 32, self.up)
        return self.look(away)

    def inverse(self, total: Array) -> tuple[Array, Array]:
        """Return (reciprocal of 15 bits, shift) of sums of exponentials."""
        n = sign_bits(total)
        short = cast(total, 16 - n, 32, 16, self.up)
        inverse = np.minimum(ONE // np.maximum(short, 1), 32767)
        return inverse, np.minimum(2 * 15 + 15 - n - self.out.frac, 31)

    def finish(self, power: Array, inverse: Array, shift: Array) -> Array:
        """Return the probabilities."""
        y = round_shift(power * inverse, shift, 32, self.up)
        return saturate(y + self.out.zero, self.quant.bits)


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

    def inverse(self, total: Array) -> tuple[Array, Array]:
        """Return (one over the root, shift) of sums of squares."""
        n = 48 - sign_bits(total, 64)
        n += n & 1
        root = self.look(cast(total, n, 64, 16, self.up))
        return root, INVERSE_ROOT.out_frac + ((n + ROOT_FRAC) >> 1) - self.out.frac

    def finish(self, x: Array, root: Array, shift: Array) -> Array:
        """Return the normalised elements of int64 `x`."""
        return cast(root * (x - self.quant.zero), shift, 32, self.quant.bits, self.up)


PACKED_BASE = 64  # what is added to a shift of L2 that travels with its multiplier


def _packed(value: Array, shift: Array) -> Array:
    return np.asarray(value | shift << 16)


class RuledMap(MliMap):
    """A function whose rounding mode is that of its rule."""

    rule: SoftmaxRule | L2Rule

    @property
    def up(self) -> bool:  # type: ignore[override]
        """The rounding mode."""
        return self.rule.up


@dataclass(frozen=True)
class SoftmaxPower(RuledMap):
    """Exponentials of differences. Operands: x and the largest element of its row."""

    rule: SoftmaxRule

    name = "softmax_power"

    @property
    def types(self) -> tuple[DType, ...]:
        """Twice the input's, and int32."""
        own = BY_BITS[self.rule.quant.bits]
        return (own, own, I32)

    def tables(self) -> tuple[Array, ...]:
        """Return exp's entries."""
        return (EXP.values,)

    def compute(self, *operands: Array) -> Array:
        """Return the exponentials."""
        return self.rule.power(operands[0] - operands[1])


@dataclass(frozen=True)
class SoftmaxScale(RuledMap):
    """The reciprocal of a sum of exponentials, and the shift that goes with it."""

    rule: SoftmaxRule

    name = "softmax_scale"
    types = (I32, I32)

    def compute(self, *operands: Array) -> Array:
        """Return reciprocal and shift in one integer."""
        return _packed(*self.rule.inverse(operands[0]))


@dataclass(frozen=True)
class SoftmaxFinish(RuledMap):
    """Exponentials times the reciprocal. Operands: exponential, SoftmaxScale's result."""

    rule: SoftmaxRule

    name = "softmax_finish"

    @property
    def types(self) -> tuple[DType, ...]:
        """Twice int32, and the output's."""
        return (I32, I32, BY_BITS[self.rule.quant.bits])

    def compute(self, *operands: Array) -> Array:
        """Return the probabilities."""
        return self.rule.finish(operands[0], operands[1] & 0xFFFF, operands[1] >> 16)


@dataclass(frozen=True)
class L2Square(RuledMap):
    """The square of the distance to the zero point."""

    rule: L2Rule

    name = "l2_square"

    @property
    def types(self) -> tuple[DType, ...]:
        """The input's, and int64."""
        return (BY_BITS[self.rule.quant.bits], I64)

    def compute(self, *operands: Array) -> Array:
        """Return the squares."""
        return (operands[0] - self.rule.quant.zero) ** 2


@dataclass(frozen=True)
class L2Scale(RuledMap):
    """One over the root of a sum of squares, and the shift that goes with it."""

    rule: L2Rule

    name = "l2_scale"
    types = (I64, I32)

    def tables(self) -> tuple[Array, ...]:
        """Return the inverse root's entries."""
        return (INVERSE_ROOT.values,)

    def compute(self, *operands: Array) -> Array:
        """Return multiplier and shift in one integer."""
        root, shift = self.rule.inverse(operands[0])
        return _packed(root, shift + PACKED_BASE)


@dataclass(frozen=True)
class L2Finish(RuledMap):
    """Elements times the inverse root. Operands: x, L2Scale's result."""

    rule: L2Rule

    name = "l2_finish"

    @property
    def types(self) -> tuple[DType, ...]:
        """The input's, int32, and the output's."""
        own = BY_BITS[self.rule.quant.bits]
        return (own, I32, own)

    def compute(self, *operands: Array) -> Array:
        """Return the normalised elements."""
        shift = (operands[1] >> 16) - PACKED_BASE
        return self.rule.finish(operands[0], operands[1] & 0xFFFF, shift)

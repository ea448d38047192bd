"""embARC MLI 2.0: the dense layer of recurrent cells, which sums several scaled products.

Each input has weights of its own; its products are scaled to a common format before they are
added. The bias goes with the first input.
"""

from __future__ import annotations

import numpy as np

from clnn.arith._base import Arithmetic, Array
from clnn.arith.mli import MliAffine
from clnn.arith.mli_convert import sign_bits
from clnn.arith.mli_maps import BY_BITS
from clnn.arith.mli_primitives import (
    cast,
    redundant_sign_bits,
    round_shift,
    shift_left,
    wrap,
)
from clnn.arith.mli_quant import Quant
from clnn.errors import DTypeError
from clnn.records import dataclass
from clnn.types import I32, I64, DType


@dataclass(frozen=True)
class DenseRule:
    """One input of a dense layer: what becomes of its sum of products.

    given: quantisation of the input. w_bits: of the weights. weights: (scale, frac) for each gate.
    wanted: format of the result. bias_frac: of the bias, None where another input has it.
    """

    given: Quant
    w_bits: int
    weights: tuple[tuple[int, int], ...]
    wanted: Quant
    bias_frac: int | None = None
    full: bool = False
    up: bool = False

    @property
    def acc_bits(self) -> int:
        """Width of the accumulator."""
        return 64 if self.given.bits == 16 and self.w_bits == 16 else 32

    def scaling(self) -> list[tuple[int, int]]:
        """Return (multiplier, rounding shift) for each gate."""
        if not self.given.affine:
            return [(1, self.given.frac + frac - self.wanted.frac) for _, frac in self.weights]
        g, o = self.given, self.wanted
        ratio, shift = MliAffine(g.scale, g.frac, o.scale, o.frac, (), (), up=self.up).ratio
        return [self._gate(ratio * scale, shift + frac) for scale, frac in self.weights]

    def _gate(self, mul: int, shift: int) -> tuple[int, int]:
        bits = 0 if self.full else redundant_sign_bits(mul)
        return mul << bits, min(shift + bits, 63)

    def start(self, weights: Array, bias: Array | None) -> Array:
        """Return what sums begin with, for weights (gates, inputs, units), bias (gates, units)."""
        wide = weights.astype(np.int64)
        begin = -self.given.zero * wide.sum(axis=1)
        if bias is None:
            return wrap(begin, 32)
        given = bias.astype(np.int64)
        if self.given.affine:
            return wrap(begin + (given if self.full else leading(given)), 32)
        assert self.bias_frac is not None
        moved = [
            round_shift(row, self.bias_frac - self.given.frac - frac, self.acc_bits, self.up)
            for row, (_, frac) in zip(given, self.weights, strict=True)
        ]
        return wrap(np.stack(moved), 32)

    def __call__(self, x: Array, weights: Array, bias: Array | None) -> Array:
        """Return scaled sums (n, gates, units) of x (n, inputs) as int64."""
        total = np.einsum("ni,giu->ngu", x.astype(np.int64), weights.astype(np.int64))
        acc = wrap(total + self.start(weights, bias), self.acc_bits)
        parts = []
        for gate, (mul, shift) in enumerate(self.scaling()):
            if self.given.affine:
                parts.append(cast(acc[:, gate] * mul, shift, 64, 32, self.up))
            else:
                parts.append(round_shift(acc[:, gate], shift, self.acc_bits, self.up))
        return np.stack(parts, axis=1)


def leading(bias: Array) -> Array:
    """Return 32-bit numbers with only their 16 leading bits kept."""
    drop = np.maximum(16 - sign_bits(bias), 0)
    return shift_left(bias >> drop, drop, 32)


def gate_quant(given: Quant, w_frac: int) -> Quant:
    """Return the format in which the gates of LSTM are summed."""
    if given.affine:
        return Quant(8, 4, 1, 0, True)
    return Quant(given.bits, min(10, given.frac + w_frac))


def gru_gate_quant(given: Quant, w_frac: int) -> Quant:
    """Return the format in which the gates of GRU are summed."""
    if given.affine:
        return Quant(8, 9, 21, 0, True)
    return Quant(given.bits, min(11, given.frac + w_frac))


@dataclass(frozen=True)
class MliDense(Arithmetic):
    """Sums of products scaled to a common format, at the accumulator's width.

    Output channels are the units of one gate after those of another.
    """

    rule: DenseRule
    gates: int

    library = "_arith/mli_dense.cl.mako"
    wraps = True

    @property
    def name(self) -> str:
        """Name in kernels."""
        return f"mli_dense_{'sa8' if self.rule.given.affine else f'fx16_w{self.rule.w_bits}'}"

    @property
    def acc(self) -> str:
        """Type of the accumulator."""
        return "long" if self.rule.acc_bits == 64 else "int"

    @property
    def fill(self) -> int:
        """The zero point."""
        return self.rule.given.zero

    def output(self, x: DType, w: DType) -> DType:
        """Return the accumulator's type. Raises DTypeError where operands are not of the format."""
        if x != BY_BITS[self.rule.given.bits] or w != BY_BITS[self.rule.w_bits]:
            raise DTypeError(f"{self.name} of {x.name} with {w.name}: not its operands.")
        return I64 if self.rule.acc_bits == 64 else I32

    def bias(self, x: DType, w: DType) -> DType:
        """Return the type of the weights, or int32 for sa8."""
        return I32 if self.rule.given.affine else w

    def _gated(self, weights: Array, bias: Array | None) -> tuple[Array, Array | None]:
        """Return weights (gates, inputs, units) and bias (gates, units)."""
        moved = weights.reshape(self.gates, -1, weights.shape[1]).transpose(0, 2, 1)
        return moved, None if bias is None else bias.reshape(self.gates, -1)

    def table(self, weights: Array, bias: Array | None) -> Array | None:
        """Return rows: what sums of 32 bits begin with, multiplier, shift, what is added at last."""
        count = len(weights)
        start = self.rule.start(*self._gated(weights.reshape(count, -1), bias)).reshape(-1)
        scaling = np.repeat(np.array(self.rule.scaling(), np.int64), count // self.gates, axis=0)
        begin, late = (start * 0, start) if self.acc == "long" else (start, start * 0)
        return np.stack([begin, *scaling.T, late]).astype(np.int32)

    def reference(self, columns: Array, weights: Array, bias: Array | None) -> Array:
        """Return scaled sums for 1x1 windows over 1x1 images."""
        n, _, channels = columns.shape[:3]
        flat = weights.reshape(-1, channels)
        y = self.rule(columns.reshape(n, channels), *self._gated(flat, bias))
        kind = np.int64 if self.rule.acc_bits == 64 else np.int32
        return y.reshape(n, 1, -1, *columns.shape[4:]).astype(kind)

"""embARC MLI 2.0: the dense layer of recurrent cells, which sums several scaled products.

Each input has weights of its own; its products are scaled to a common format before they are
added. The bias goes with the first input.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clnn.arith._base import Array
from clnn.arith.mli import MliAffine, MliFixed
from clnn.arith.mli_primitives import (
    add,
    cast,
    redundant_sign_bits,
    round_shift,
    saturate,
    shift_left,
    wrap,
)
from clnn.arith.mli_quant import Quant


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
        moved = [round_shift(row, self.bias_frac - self.given.frac - frac, self.acc_bits, self.up)
                 for row, (_, frac) in zip(given, self.weights, strict=True)]  # fmt: skip
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
    from clnn.arith.mli_convert import sign_bits

    drop = np.maximum(16 - sign_bits(bias), 0)
    return shift_left(bias >> drop, drop, 32)


def dense_sum(parts: list[Array], bits: int, out: Quant) -> Array:
    """Return the saturating sum of scaled products, moved by the zero point, as int64."""
    total = parts[0]
    for part in parts[1:]:
        total = add(total, part, bits)
    return saturate(add(total, out.zero, bits), out.bits)


def gate_quant(given: Quant, w_frac: int) -> Quant:
    """Return the format in which the gates of a cell are summed."""
    if given.affine:
        return Quant(8, 4, 1, 0, True)
    return Quant(given.bits, min(10 if given.bits == 16 else 4, given.frac + w_frac))


__all__ = ["DenseRule", "MliFixed", "dense_sum", "gate_quant"]

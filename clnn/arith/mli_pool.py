"""embARC MLI 2.0: averages of windows in fx8, fx16 and sa8."""

from __future__ import annotations

import numpy as np

from clnn.arith._base import Array, Averaging
from clnn.arith.mli_maps import BY_BITS
from clnn.arith.mli_primitives import (
    cast,
    normalise,
    redundant_sign_bits,
    shift_left,
    wrap,
)
from clnn.arith.mli_quant import Quant, requant
from clnn.records import dataclass
from clnn.types import DType


@dataclass(frozen=True)
class AverageRule(Averaging):
    """Sums of windows times the reciprocal of their element count, at the output's scale.

    wide: the multiplier of sa8 keeps 16 bits instead of 8 (the build mode AVEPOOL_16BIT_MUL).
    """

    given: Quant
    wanted: Quant
    wide: bool = False
    up: bool = False

    library = "_arith/mli_pool.cl.mako"

    def accepts(self, dtype: DType) -> bool:
        """Whether this is the type of the tensor's elements."""
        return dtype == BY_BITS[self.given.bits]

    @property
    def name(self) -> str:
        """Name in kernels."""
        kind = "sa8" if self.given.affine else f"fx{self.given.bits}"
        return f"mli_{kind}_{'up' if self.up else 'even'}"

    @property
    def acc_bits(self) -> int:
        """Width of the accumulator."""
        return 64 if self.given.bits == 16 else 32

    def table(self, most: int) -> Array:
        """Return multiplier, shift and start of the sum for 0..most elements, as int32."""
        rows = [self._rate(max(count, 1)) for count in range(most + 1)]
        return np.array(rows, np.int32)

    def _rate(self, count: int) -> tuple[int, int, int]:
        mul, shift = reciprocal(count)
        if not self.given.affine:
            return mul, self.given.frac - self.wanted.frac + shift, 0
        scaling = requant(self.given, self.wanted, self.up)
        value, more = normalise(scaling.scale * mul, 32, 16 if self.wide else 8, self.up)
        shift += scaling.shift - more
        return value, shift, int(shift_left(scaling.offset, shift, 32))

    def finish(self, total: Array, count: Array) -> Array:
        """Return averages of sums (int64) over `count` elements each."""
        rates = self.table(int(count.max(initial=0))).astype(np.int64)
        mul, shift, start = np.moveaxis(rates[count], -1, 0)
        acc = wrap(total * mul + start, self.acc_bits)
        return cast(acc, shift, self.acc_bits, self.given.bits, self.up)


def reciprocal(count: int) -> tuple[int, int]:
    """Return (multiplier of 15 bits, shift) that divide by `count`."""
    if count == 1:
        return 1 << 14, 14
    value = (1 << 31) // count
    n = redundant_sign_bits(value) + 1
    return (value << n) >> 17, 14 + n

"""Sums by fours of dequantised bytes times real weights, in the order of ONNX Runtime's single filters."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clnn.arith.real_products import RealProducts
from clnn.records import dataclass
from clnn.types import U8, Array

FOUR = 4


@dataclass(frozen=True)
class RealFours(RealProducts):
    """Dequantised inputs times real weights, as ONNX Runtime's library multiplies one row with a matrix.

    So it computes groups of one output channel: products are rounded and added up by fours (channel after channel,
    each row by row), of three that are left the first two and then the last one; then the fours.
    """

    apart = FOUR
    fours = True

    @property
    def name(self) -> str:
        """Name in kernels."""
        return f"r4_{'u' if self.kind == U8 else 's'}8"

    def reference(self, columns: Array, weights: Array, bias: Array | None) -> Array:
        """Return rounded, clipped results."""
        real = self.stands_for(columns)
        n, group, channels, taps = real.shape[:4]
        outs = real.shape[4:]
        terms = real.reshape(n, group, 1, channels * taps, *outs)
        factors = weights.reshape(group, -1, channels * taps)
        total = np.zeros((n, group, factors.shape[1], *outs), np.float32)
        part = np.zeros_like(total)
        for k, is_last in enumerate(ends_of_fours(channels * taps)):
            factor = factors[:, :, k].reshape(1, group, -1, *(1,) * len(outs))
            part = part + terms[:, :, :, k] * factor
            if is_last:
                total, part = total + part, np.zeros_like(total)
        return self.rounded(total)


def ends_of_fours(count: int) -> Iterator[bool]:
    """Yield for each of so many products whether what was added up until then is added to the sum."""
    for k in range(count):
        yield k % FOUR == FOUR - 1 or k == count - 1 or (count % FOUR == 3 and k == count - 2)

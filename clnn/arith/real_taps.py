"""Sums of dequantised bytes times real weights, in the order of ONNX Runtime's transposed convolutions."""

from __future__ import annotations

from dataclasses import field

import numpy as np

from clnn.arith.quantised import fused
from clnn.arith.real_products import RealProducts
from clnn.records import dataclass
from clnn.types import U8, Array


@dataclass(frozen=True)
class RealTaps(RealProducts):
    """Dequantised inputs times real weights, summed in float32 as ONNX Runtime's transposed convolution.

    Of each tap, products with one channel after the other are added in one rounding each, up to 128
    channels at a time; then these sums, then the taps row by row.
    quads: as it takes images of one pixel: products are rounded, and added up by fours, the last two and
    the last one by themselves. weight_steps: what a step of the weights is worth, one for all or one per output
    channel, where they are dequantised integers.
    """

    quads: bool = False
    weight_steps: tuple[float, ...] = field(default=(), metadata={"data": True})

    apart = 128

    @property
    def name(self) -> str:
        """Name in kernels."""
        return f"r_{'u' if self.kind == U8 else 's'}8"

    def integers(self, weights: Array) -> Array | None:
        """Return weights (oc, ...) as the integers that they were dequantised from, None where they are others."""
        if not self.weight_steps or not weights.size:
            return None
        beside = (1,) * (weights.ndim - 1)
        steps = np.array(self.weight_steps, np.float32).reshape(-1, *beside)
        whole = np.rint(weights / steps)
        fits = np.abs(whole).max() <= 255 and np.array_equal(whole * steps, weights)
        return whole.astype(np.int16) if fits else None

    def _parts(self, channels: int) -> list[tuple[int, int]]:
        """Return the channels (first, stop) whose products are summed by themselves."""
        size = 4 if self.quads else self.apart
        found = [(k, min(k + size, channels)) for k in range(0, channels, size)]
        if self.quads and channels % 4 == 3:
            found[-1:] = [(channels - 3, channels - 1), (channels - 1, channels)]
        return found

    def reference(self, columns: Array, weights: Array, bias: Array | None) -> Array:
        """Return rounded, clipped results."""
        real = self.stands_for(columns)
        n, group, channels, taps = real.shape[:4]
        shape = (n, group, weights.shape[1], *real.shape[4:])
        beside = (1,) * (real.ndim - 4)
        total = np.zeros(shape, np.float32)
        for tap in range(taps):
            summed = np.zeros(shape, np.float32)
            for first, stop in self._parts(channels):
                part = np.zeros(shape, np.float32)
                for c in range(first, stop):
                    factor = weights[:, :, c, tap].reshape(1, group, -1, *beside)
                    x = real[:, :, None, c, tap]
                    part = part + x * factor if self.quads else fused(x, factor, part)
                summed = summed + part
            total = total + summed
        return self.rounded(total)

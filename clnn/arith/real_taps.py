"""Sums of dequantised bytes times real weights, in the order of ONNX Runtime's transposed convolutions."""

from __future__ import annotations

from dataclasses import field

import numpy as np

from clnn.arith._base import Arithmetic, Array
from clnn.arith.mli import per_channel
from clnn.arith.quantised import fused
from clnn.errors import DTypeError
from clnn.records import dataclass
from clnn.types import F32, I8, U8, DType


@dataclass(frozen=True)
class RealTaps(Arithmetic):
    """Dequantised inputs times real weights, summed in float32 as ONNX Runtime's transposed convolution.

    Of each tap, products with one channel after the other are added in one rounding each, up to 128
    channels at a time; then these sums, then the taps row by row, then the bias. The result is divided,
    rounded and clipped to low..high. zero, step_in: of inputs. kind, zero_out, step_out: of results.
    quads: as it takes images of one pixel: products are rounded, and added up by fours, the last two and
    the last one by themselves. weight_steps: what a step of the weights is worth, one for all or one per output
    channel, where they are dequantised integers.
    """

    zero: int
    step_in: float
    kind: DType
    zero_out: int
    step_out: float
    low: int
    high: int
    quads: bool = False
    offsets: tuple[float, ...] = field(default=(), metadata={"data": True})
    weight_steps: tuple[float, ...] = field(default=(), metadata={"data": True})

    library = "_arith/quantised.cl.mako"
    acc = "float"
    product = "float"
    strict = True
    apart = 128
    requantises = True
    written = False

    @property
    def name(self) -> str:
        """Name in kernels."""
        return f"r_{'u' if self.kind == U8 else 's'}8"

    @property
    def fill(self) -> int:
        """The zero point of the input."""
        return self.zero

    def output(self, x: DType, w: DType) -> DType:
        """Return the type of results. Raises DTypeError for other operands."""
        if x not in (I8, U8) or w != F32:
            raise DTypeError(
                f"real product of {x.name} with {w.name}: it takes bytes with float32."
            )
        return self.kind

    def bias(self, x: DType, w: DType) -> DType:
        """Return float32."""
        return F32

    def stands_for(self, values: Array) -> Array:
        """Return the real numbers that bytes of the input are."""
        steps = (values.astype(np.int64) - self.zero).astype(np.float32)
        return np.asarray(steps * np.float32(self.step_in))

    def integers(self, weights: Array) -> Array | None:
        """Return weights (oc, ...) as the integers that they were dequantised from, None where they are others."""
        if not self.weight_steps or not weights.size:
            return None
        beside = (1,) * (weights.ndim - 1)
        steps = np.array(self.weight_steps, np.float32).reshape(-1, *beside)
        whole = np.rint(weights / steps)
        fits = np.abs(whole).max() <= 255 and np.array_equal(whole * steps, weights)
        return whole.astype(np.int16) if fits else None

    def table(self, weights: Array, bias: Array | None) -> Array | None:
        """Return rows: nothing, which sums begin with; the bias."""
        offsets = np.array(self.offsets or (0.0,), np.float32)
        added = np.broadcast_to(offsets, (len(weights),))
        return np.stack([np.zeros_like(added), added])

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
        offsets = np.array(self.offsets or (0.0,), np.float32)
        moved = total + per_channel(np.broadcast_to(offsets, (group * weights.shape[1],)), total)
        steps = np.rint(moved / np.float32(self.step_out)).astype(np.float64) + self.zero_out
        return np.asarray(np.clip(steps, self.low, self.high)).astype(self.kind.numpy)

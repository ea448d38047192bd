"""Sums by fours of dequantised bytes times real weights, in the order of ONNX Runtime's single filters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

import numpy as np

from clnn.arith._base import Arithmetic, Array
from clnn.arith.mli import per_channel
from clnn.errors import DTypeError
from clnn.records import dataclass
from clnn.types import F32, I8, U8, DType

FOUR = 4


@dataclass(frozen=True)
class RealFours(Arithmetic):
    """Dequantised inputs times real weights, as ONNX Runtime's library multiplies one row with a matrix.

    So it computes groups of one output channel: products are rounded and added up by fours (channel after channel,
    each row by row), of three that are left the first two and then the last one; then the fours, then the
    bias. The result is divided, rounded and clipped to low..high. zero, step_in: of inputs. kind, zero_out,
    step_out: of results. offsets: the bias, one for all or one per output channel.
    """

    zero: int
    step_in: float
    kind: DType
    zero_out: int
    step_out: float
    low: int
    high: int
    offsets: tuple[float, ...] = field(default=(), metadata={"data": True})

    library = "_arith/quantised.cl.mako"
    acc = "float"
    product = "float"
    strict = True
    apart = FOUR
    fours = True
    requantises = True
    written = False

    @property
    def name(self) -> str:
        """Name in kernels."""
        return f"r4_{'u' if self.kind == U8 else 's'}8"

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

    def table(self, weights: Array, bias: Array | None) -> Array | None:
        """Return rows: nothing, which sums begin with; the bias."""
        offsets = np.array(self.offsets or (0.0,), np.float32)
        added = np.broadcast_to(offsets, (len(weights),))
        return np.stack([np.zeros_like(added), added])

    def reference(self, columns: Array, weights: Array, bias: Array | None) -> Array:
        """Return rounded, clipped results."""
        steps = (columns.astype(np.int64) - self.zero).astype(np.float32)
        real = np.asarray(steps * np.float32(self.step_in))
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
        offsets = np.array(self.offsets or (0.0,), np.float32)
        moved = total + per_channel(np.broadcast_to(offsets, (group * weights.shape[1],)), total)
        found = np.rint(moved / np.float32(self.step_out)).astype(np.float64) + self.zero_out
        return np.asarray(np.clip(found, self.low, self.high)).astype(self.kind.numpy)


def ends_of_fours(count: int) -> Iterator[bool]:
    """Yield for each of so many products whether what was added up until then is added to the sum."""
    for k in range(count):
        yield k % FOUR == FOUR - 1 or k == count - 1 or (count % FOUR == 3 and k == count - 2)

"""What sums of dequantised bytes times real weights have in common, in whichever order they are added."""

from __future__ import annotations

from dataclasses import field

import numpy as np

from clnn.arith._base import Arithmetic, Array
from clnn.arith.mli import per_channel
from clnn.errors import DTypeError
from clnn.records import dataclass
from clnn.types import F32, I8, U8, DType


@dataclass(frozen=True)
class RealProducts(Arithmetic):
    """Dequantised inputs times real weights, summed in float32; then the bias is added.

    The result is divided, rounded and clipped to low..high. zero, step_in: of inputs. kind, zero_out, step_out: of
    results. offsets: the bias, one for all or one per output channel.
    """

    zero: int
    step_in: float
    kind: DType
    zero_out: int
    step_out: float
    low: int
    high: int
    offsets: tuple[float, ...] = field(default=(), kw_only=True, metadata={"data": True})

    library = "_arith/quantised.cl.mako"
    acc = "float"
    product = "float"
    strict = True
    requantises = True
    written = False

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

    def table(self, weights: Array, bias: Array | None) -> Array | None:
        """Return rows: nothing, which sums begin with; the bias."""
        offsets = np.array(self.offsets or (0.0,), np.float32)
        added = np.broadcast_to(offsets, (len(weights),))
        return np.stack([np.zeros_like(added), added])

    def rounded(self, total: Array) -> Array:
        """Return results of sums (n, group, oc / group, outs...) that have no bias yet."""
        channels = total.shape[1] * total.shape[2]
        offsets = np.array(self.offsets or (0.0,), np.float32)
        moved = total + per_channel(np.broadcast_to(offsets, (channels,)), total)
        steps = np.rint(moved / np.float32(self.step_out)).astype(np.float64) + self.zero_out
        return np.asarray(np.clip(steps, self.low, self.high)).astype(self.kind.numpy)

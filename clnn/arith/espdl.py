"""ESP-DL: sums of products of integers whose scales are powers of two.

A value is an integer times 2**exponent. Sums of products have the exponent of the input plus that of
the weights; a shift brings them to the exponent of the result, rounded as the generation and the chip
do: 1.x rounds down, 3.x to nearest, with ties up (ESP32-S3 and the C kernels) or to even (ESP32-P4).
Sources: the documents and headers of ESP-DL 1.x, the C kernels of ESP-DL 3.x, and results of chips.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import Any

import numpy as np

from clnn.arith._base import Arithmetic, Array
from clnn.arith.mli import dot, per_channel
from clnn.arith.mli_primitives import limits, saturate, wrap
from clnn.errors import DTypeError
from clnn.records import dataclass
from clnn.types import I8, I16, I32, I64, DType

FLOOR, HALF_UP, HALF_EVEN = "floor", "half_up", "half_even"
ROUNDINGS = (FLOOR, HALF_UP, HALF_EVEN)
BY_BITS = {8: I8, 16: I16}
LANE = 20  # bits of an accumulator of the ESP32-S3's vector unit, for bytes
ENOUGH = 17  # a result beyond 2**ENOUGH saturates whatever bias is added to it
CHIPS = {  # how 3.x rounds on them
    "c": HALF_UP,
    "esp32": HALF_UP,
    "esp32s2": HALF_UP,
    "esp32s3": HALF_UP,
    "esp32c2": HALF_UP,
    "esp32c3": HALF_UP,
    "esp32c5": HALF_UP,
    "esp32c6": HALF_UP,
    "esp32p4": HALF_EVEN,
    "esp32s31": HALF_EVEN,
}
GRAIN = 4  # bits that the ESP32-P4 drops of sums before it adds the bias of a channel


def moved(x: Array, n: Array | int, rounding: str) -> Array:
    """Return x / 2**n as int64, rounded; n < 0 moves left, exact up to 2**58 and saturating there."""
    x, n = np.broadcast_arrays(np.asarray(x, np.int64), np.asarray(n, np.int64))
    left = np.clip(x, -(2**40), 2**40) << np.clip(-n, 0, 18)
    right = np.clip(n, 1, 63)
    down = x >> right
    if rounding != FLOOR:
        down = np.where(n > 63, 0, down + _more(x, down, right, rounding))
    return np.asarray(np.where(n > 0, down, left))


def _more(x: Array, down: Array, right: Array, rounding: str) -> Array:
    """Return what rounding to nearest adds to x >> right."""
    half = x >> right - 1 & 1
    if rounding == HALF_UP:
        return np.asarray(half)
    rest = x & (np.left_shift(np.int64(1), right - 1) - 1)
    return np.asarray(half & ((rest != 0) | (down & 1 == 1)))


def rounded(values: Array, rounding: str) -> Array:
    """Return float32 numbers rounded to integers, as float32; ties up is the addition of a half."""
    values = np.asarray(values, np.float32)
    if rounding == HALF_UP:
        return np.floor(values + np.float32(0.5))
    return np.rint(values) if rounding == HALF_EVEN else np.floor(values)


def clamped(values: Array, bits: int) -> Array:
    """Return whole float32 numbers as integers of `bits` bits; a NaN becomes 0."""
    low, high = limits(bits)
    return np.asarray(np.clip(np.nan_to_num(values, nan=0.0), low, high)).astype(np.int64)


def fitting(values: Array, bits: int) -> int:
    """Return the least exponent with which the largest magnitude is at most 2**(bits - 1) steps."""
    largest = float(np.abs(np.asarray(values, np.float64)).max(initial=0.0))
    if not 0 < largest < np.inf:
        return 0
    fraction, power = np.frexp(largest)  # largest = fraction * 2**power, fraction from a half to 1
    return int(power) - (bits - 1) - (1 if fraction == 0.5 else 0)


def coefficients(values: Array, exponent: Array | int, bits: int) -> Array:
    """Return real coefficients in steps of 2**exponent: ties to even, limited to +-(2**(bits - 1) - 1)."""
    most = (1 << bits - 1) - 1
    steps = np.rint(np.ldexp(np.asarray(values, np.float64), -np.asarray(exponent)))
    return np.asarray(np.clip(steps, -most, most)).astype(BY_BITS[bits].numpy)


@dataclass(frozen=True)
class EspProducts(Arithmetic):
    """Sums of products of int8 (in 32 bits, which wrap) or int16 (in 64 bits), shifted and saturated.

    bits: of inputs and results; w_bits: of weights, where they have others. shifts: exponent of the
    result less those of the input and of the weights, one for all or one per output channel. late: the
    bias is added to shifted sums, as int32 in steps of the result; else it is added before, as int32, or
    int64 for int16. grain: low bits that sums with their bias lose, for channels with a shift below
    that. low, high: what results are clipped to. wide: the bias exceeds 32 bits.
    """

    bits: int
    shifts: tuple[int, ...] = field(metadata={"data": True})
    rounding: str = HALF_UP
    late: bool = False
    w_bits: int = 0
    grain: int = 0
    low: int = -32768
    high: int = 32767
    wide: bool = False

    library = "_arith/espdl.cl.mako"
    wraps = True
    tapwise = False
    lane = 0

    @property
    def name(self) -> str:
        """Name in kernels."""
        return f"espdl_s{self.bits}" + (f"w{self.w_bits}" if self.w_bits else "")

    @property
    def acc(self) -> str:
        """OpenCL type of the accumulator."""
        return "long" if self.bits == 16 else "int"

    @property
    def limits(self) -> tuple[int, int]:
        """Least and largest result."""
        low, high = limits(self.bits)
        return max(low, self.low), min(high, self.high)

    @property
    def shift(self) -> int | None:
        """The shift that all channels have, None where they differ."""
        return self.shifts[0] if len(set(self.shifts)) == 1 else None

    @property
    def grains(self) -> bool:
        """Whether a channel has a shift below the bits that sums lose."""
        return min(self.shifts) < self.grain

    @property
    def adds(self) -> bool:
        """Whether a bias is added to finished sums."""
        return self.late or self.acc == "long"

    def output(self, x: DType, w: DType) -> DType:
        """Return the type of the input. Raises DTypeError for other operands."""
        wanted = BY_BITS[self.bits], BY_BITS[self.w_bits or self.bits]
        if (x, w) != wanted:
            raise DTypeError(
                f"{self.name} of {x.name} with {w.name}: it takes {wanted[0].name} with {wanted[1].name}."
            )
        return x

    def bias(self, x: DType, w: DType) -> DType:
        """Return int32, or int64 for one that is added to sums of 64 bits."""
        return I64 if self.acc == "long" and not self.late else I32

    def refine(self, weights: Array, bias: Array | None) -> Arithmetic:
        """Return the arithmetic with what is known of its bias."""
        far = bias is not None and bool((wrap(bias, 32) != bias).any())
        return replace(self, wide=far)

    def _rows(self, count: int, bias: Array | None) -> Array:
        given = np.zeros(count, np.int64) if bias is None else bias.astype(np.int64)
        return np.asarray(given)

    def start(self, given: Array) -> Array:
        """Return what sums begin with, for a bias as int64."""
        return given

    def table(self, weights: Array, bias: Array | None) -> Array | None:
        """Return rows: start; the bias (its low, then its high half where wide); the shift."""
        count = len(weights)
        given = self._rows(count, bias)
        rows = [np.zeros_like(given) if self.adds else self.start(given)]
        if self.adds:
            rows += [wrap(given, 32), given >> 32] if self.wide else [given]
        if self.shift is None:
            rows.append(np.array(self.shifts, np.int64))
        return np.stack([wrap(row, 32) for row in rows]).astype(np.int32)

    def sums(self, columns: Array, weights: Array, given: Array) -> Array:
        """Return sums as int64; `given` is the bias in the shape that broadcasts over them."""
        total = dot(columns, weights)
        with np.errstate(over="ignore"):
            return wrap(total if self.late else total + given, 64 if self.acc == "long" else 32)

    def reference(self, columns: Array, weights: Array, bias: Array | None) -> Array:
        """Return results as int8 or int16."""
        count = weights.shape[0] * weights.shape[1]
        like = np.empty((1, *weights.shape[:2], *(1,) * (columns.ndim - 4)))
        given = per_channel(self._rows(count, bias), like)
        total = self.sums(columns, weights, given)
        if self.grains:
            total = total >> self.grain << self.grain
        shifts = per_channel(np.broadcast_to(np.array(self.shifts), (count,)), like)
        steps = moved(total, shifts, self.rounding) + (given if self.late else 0)
        return np.asarray(np.clip(steps, *self.limits)).astype(BY_BITS[self.bits].numpy)


@dataclass(frozen=True)
class EspLanes(EspProducts):
    """Sums of products of int8 in the 20-bit lanes of the ESP32-S3's vector unit.

    They begin with the lowest 20 bits of the bias, and each product saturates them: window by window
    row, then column, then input channel.
    """

    wraps = False
    tapwise = True
    lane = LANE

    @property
    def name(self) -> str:
        """Name in kernels."""
        return "espdl_lanes"

    def start(self, given: Array) -> Array:
        """Return the lowest bits of the bias."""
        return wrap(given, LANE)

    def sums(self, columns: Array, weights: Array, given: Array) -> Array:
        """Return sums as int64, one product at a time."""
        n, _, channels, taps, *outs = columns.shape
        total: Any = np.zeros((n, *weights.shape[:2], *outs), np.int64) + wrap(given, LANE)
        for tap in range(taps):
            for c in range(channels):
                x = columns[:, :, None, c, tap].astype(np.int64)
                w = weights[None, :, :, c, tap].reshape(1, *weights.shape[:2], *(1,) * len(outs))
                total = saturate(total + x * w.astype(np.int64), LANE)
        return np.asarray(total)


def in_lanes(arith: EspProducts, weights: Array, bias: Array | None) -> EspProducts:
    """Return the arithmetic of the ESP32-S3's vector unit; the same where no sum can leave its lanes.

    weights (oc, ...), bias (oc) or None. For int8 with a bias that is added before the shift.
    """
    if arith.bits != 8 or arith.late:
        raise DTypeError(
            f"{arith.name} in lanes of {LANE} bits: it takes int8, bias before shifts."
        )
    largest = 128 * np.abs(weights.reshape(len(weights), -1).astype(np.int64)).sum(1)
    if bias is not None:
        largest = largest + np.abs(bias.astype(np.int64))
    if (largest < 2 ** (LANE - 1)).all():
        return arith
    return EspLanes(arith.bits, arith.shifts, arith.rounding, low=arith.low, high=arith.high)

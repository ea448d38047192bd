"""OpenVX neural-network arithmetic: numpy references of every node, exact to the last bit.

Elements are integers with a fixed-point position: the real value is raw / 2**fraction. Each
function takes raw integers and gives raw integers. `conformance` chooses the behaviour of the
Khronos conformance suite's reference (of the sample implementation for normalisation) where it
differs from the specification's formula; docs/openvx.md lists the differences.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from clnn.arith._base import Array
from clnn.records import dataclass
from clnn.types import DType

ACTIVATIONS = ("logistic", "tanh", "relu", "brelu", "softrelu", "abs", "square", "sqrt", "linear")
SEGMENTS = 64  # of the sample implementation's piecewise-linear power


@dataclass(frozen=True)
class Format:
    """Element type and fixed-point position: the real value is raw / 2**fraction."""

    dtype: DType
    fraction: int = 0

    @property
    def low(self) -> int:
        """Smallest raw value."""
        return int(np.iinfo(self.dtype.numpy).min)  # type: ignore[type-var]

    @property
    def high(self) -> int:
        """Largest raw value."""
        return int(np.iinfo(self.dtype.numpy).max)  # type: ignore[type-var]

    def every(self) -> Array:
        """Return all raw values in ascending order, as int64."""
        return np.arange(self.low, self.high + 1, dtype=np.int64)

    def convert(self, values: Array, wrap: bool) -> Array:
        """Return integers as elements: low bits kept (wrap) or clamped to the type's range."""
        wide = np.asarray(values, np.int64)
        if not wrap:
            wide = np.clip(wide, self.low, self.high)
        kept: Array = wide.astype(self.dtype.numpy)
        return kept

    def truncated(self, values: Array) -> Array:
        """Return reals (already scaled by 2**fraction) cut towards zero and clamped; NaN is low."""
        kept = np.clip(np.nan_to_num(values, nan=self.low), self.low, self.high)
        cut: Array = np.trunc(kept).astype(self.dtype.numpy)
        return cut


def divide(values: Array, divisor: int) -> Array:
    """Return integer quotients truncated towards zero."""
    wide = np.asarray(values, np.int64)
    quotient: Array = np.sign(wide) * (np.abs(wide) // divisor)
    return quotient


def shifted(values: Array, shift: int, rounding: str) -> Array:
    """Return values / 2**shift as integers.

    rounding: "zero" truncates, "even" rounds to nearest with ties to even, "biased" adds half and
    truncates towards zero, as the conformance suite does for "nearest even".
    """
    wide = np.asarray(values, np.int64)
    if shift <= 0:
        return wide << -shift
    if rounding == "even":
        low = wide >> shift
        rest, half = wide - (low << shift), 1 << (shift - 1)
        rounded: Array = low + ((rest > half) | ((rest == half) & (low & 1 == 1)))
        return rounded
    return divide(wide + ((1 << (shift - 1)) if rounding == "biased" else 0), 1 << shift)


def add(x: Array, y: Array, result: Format, wrap: bool, sign: int = 1) -> Array:
    """Return x + sign * y, wrapped or clamped."""
    return result.convert(np.asarray(x, np.int64) + sign * np.asarray(y, np.int64), wrap)


@dataclass(frozen=True)
class Scale:
    """A float32 factor as mantissa * 2**exponent, with a 24-bit mantissa."""

    mantissa: int
    exponent: int

    @staticmethod
    def of(value: float) -> Scale:
        """Return the factor nearest to `value` in float32, in lowest terms."""
        part, exponent = math.frexp(float(np.float32(value)))
        mantissa, exponent = round(part * 2**24), exponent - 24
        while mantissa and mantissa % 2 == 0:
            mantissa, exponent = mantissa // 2, exponent + 1
        return Scale(mantissa, exponent if mantissa else 0)


def kept_bits(values: Array, bits: int) -> Array:
    """Return integers >= 0 rounded to `bits` significant bits, ties to even; bits 0 keeps all."""
    wide = np.asarray(values, np.int64)
    if not bits:
        return wide
    found = wide
    for drop in range(1, 64 - bits):
        over = wide >> (bits + drop - 1) == 1
        found = np.where(over, shifted(wide, drop, "even") << drop, found)
    return found


def multiply(
    x: Array, y: Array, scale: Scale, result: Format, shift: int, wrap: bool, even: bool, bits: int
) -> Array:
    """Return x * y * scale / 2**shift, rounded to nearest even or cut, wrapped or clamped.

    bits: significant bits that the scaled product is rounded to first (0: none), as 53 for a
    product in double precision and 24 for one in single precision.
    """
    product = np.asarray(x, np.int64) * np.asarray(y, np.int64) * scale.mantissa
    size = kept_bits(np.abs(product), bits)
    move = scale.exponent - shift
    if move >= 0:
        clamped = size if wrap else np.minimum(size, 1 << 20)
        size = clamped << min(move, 40) if move < 64 else np.zeros_like(size)
    else:
        size = shifted(size, min(-move, 62), "even" if even else "zero")
    return result.convert(np.sign(product) * size, wrap)


def _formula(name: str, a: float, b: float) -> Callable[[Array], Array]:
    """Return the specification's function of real numbers."""
    with_tanh = np.vectorize(math.tanh, otypes=[np.float64])
    formulas: dict[str, Callable[[Array], Array]] = {
        "logistic": lambda x: 1 / (1 + np.exp(-x)),
        "tanh": lambda x: a * with_tanh(b * x),
        "relu": lambda x: np.maximum(0, x),
        "brelu": lambda x: np.minimum(a, np.maximum(0, x)),
        "softrelu": lambda x: np.logaddexp(0, x),
        "abs": np.abs,
        "square": np.square,
        "sqrt": np.sqrt,
        "linear": lambda x: a * x + b,
    }
    return formulas[name]


def activation_table(
    name: str, a: float, b: float, source: Format, result: Format, conformance: bool
) -> Array:
    """Return the result for each raw value of `source`, in ascending order.

    The real function value is scaled, cut towards zero and clamped; the root of a negative number
    is 0. The conformance suite applies its three functions to raw integers, with the logistic's
    argument not negated.
    """
    raw = source.every().astype(np.float64)
    with np.errstate(all="ignore"):
        if conformance and name in ("logistic", "tanh", "relu"):
            real = 1 / (1 + np.exp(raw)) if name == "logistic" else _formula(name, a, b)(raw)
            return result.truncated(real)
        real = raw / 2.0**source.fraction
        values = _formula(name, a, b)(np.maximum(real, 0) if name == "sqrt" else real)
    return result.truncated(values * 2.0**result.fraction)


def depth_table(
    source: Format, result: Format, norm: float, offset: float, wrap: bool, conformance: bool
) -> Array:
    """Return (value - offset) / norm for each raw value of `source`, in ascending order.

    The conformance suite works in float32 and multiplies by the reciprocal of norm.
    """
    real: Array = source.every() / 2.0**source.fraction
    by, scale = np.float32(norm), np.float32(2.0**result.fraction)
    with np.errstate(all="ignore"):
        if conformance:
            scaled = (real.astype(np.float32) - np.float32(offset)) * (np.float32(1) / by) * scale
        else:
            scaled = (real - np.float64(np.float32(offset))) / np.float64(by) * np.float64(scale)
    if not wrap:
        return result.truncated(scaled)
    return result.convert(np.trunc(np.nan_to_num(scaled)).astype(np.int64), True)


def lookup(x: Array, table: Array, first: int, before: Array | None = None) -> Array:
    """Return table[x - first]; where that is outside of the table, `before` (None: 0)."""
    place = np.asarray(x, np.int64) - first
    inside = (place >= 0) & (place < table.size)
    kept = np.zeros(x.shape, table.dtype) if before is None else before
    return np.where(inside, table[np.clip(place, 0, max(table.size - 1, 0))], kept)


def exponentials(source: Format, below_top: bool) -> Array:
    """Return float32 exponentials for softmax.

    below_top: of -d / 2**fraction for differences d of 0, 1, ... to the largest element of a row;
    else of each raw value of `source` in ascending order.
    """
    raw = source.every().astype(np.float64)
    argument = raw[0] - raw if below_top else raw
    with np.errstate(over="ignore", under="ignore"):
        exact: Array = np.exp(argument / 2.0**source.fraction).astype(np.float32)
    return exact


def softmax(x: Array, axis: int, source: Format, result: Format, conformance: bool) -> Array:
    """Return e / sum(e) along an axis, in float32, summed in order, cut towards zero and clamped.

    The specification's softmax subtracts the row's largest element first; the conformance suite
    does not, so that large inputs overflow, and NaN becomes the smallest element.
    """
    rows = np.moveaxis(np.asarray(x, np.int64), axis, 0)
    place = rows - source.low if conformance else rows.max(0) - rows
    powers = exponentials(source, not conformance)[place]
    total = np.zeros(rows.shape[1:], np.float32)
    with np.errstate(all="ignore"):
        for row in powers:
            total = total + row
        parts = powers / total * np.float32(2.0**result.fraction)
    return np.moveaxis(result.truncated(parts), 0, axis)


def matmul(a: Array, b: Array, c: Array | None, result: Format, shift: int) -> Array:
    """Return a @ b + c, rescaled with half added and cut towards zero, clamped."""
    total = np.asarray(a, np.int64) @ np.asarray(b, np.int64)
    if c is not None:
        total = total + (np.asarray(c, np.int64) << max(shift, 0))
    return result.convert(shifted(total, shift, "biased"), False)


@dataclass(frozen=True)
class NormRule:
    """Constants of the sample implementation's normalisation in Q7.8.

    factor: applied to each input. offsets, slopes: chords of (1 + t)**-beta over 64 equal parts of
    [0, 128], in Q1.14.
    """

    factor: int
    offsets: tuple[int, ...]
    slopes: tuple[int, ...]

    @staticmethod
    def of(alpha: float, beta: float, size: int, across: bool) -> NormRule:
        """Return the constants for a window of `size`."""
        share = math.sqrt(alpha / size) if across else math.sqrt(alpha) / size
        edges = [(1 + 128 * k / SEGMENTS) ** -beta for k in range(SEGMENTS + 1)]
        width = 128 / SEGMENTS
        slopes = [(edges[k + 1] - edges[k]) / width for k in range(SEGMENTS)]
        offsets = [edges[k] - slopes[k] * width * k for k in range(SEGMENTS)]
        return NormRule(
            _nearest(share * 256),
            tuple(_nearest(o * 2**14) for o in offsets),
            tuple(_nearest(s * 2**14) for s in slopes),
        )


def _nearest(value: float) -> int:
    return math.floor(value + 0.5)


def q8(values: Array) -> Array:
    """Return values / 256, half rounded up, clamped to 16 bits."""
    wide = np.asarray(values, np.int64)
    return np.clip((wide >> 8) + ((wide >> 7) & 1), -(2**15), 2**15 - 1)


def window_sums(values: Array, size: int, across: bool) -> Array:
    """Return sums over the elements of (n, c, h, w) inside a centred window.

    The window has `size` channels (across), or size x size elements of one map; the odd one of an
    even size is behind the centre.
    """
    low, high = (size - 1) // 2, size // 2
    total: Array = values
    for axis in (1,) if across else (2, 3):
        pads = [(low, high) if a == axis else (0, 0) for a in range(4)]
        wide, extent = np.pad(total, pads), values.shape[axis]
        parts = [np.take(wide, np.arange(k, k + extent), axis) for k in range(size)]
        total = np.sum(parts, axis=0)
    return total


def normalise_sample(x: Array, rule: NormRule, size: int, across: bool) -> Array:
    """Return the sample implementation's normalisation of (n, c, h, w) int16 in Q7.8."""
    wide = np.asarray(x, np.int64)
    total = q8(window_sums(q8(wide * rule.factor) ** 2, size, across))
    part = np.clip(total >> 9, 0, SEGMENTS - 1)
    line = total * np.asarray(rule.slopes)[part] + np.asarray(rule.offsets)[part] * 256
    gain = np.clip((line >> 14) + ((line >> 13) & 1), -(2**15), 2**15 - 1)
    return q8(wide * gain).astype(np.int16)


def normalise(
    x: Array, alpha: float, beta: float, size: int, across: bool, source: Format, result: Format
) -> Array:
    """Return x / (1 + alpha / n * sum of squares) ** beta of (n, c, h, w), in double precision.

    n: elements of the window. The result is cut towards zero and clamped.
    """
    wide = np.asarray(x, np.int64)
    share = alpha / (size if across else size * size) / 4.0**source.fraction
    base = 1.0 + share * window_sums(wide * wide, size, across).astype(np.float64)
    moved = 2.0 ** (result.fraction - source.fraction)
    return result.truncated(wide * moved / power(base, beta))


def power(base: Array, beta: float) -> Array:
    """Return base ** beta of numbers of at least 1, by roots where these are exact."""
    if beta in (0.5, 0.75, 1.0):
        root = np.sqrt(base)
        return base if beta == 1 else root if beta == 0.5 else root * np.sqrt(root)
    return np.power(base, beta)


def pool_average(total: Array, count: int, result: Format) -> Array:
    """Return sums of windows over `count` elements, cut towards zero and clamped."""
    return result.convert(divide(total, count), False)

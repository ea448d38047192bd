"""Quantised operators as nodes, for the importer and for the pass that fuses float operators.

Sources are those of an ONNX node, or of any list of values that stands for its inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from clnn.arith.quantised import (
    Quantisation,
    QuantisedAverage,
    RealAverage,
    Requantised,
    Sums,
    Written,
)
from clnn.arith.quantised_maps import (
    SHIFT,
    ByteTable,
    Dequantise,
    Quantise,
    QuantisedProduct,
    QuantisedSum,
    WrittenBinary,
    every_byte,
    line_through,
)
from clnn.arith.real_taps import RealTaps
from clnn.ops.conv.spec import Conv2d
from clnn.ops.elementwise.fixed_map import FixedMap
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.views import Concat, Reshape, Transpose
from clnn.ops.onnx_registry import Emit, Source
from clnn.ops.pool.spec import Pool
from clnn.ops.quantised.softmax import byte_softmax
from clnn.ops.shared.window import Window
from clnn.traced import is_open
from clnn.types import I8, U8, Array, DType

F = np.float32
BYTE = 255  # the largest magnitude of an input
FLOAT_HOLDS = 2**24  # whole numbers up to which float32 has them all


def signed(integers: Array, zero: Array) -> Array:
    """Return weights counted from their zero point, in the smallest type that holds them."""
    moved = integers.astype(np.int64) - zero
    fits = not moved.size or (moved.min() >= -128 and moved.max() <= 127)
    return np.ascontiguousarray(moved, np.int8 if fits else np.int16)


def in_bytes(real: Array) -> tuple[Array, Quantisation]:
    """Return float32 numbers as int8 over their range, which holds 0, as ONNX Runtime quantises weights."""
    low, high = min(real.min(), F(0)), max(real.max(), F(0))
    step = F((high - low) / F(BYTE)) if high > low else F(1)
    zero = int(np.clip(np.rint(F(-128) - low / step), -128, 127))
    made = Quantisation(I8, (float(step),), (zero,))
    return made.quantise(real), made


def factors(x: Quantisation, w: Quantisation, y: Quantisation, alpha: float = 1.0) -> Array:
    """Return what a step of the sums is worth in steps of the result, in the order of ONNX Runtime."""
    steps = F(alpha) * x.step if alpha != 1 else x.step
    return np.asarray(steps * np.array(w.scale, F) / y.step, F)


def requantised(
    x: Quantisation,
    w: Quantisation,
    y: Quantisation,
    alpha: float = 1.0,
    limits: tuple[int, int] | None = None,
) -> Requantised:
    """Return the arithmetic of products of x with w whose results are of y, within limits."""
    low, high = limits or y.limits
    ratios = tuple(map(float, factors(x, w, y, alpha)))
    return Requantised(x.zero[0], False, BYTE, False, ratios, y.dtype, y.zero[0], low, high)


def clipped(y: Quantisation, low: float | None, high: float | None) -> tuple[int, int]:
    """Return the integers that real limits become; rounding keeps order, so that they clip alike."""
    least, most = y.limits
    if low is not None:
        least = int(y.quantise(np.array(low, F)))
    if high is not None:
        most = int(y.quantise(np.array(high, F)))
    return min(least, most), most


def written_product(
    x: Quantisation,
    w: Quantisation,
    y: Quantisation,
    bias: Array | None,
    limits: tuple[int, int],
) -> Written:
    """Return the arithmetic of real products as they are written; bias: real numbers, or None."""
    factors_ = np.float64(x.step) * np.array(w.scale, F).astype(np.float64)
    offsets = () if bias is None else tuple(map(float, bias.astype(F).reshape(-1)))
    return Written(
        x.zero[0],
        False,
        BYTE,
        False,
        tuple(map(float, factors_)),
        y.dtype,
        y.zero[0],
        *limits,
        offsets,
        float(y.step),
    )


def real_taps(
    x: Quantisation,
    y: Quantisation,
    bias: Array | None,
    limits: tuple[int, int],
    point: bool,
    weight_steps: tuple[float, ...] = (),
) -> RealTaps:
    """Return the arithmetic of transposed convolutions of real weights; bias: real numbers, or None.

    point: the input's images are one pixel. weight_steps: of RealTaps.
    """
    offsets = () if bias is None else tuple(map(float, bias.astype(F).reshape(-1)))
    steps = (float(x.step), float(y.step))
    ends = (y.dtype, y.zero[0], steps[1], *limits)
    return RealTaps(x.zero[0], steps[0], *ends, point, weight_steps, offsets=offsets)


def convolution(
    x: Source, window: Window, group: int, weights: Array, bias: Array | None, arith: Sums
) -> Emit:
    """Return a convolution; weights (oc, ic / group, kernel...) count from 0, bias is int32."""
    wide = weights.dtype == np.int16 and weights.size
    if wide and weights.min() >= -BYTE and weights.max() < BYTE:
        arith = replace(arith, nine_bits=True)
    return Emit(Conv2d(window, group, (), arith), [x, weights, bias])


def rows_product(
    x: Source, shape: Sequence[int], weights: Array, bias: Array | None, arith: Sums
) -> Source:
    """Return the product of x (..., k), of `shape`, with weights (k, n), as a convolution of points.

    A row of k numbers is a pixel of k channels, so that views launch nothing. No rows are no images,
    for a point does not fit an image of no pixels.
    """
    k, n = weights.shape
    rows = math.prod(shape[:-1])
    images = (1, rows, k) if rows else (0, 1, k)
    seen = Emit(Transpose((0, 2, 1)), [Emit(Reshape(images), [x])])
    point = Window((1,), (1,), (1,), (0,), (0,))
    image = convolution(seen, point, 1, np.ascontiguousarray(weights.T)[..., None], bias, arith)
    return Emit(Reshape((*shape[:-1], n)), [Emit(Transpose((0, 2, 1)), [image])])


def dequantise(x: Source, given: Quantisation, rank: int) -> Emit:
    """Return the real numbers that integers stand for."""
    scale, zero = spread(given, rank)
    return Emit(FixedMap(Dequantise()), [x, scale, zero])


def quantise(
    x: Source, wanted: Quantisation, rank: int, late: bool = False, shifted: bool = False
) -> Emit:
    """Return real numbers as integers."""
    scale, zero = spread(wanted, rank)
    return Emit(FixedMap(Quantise(wanted.dtype, late, shifted=shifted)), [x, scale, zero])


def spread(given: Quantisation, rank: int) -> tuple[Array, Array]:
    """Return scale and zero point in shapes that broadcast over a tensor of `rank` axes."""
    scale, zero = np.array(given.scale, F), np.array(given.zero, given.dtype.numpy)
    behind = () if given.axis is None else (1,) * (rank - 1 - given.axis)
    steps, zeros = (v.reshape(() if v.size == 1 else (-1, *behind)) for v in (scale, zero))
    return steps, zeros


def requantise_sums(
    sums: Source, ratios: Array, y: Quantisation, limits: tuple[int, int] | None = None
) -> Emit:
    """Return sums, int32 or whole float32 numbers, in steps of y, within limits; ratios broadcast over them."""
    zero, ends = np.array(y.zero[0], y.dtype.numpy), None if limits == y.limits else limits
    return Emit(FixedMap(Quantise(y.dtype, whole=True, limits=ends)), [sums, ratios, zero])


def real_sums_of(
    sides: Sequence[Source], kinds: Sequence[Quantisation], ranks: Sequence[int], product: Gemm
) -> Emit:
    """Return the product of two computed tensors of bytes, counted from their zero points, as float32.

    Its sums are whole numbers, and exact where float_holds says so.
    """
    counted = [
        dequantise(side, replace(kind, scale=(1.0,)), rank)
        for side, kind, rank in zip(sides, kinds, ranks, strict=True)
    ]
    return Emit(product, [*counted, None])


def float_holds(a: Quantisation, b: Quantisation, terms: int) -> bool:
    """Whether float32 holds all sums of so many products of bytes exactly."""
    return not is_open(terms) and terms * _reach(a) * _reach(b) <= FLOAT_HOLDS


def _reach(given: Quantisation) -> int:
    """Return how far from a zero point bytes may be."""
    low, high = given.limits
    return max(high - min(given.zero), max(given.zero) - low)


def total(a: Quantisation, b: Quantisation, y: Quantisation, shifted: bool = False) -> FixedMap:
    """Return the sum of two tensors of bytes of one type; shifted: of int8, summed as uint8."""
    shift = SHIFT * shifted
    ra, rb = a.step / y.step, b.step / y.step
    # One product of the offset is exact until it is added to the other, which is rounded.
    first = np.float64(ra) * (a.zero[0] + shift)
    both = F(first + np.float64(rb * F(b.zero[0] + shift)))
    offset = F(y.zero[0] + shift) - both
    return FixedMap(QuantisedSum(y.dtype, (float(ra), float(rb)), float(offset), shifted))


def product(a: Quantisation, b: Quantisation, y: Quantisation, shifted: bool = False) -> FixedMap:
    """Return the product of two tensors of bytes of one type; shifted: of int8, scaled as uint8."""
    ratio, zeros = a.step * b.step / y.step, (a.zero[0], b.zero[0], y.zero[0])
    return FixedMap(QuantisedProduct(y.dtype, zeros, float(ratio), shifted))


def written(
    fn: str, a: Quantisation, b: Quantisation, y: Quantisation, limits: tuple[int, int]
) -> FixedMap:
    """Return a real function of two quantised tensors, each step rounded as it is written."""
    parts = (a, b, y)
    kinds, zeros = (a.dtype, b.dtype, y.dtype), (a.zero[0], b.zero[0], y.zero[0])
    steps = tuple(float(p.step) for p in parts)
    return FixedMap(WrittenBinary(fn, kinds, zeros, (steps[0], steps[1], steps[2]), *limits))


def table(entries: Array, kind: DType, result: DType) -> FixedMap:
    """Return a function of bytes; entries in the order of every_byte(kind)."""
    return FixedMap(ByteTable(kind, result, tuple(entries.tolist())))


def moved(x: Source, given: Quantisation, wanted: Quantisation) -> Source:
    """Return bytes in another quantisation, themselves where it is the same."""
    if given == wanted:
        return x
    values = wanted.quantise(given.dequantise(every_byte(given.dtype)))
    line = line_through(given, wanted, values)
    return Emit(table(values, given.dtype, wanted.dtype) if line is None else FixedMap(line), [x])


def in_uint8(given: Quantisation) -> Quantisation:
    """Return the quantisation that int8 has as uint8; that of uint8 itself."""
    if given.dtype == U8:
        return given
    return replace(given, dtype=U8, zero=tuple(z + SHIFT for z in given.zero))


def in_one_type(
    make: Callable[..., Emit], given: Sequence[Quantisation], y: Quantisation
) -> Source:
    """Return make(*sources, *given, y) of bytes of one type: of uint8 where they are of two."""
    if are_bytes(*given, y):
        return make(*range(len(given)), *given, y)
    seen, last = [in_uint8(kind) for kind in given], in_uint8(y)
    sources = [moved(k, *pair) for k, pair in enumerate(zip(given, seen, strict=True))]
    return moved(make(*sources, *seen, last), last, y)


def joined(members: Sequence[tuple[Source, Quantisation]], y: Quantisation, axis: int) -> Emit:
    """Return tensors of bytes one after the other along an axis, in one quantisation."""
    return Emit(Concat(axis), [moved(x, given, y) for x, given in members])


def image_average(x: Source, spatial: Sequence[int], a: Quantisation, y: Quantisation) -> Emit:
    """Return the average of the image of each channel, of bytes of one type."""
    rule = QuantisedAverage(a.dtype, (a.zero[0], y.zero[0]), (float(a.step), float(y.step)))
    return Emit(Pool(_all_of(spatial), "average", rule=rule), [x])


def average(x: Source, pool: Pool, a: Quantisation, y: Quantisation, shifted: bool = False) -> Emit:
    """Return averages of windows of bytes of one type; shifted: of int8 that are uint8 there."""
    rank = len(pool.window.kernel) + 2
    real = Emit(replace(pool, order="rows"), [dequantise(x, a, rank)])
    return quantise(real, y, rank, late=True, shifted=shifted)


def real_average(x: Source, spatial: Sequence[int], a: Quantisation, y: Quantisation) -> Emit:
    """Return the average of the image of each channel, of bytes of one type that ONNX Runtime adds as float32."""
    rule = RealAverage(a.dtype, (a.zero[0], y.zero[0]), (float(a.step), float(y.step)))
    return Emit(Pool(_all_of(spatial), "average", rule=rule, order="quads"), [x])


def _all_of(spatial: Sequence[int]) -> Window:
    ones, zeros = (1,) * len(spatial), (0,) * len(spatial)
    return Window(tuple(spatial), ones, ones, zeros, zeros)


def softmax(
    x: Source, shape: Sequence[int], axes: Sequence[int], a: Quantisation, y: Quantisation
) -> Source:
    """Return the softmax over axes taken together, of bytes of one type."""
    order = (*(k for k in range(len(shape)) if k not in axes), *axes)
    length, size = math.prod(shape[k] for k in axes), math.prod(shape)
    turned: Source = x if order == tuple(range(len(shape))) else Emit(Transpose(order), [x])
    rows = Emit(Reshape((size // max(length, 1), length)), [turned])
    back = Emit(Reshape(tuple(shape[k] for k in order)), [Emit(byte_softmax(a, y), [rows])])
    if turned is x:
        return back
    return Emit(Transpose(tuple(order.index(k) for k in range(len(shape)))), [back])


def are_bytes(*kinds: Quantisation) -> bool:
    """Whether all are of one 8-bit type, with one scale each."""
    return all(k.per_tensor and k.dtype in (I8, U8) and k.dtype == kinds[0].dtype for k in kinds)

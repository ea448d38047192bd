"""ESP-DL's layers as nodes of several families, for its classes and for its model files.

Images are (..., height, width, channels) and sources those of an ONNX node, or any list of values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clnn.arith.espdl import FLOOR, GRAIN, EspProducts, in_lanes
from clnn.arith.mli_primitives import wrap
from clnn.errors import DTypeError, ShapeError
from clnn.ops.conv.spec import Conv2d
from clnn.ops.movement.images import channels_first, channels_last
from clnn.ops.movement.views import Reshape
from clnn.ops.onnx_registry import Emit, Source
from clnn.ops.shared.window import Window
from clnn.ops.spec import OpSpec
from clnn.records import dataclass
from clnn.types import Array

MOST_SHIFT = 62  # of a bias to the exponent of the sums


@dataclass(frozen=True)
class Exponents:
    """Exponents of a sum of products: of the input, each filter (or all), the bias, the result."""

    x: int
    w: tuple[int, ...]
    y: int
    bias: tuple[int, ...] = ()


@dataclass(frozen=True)
class Way:
    """How a generation and a chip compute: the rounding, and whether sums have lanes of 20 bits."""

    rounding: str
    lanes: bool = False


def products(
    bits: int,
    exponents: Exponents,
    weights: Array,
    bias: Array | None,
    way: Way,
    relu: bool = False,
) -> tuple[EspProducts, Array | None]:
    """Return the arithmetic of a layer, and its bias as the arithmetic wants it.

    weights (oc, ...), bias (oc) or None. Raises ShapeError where exponents do not fit the filters,
    DTypeError for a bias with steps finer than those of the sums.
    """
    count = len(weights)
    if len(exponents.w) not in (1, count) or len(exponents.bias) not in (0, 1, count):
        raise ShapeError(
            f"{len(exponents.w)} exponents of filters and {len(exponents.bias)} of the bias for"
            f" {count} filters: there must be one, or {count}."
        )
    shifts = tuple(exponents.y - exponents.x - w for w in exponents.w)
    each = len(set(shifts)) > 1
    low = 0 if relu else -(1 << bits - 1)
    w_bits = 8 if bits == 16 and weights.dtype == np.int8 else 0
    late = way.rounding == FLOOR and bias is not None and set(exponents.bias) == {exponents.y}
    apart = each and way.rounding != FLOOR  # 3.x rounds channels down, in two steps
    arith = EspProducts(
        bits,
        shifts if each else shifts[:1],
        FLOOR if apart else way.rounding,
        late,
        w_bits,
        GRAIN if apart and bias is not None else 0,
        low,
    )
    given = None if bias is None else _aligned(bits, exponents, bias, late)
    if way.lanes and bits == 8 and not late:
        arith = in_lanes(arith, weights, given)
    return arith, given


def _aligned(bits: int, exponents: Exponents, bias: Array, late: bool) -> Array:
    """Return a bias at the exponent of the sums, or as it is where it is added behind the shift."""
    if late:
        return bias.astype(np.int32)
    given = np.array(exponents.bias or (exponents.x + exponents.w[0],), np.int64)
    left = np.broadcast_to(given - exponents.x - np.array(exponents.w), bias.shape)
    if (left < 0).any() or (left > MOST_SHIFT).any():
        raise DTypeError(
            f"a bias with exponents {sorted(set(given.tolist()))[:4]} for sums with exponents"
            f" {sorted({exponents.x + w for w in exponents.w})[:4]}: it must have as many, or more by"
            f" at most {MOST_SHIFT}."
        )
    moved = bias.astype(np.int64) << left
    return wrap(moved, 32).astype(np.int32) if bits == 8 else moved


def of_image(spec: OpSpec, rank: int, x: Source, *others: Source) -> Emit:
    """Return an op that takes channels first, for an input with channels last."""
    return channels_last(Emit(spec, [channels_first(x, rank), *others]), rank)


def convolution(
    x: Source,
    rank: int,
    window: Window,
    group: int,
    arith: EspProducts,
    weights: Array,
    bias: Array | None,
) -> Emit:
    """Return a convolution of (n, spatial..., c); weights (oc, ic / group, kernel...)."""
    return of_image(Conv2d(window, group, arith=arith), rank, x, weights, bias)


def rows(
    x: Source, shape: Sequence[int], arith: EspProducts, weights: Array, bias: Array | None
) -> Emit:
    """Return the product of x (..., k), of `shape`, with weights (n, k): as points of an image."""
    count = int(np.prod(shape[:-1], dtype=np.int64))
    point = Window((1,), (1,), (1,), (0,), (0,))
    seen = Emit(Reshape((1, count, shape[-1])), [x])
    made = convolution(seen, 3, point, 1, arith, weights[..., None], bias)
    return Emit(Reshape((*shape[:-1], len(weights))), [made])

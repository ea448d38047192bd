"""Sampling of Resize along one axis: which inputs each output index reads, and their weights.

Source coordinates are computed in single precision, step by step as ONNX Runtime does, so that
rounding to the nearest pixel falls on the same side.
"""

from __future__ import annotations

import numpy as np

from clnn.budget import table_once
from clnn.records import dataclass
from clnn.types import Array

COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "asymmetric",
    "align_corners",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple")
TAPS = {"nearest": 1, "linear": 2, "cubic": 4}  # of each output, but for antialiased ones
MODES = tuple(TAPS)
TIE = np.float32(1e-6)  # coordinates this close to a half are taken for it


@dataclass(frozen=True)
class Sampling:
    """How values between pixels are made; the attributes of ONNX Resize.

    nearest "simple" is that of Upsample and Resize 10: up when shrinking, else down. in_turn: linear and
    cubic sums of floats are made as those of integers, one tap after the other, none of them fused.
    bits: linear weights of integers are cut off to so many bits behind the point along each axis, and
    sums of them are exact; 0: weights are real numbers.
    """

    mode: str = "nearest"
    coordinates: str = "half_pixel"
    nearest: str = "round_prefer_floor"
    cubic_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    extrapolation: float = 0.0
    in_turn: bool = False
    bits: int = 0

    @property
    def crops(self) -> bool:
        """Whether the region of interest counts, and outputs may lie outside of the input."""
        return self.coordinates == "tf_crop_and_resize"


@dataclass(frozen=True)
class AxisMap:
    """One axis: extents of input and output, scale, and region of interest as part of the input."""

    source: int
    result: int
    scale: float
    roi: tuple[float, float] = (0.0, 1.0)


@dataclass(frozen=True, eq=False)
class Taps:
    """For each output index: input indices, their weights, and whether it lies outside the input.

    index, weight: [output][tap]. outside: [output].
    """

    index: Array
    weight: Array
    outside: Array

    @property
    def count(self) -> int:
        """Taps of each output index."""
        return int(self.index.shape[1])

    @property
    def copies(self) -> bool:
        """Whether every output is one input as it is."""
        return self.count == 1 and bool((self.weight == 1).all()) and not self.outside.any()

    def repeats(self, source: int) -> int:
        """Return the factor by which each of `source` inputs is repeated in order, 0 if not so."""
        result = self.index.shape[0]
        if not self.copies or not source or result % source:
            return 0
        factor = result // source
        same = np.array_equal(self.index[:, 0], np.arange(result) // max(factor, 1))
        return int(factor) if same else 0


def axis_taps(axis: AxisMap, how: Sampling) -> Taps:
    """Return the taps of one axis, without those of weight 0.

    Raises HostMemoryError where they are more than the tables of a plan may be.
    """
    taps = TAPS[how.mode]
    if how.antialias:
        taps = 2 * _support(axis, how)[0] + 1
    nbytes = axis.result * taps * 2 * np.dtype(np.int64).itemsize
    what = f"{how.mode} resizing of an axis from {axis.source} to {axis.result}"
    return table_once((axis, how), nbytes, what, lambda: _axis_taps(axis, how))


def last_halved(taps: Taps, source: int) -> Taps:
    """Return linear taps that read the last input, where it has no neighbour, twice at half weight.

    It is the same sum but for its roundings, which ONNX Runtime has so.
    """
    if taps.count == 1 and (taps.weight == 1).all():
        beside = np.minimum(taps.index + 1, source - 1)
        taps = Taps(
            np.hstack([taps.index, beside]), np.hstack([taps.weight, 0 * taps.weight]), taps.outside
        )
    if taps.count != 2:
        return taps
    last = (taps.index[:, 0] == source - 1) & (taps.weight[:, 1] == 0)
    weight = np.where(last[:, None], 0.5, taps.weight)
    index = np.where(last[:, None], source - 1, taps.index)
    return Taps(index, weight, taps.outside)


def kept_taps(extent: int) -> Taps:
    """Return linear taps of an axis that stays as it is, the next element at weight 0."""
    at = np.arange(extent)
    index = np.stack([at, np.minimum(at + 1, extent - 1)], axis=1)
    weight = np.broadcast_to(np.array([1.0, 0.0]), index.shape)
    return Taps(index, weight, np.zeros(extent, bool))


def all_taps(taps: Taps, how: Sampling) -> Taps:
    """Return taps of an axis as many as there are where it gets any other extent; sums are the same."""
    most = TAPS[how.mode]
    if taps.count >= most or how.antialias:
        return taps
    if taps.count == 1:  # no weight is 0, which would make NaN of what is infinite
        index = np.repeat(taps.index, most, axis=1)
        return Taps(index, np.repeat(taps.weight / most, most, axis=1), taps.outside)
    more = most - taps.count
    index = np.concatenate([taps.index, np.repeat(taps.index[:, :1], more, axis=1)], axis=1)
    return Taps(index, np.pad(taps.weight, ((0, 0), (0, more))), taps.outside)


def _axis_taps(axis: AxisMap, how: Sampling) -> Taps:
    at = source_coordinates(axis, how.coordinates)
    outside = (
        (at < 0) | (at > np.float32(axis.source - 1)) if how.crops else np.zeros(at.shape, bool)
    )
    if how.mode == "nearest":
        index, weight = _nearest(at, axis, how.nearest), np.ones((at.size, 1))
    elif how.antialias:
        index, weight = _filtered(at.astype(np.float64), axis, how)
    elif how.mode == "linear":
        index, weight = _linear(at, axis, how.bits)
    else:
        index, weight = _cubic(at.astype(np.float64), axis, how)
    index = np.clip(index, 0, max(axis.source - 1, 0))
    return Taps(*_without_zeros(index, weight), outside)


def source_coordinates(axis: AxisMap, mode: str) -> Array:
    """Return the input coordinate of each output index, in float32."""
    one, half = np.float32(1), np.float32(0.5)
    x = np.arange(axis.result, dtype=np.float32)
    scale, length, size = (np.float32(v) for v in (axis.scale, axis.source, axis.result))
    if mode == "tf_crop_and_resize":
        return _cropped(x, axis)
    if axis.scale == 1 or (mode == "pytorch_half_pixel" and axis.result == 1):
        return x
    if mode == "asymmetric":
        return np.asarray(x / scale)
    if mode == "tf_half_pixel_for_nn":
        return np.asarray((x + half) / scale)
    if mode == "align_corners":
        return x if axis.result == 1 else np.asarray(x * (length - one) / (size - one))
    if mode == "half_pixel_symmetric":
        offset = float(length / np.float32(2) * (one - size / (scale * length)))
        return (offset + (x.astype(np.float64) + 0.5) / float(scale) - 0.5).astype(np.float32)
    return np.asarray((x + half) / scale - half)


def _cropped(x: Array, axis: AxisMap) -> Array:
    begin, end = (np.float32(v) for v in axis.roi)
    last, steps = np.float32(axis.source - 1), np.float32(axis.result - 1)
    if axis.result > 1:
        return np.asarray(begin * last + x * (end - begin) * last / steps)
    return np.full(x.shape, 0.5 * float(begin + end) * float(last), np.float32)


def _nearest(at: Array, axis: AxisMap, how: str) -> Array:
    low = np.floor(at)
    if how == "floor":
        index = low
    elif how == "ceil":
        index = np.ceil(at)
    elif how == "simple":
        index = np.ceil(at) if axis.scale < 1 else np.trunc(at)
    else:
        tie = np.abs(at - low - np.float32(0.5)) <= TIE
        up = np.floor(at.astype(np.float64) + 0.5)
        index = np.where(tie, low if how == "round_prefer_floor" else low + 1, up)
    return index.astype(np.int64)[:, None]


def _linear(at: Array, axis: AxisMap, bits: int) -> tuple[Array, Array]:
    inside = np.clip(at, 0, np.float32(axis.source - 1)).astype(np.float64)
    low = np.floor(inside).astype(np.int64)
    if bits:
        inside = np.ldexp(np.trunc(np.ldexp(inside, bits)), -bits)
    share = inside - low
    return np.stack([low, low + 1], 1), np.stack([1 - share, share], 1)


def _cubic(at: Array, axis: AxisMap, how: Sampling) -> tuple[Array, Array]:
    base = np.floor(at).astype(np.int64)
    index = base[:, None] + np.arange(-1, 3)
    weight = _keys(index - at[:, None], how.cubic_a)
    return index, _normalised(index, weight, axis, how)


def _keys(distance: Array, a: float) -> Array:
    """Return Keys' cubic convolution kernel at `distance`."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _support(axis: AxisMap, how: Sampling) -> tuple[int, float, float]:
    """Return the taps on a side of a filter, its reach, and by what it is wider than between pixels."""
    widen = max(1 / axis.scale, 1.0)
    support = widen * (1 if how.mode == "linear" else 2)
    return int(np.ceil(support)), support, widen


def _filtered(at: Array, axis: AxisMap, how: Sampling) -> tuple[Array, Array]:
    """Return the taps of a filter that widens as the image shrinks."""
    taps, support, widen = _support(axis, how)
    center = at + 0.5
    low = np.floor(center - support + 0.5).astype(np.int64)
    high = np.floor(center + support + 0.5).astype(np.int64)
    index = low[:, None] + np.arange(taps * 2 + 1)
    distance = (index + 0.5 - center[:, None]) / widen
    triangle = np.clip(1 - np.abs(distance), 0, None)
    weight = triangle if how.mode == "linear" else _keys(distance, how.cubic_a)
    weight = np.where(index < high[:, None], weight, 0.0)
    total = weight.sum(1, keepdims=True)
    if not how.exclude_outside:
        return index, weight / np.where(total == 0, 1.0, total)
    return index, _normalised(index, weight, axis, how)


def _normalised(index: Array, weight: Array, axis: AxisMap, how: Sampling) -> Array:
    """Return the weights without taps outside of the input, where they are to be left out."""
    if not how.exclude_outside:
        return weight
    weight = np.where((index < 0) | (index >= axis.source), 0.0, weight)
    total = weight.sum(1, keepdims=True)
    return np.asarray(weight / np.where(total == 0, 1.0, total))


def _without_zeros(index: Array, weight: Array) -> tuple[Array, Array]:
    """Return the taps moved together so that as few columns as possible remain."""
    if not index.size:
        return index[:, :1], weight[:, :1]
    keep = weight != 0
    gaps = np.flatnonzero(~keep.all(1))
    if not gaps.size:
        return index, weight
    order = np.argsort(~keep[gaps], axis=1, kind="stable")
    columns = max(int(keep.sum(1).max()), 1)
    index[gaps] = np.take_along_axis(index[gaps], order, 1)
    weight[gaps] = np.take_along_axis(weight[gaps], order, 1)
    index, weight = index[:, :columns], weight[:, :columns]
    return np.where(weight != 0, index, index[:, :1]), weight

"""Resize and Upsample: nearest, linear and cubic sampling along any axes, with fused post-ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import numpy as np

from clnn.errors import DTypeError, ShapeError
from clnn.ops.launch import Variant
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, Unsupported, onnx_op
from clnn.ops.problem import Problem, required
from clnn.ops.resize.kernels import resize_variant, resize_variants
from clnn.ops.resize.sampling import (
    COORDINATES,
    MODES,
    NEAREST,
    AxisMap,
    Sampling,
    Taps,
    all_taps,
    axis_taps,
    kept_taps,
    last_halved,
)
from clnn.ops.shared.functions import PostOp, apply_post_ops
from clnn.ops.spec import OpSpec, batched
from clnn.recorded import integer
from clnn.records import dataclass
from clnn.traced import is_open, other
from clnn.types import BOOL, I8, U8, Array, TensorType, normalise_axis

WEIGHT_BITS = 10  # of ONNX Runtime's weights of bytes, where channels are the last axis
EXACT = 2**24  # up to which whole numbers are exact in single precision
NEAREST_PIXEL = Sampling()


@dataclass(frozen=True)
class Resize(OpSpec):
    """Output extents `shape`; `scales` and `roi` (start and end, part of the extent) per axis.

    `post_ops` are applied to each result. Integers are sampled as ONNX Runtime does: linear and cubic
    sums are made in float32, one tap after the other, none of them fused, and rounded towards zero;
    antialiased ones to the nearest. Both saturate. Sums of weights of few bits are exact, and rounded
    towards zero.
    """

    shape: tuple[int, ...]
    scales: tuple[float, ...]
    sampling: Sampling = NEAREST_PIXEL
    roi: tuple[tuple[float, float], ...] = ()
    post_ops: tuple[PostOp, ...] = ()

    kind = "resize"
    layout_rule = "same"
    fuses_post_ops = True
    supports_narrow_storage = True

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the output type. Raises ShapeError or DTypeError where the input does not fit."""
        x = required(inputs)
        if not x.rank or len(self.shape) != x.rank or len(self.scales) != x.rank:
            raise ShapeError(
                f"resize of {x.shape} to {self.shape}: ranks must be equal, at least 1."
            )
        if any(d == 0 and o != 0 for d, o in zip(x.shape, self.shape, strict=True)):
            raise ShapeError(f"resize of {x.shape} to {self.shape}: an empty axis stays empty.")
        if min(self.scales, default=1) <= 0 or not np.isfinite(self.scales).all():
            raise ShapeError(f"scales {self.scales} must be finite and greater than 0.")
        if x.dtype == BOOL and self.sampling.mode != "nearest":
            raise DTypeError(f"{self.sampling.mode} resize of bool: only nearest is defined.")
        return (TensorType(self.shape, x.dtype),)

    def taps(self, source: tuple[int, ...], real: bool = True) -> dict[int, Taps]:
        """Return axis -> taps of an input of shape `source`, without axes that stay as they are.

        real: not of integers.
        """
        found = {axis: self._taps_along(axis, before) for axis, before in enumerate(source)}
        along = {axis: taps for axis, taps in found.items() if taps is not None}
        how = self.sampling
        if (real and not how.in_turn) or how.mode != "linear" or how.antialias or how.bits:
            return along
        if all(taps.count == 1 for taps in along.values()):
            return along
        for axis in self._plane(source):  # ONNX Runtime weights both axes
            along.setdefault(axis, kept_taps(source[axis]))
        return {axis: last_halved(taps, source[axis]) for axis, taps in sorted(along.items())}

    def _plane(self, source: tuple[int, ...]) -> tuple[int, ...]:
        """Return the last two axes where nothing but them is resized, of 2 or 4 in all, else none."""
        rank = len(source)
        plane = (rank - 2, rank - 1)
        kept = all(self._taps_along(a, source[a]) is None for a in range(rank - 2))
        return plane if rank in (2, 4) and kept else ()

    def _taps_along(self, axis: int, before: int) -> Taps | None:
        """Return the taps of an axis of extent `before`, None where it stays as it is at all shapes."""
        roi = self.roi[axis] if self.roi else (0.0, 1.0)
        taps = axis_taps(AxisMap(before, self.shape[axis], self.scales[axis], roi), self.sampling)
        after = self.shape[axis]
        if other(before) == other(after):
            return None if taps.repeats(before) == 1 else taps
        return all_taps(taps, self.sampling) if is_open(before) or is_open(after) else taps

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return the weighted sums axis by axis; of integers as the class says."""
        x = required(inputs)
        exact = x.dtype.kind in "fc" or self.sampling.mode == "nearest"
        how = self.sampling
        ordered = not exact or (how.in_turn and how.mode != "nearest")
        if ordered and not how.antialias and not how.bits:
            y, outside = self._in_turn(x)
        else:
            y, outside = self._by_axis(x if exact else x.astype(np.float64))
        y = np.where(outside, np.asarray(self.sampling.extrapolation).astype(y.dtype), y)
        if not exact:
            limits = np.iinfo(x.dtype)
            whole = np.rint(y) if self.sampling.antialias else np.trunc(y).astype(np.float64)
            y = np.clip(whole, limits.min, limits.max).astype(x.dtype)
        return (apply_post_ops(y.astype(x.dtype), self.post_ops, inputs),)

    def _by_axis(self, y: Array) -> tuple[Array, Array]:
        """Return the sums made axis by axis, and which of them lie outside."""
        outside = np.zeros(self.shape, bool)
        for axis, taps in self.taps(y.shape).items():
            along = tuple(-1 if a == axis else 1 for a in range(y.ndim))
            parts = [
                np.take(y, taps.index[:, t], axis)
                * (1 if taps.copies else taps.weight[:, t].reshape(along).astype(y.dtype))
                for t in range(taps.count)
            ]
            y = np.sum(parts, axis=0, dtype=y.dtype)
            outside |= taps.outside.reshape(along)
        return y, outside

    def _in_turn(self, x: Array) -> tuple[Array, Array]:
        """Return the float32 sums of weighted taps, the last axis' first, and which lie outside."""
        outside, total = np.zeros(self.shape, bool), None
        by_axis = self.taps(x.shape, real=False)
        along = {a: tuple(-1 if b == a else 1 for b in range(x.ndim)) for a in by_axis}
        for chosen in product(*(range(taps.count) for taps in by_axis.values())):
            part, weight = x.astype(np.float32), np.ones((), np.float32)
            for (axis, taps), t in reversed(list(zip(by_axis.items(), chosen, strict=True))):
                part = np.take(part, taps.index[:, t], axis)
                weight = weight * taps.weight[:, t].astype(np.float32).reshape(along[axis])
            total = part * weight if total is None else total + part * weight
        for axis, taps in by_axis.items():
            outside |= taps.outside.reshape(along[axis])
        return np.asarray(total), outside

    def variants(self, problem: Problem) -> list[Variant]:
        """Return repeating, one-launch and axis-by-axis kernels, as far as they fit."""
        x = problem.input(0).type
        taps = self.taps(x.shape, x.dtype.is_float)
        return resize_variants(problem, taps, self.post_ops, self.sampling)

    def repeat(self, problem: Problem, variant: Variant) -> Variant | None:
        """Return the kernel of the variant's name for this problem, without making the others."""
        x = problem.input(0).type
        taps = self.taps(x.shape, x.dtype.is_float)
        return resize_variant(problem, taps, self.post_ops, self.sampling, variant.name)

    def split_batch(
        self, inputs: Sequence[TensorType | None], count: int
    ) -> tuple[OpSpec, tuple[int, ...]] | None:
        """Return the op for some images, where the first axis stays as it is."""
        x = required(inputs)
        if not x.rank or self._taps_along(0, x.shape[0]):
            return None
        return replace(self, shape=(count, *self.shape[1:])), (0, *batched(inputs, x.rank, 1))

    def flops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        """Two operations per output and tap."""
        taps = self.taps(required(inputs).shape).values()
        return prod(1 if t.copies else 2 * t.count for t in taps) * outputs[0].size


def _scaled(shape: Sequence[int], scales: Sequence[float]) -> tuple[int, ...]:
    """Return floor(extent * scale), the product in single precision."""
    return tuple(map(_scaled_extent, shape, scales))


def _scaled_extent(extent: int, scale: float) -> int:
    factor = int(scale)
    if factor == scale and extent * factor <= EXACT:
        return extent * factor
    return int(np.floor(np.float32(extent) * np.float32(scale)))


def _ratio(size: int, extent: int) -> float:
    """Return how much larger an extent becomes, in single precision; that of whole ones is noted."""
    if not extent:
        return 1.0
    if size % extent == 0 and size <= EXACT:
        return float(size // extent)
    return float(np.float32(int(size)) / np.float32(int(extent)))


def _single(value: float) -> float:
    return float(np.float32(value))


@onnx_op("Upsample")
def _upsample(node: OnnxNode) -> Source:
    shape = node.type(0).shape
    scales = node.attr("scales") if node.opset < 9 else node.const(1, "scales").reshape(-1)
    scales = [_single(s) for s in scales]
    if len(scales) != len(shape) or min(scales, default=1) < 1:
        raise ShapeError(f"Upsample of {shape}: scales {scales} must be {len(shape)} numbers >= 1.")
    mode = str(node.attr("mode", "nearest"))
    return _emit(node, _scaled(shape, scales), scales, Sampling(mode, "asymmetric", "simple"))


@onnx_op("Resize")
def _resize(node: OnnxNode) -> Source:
    if node.opset < 11:
        shape = node.type(0).shape
        scales = [_single(s) for s in node.const(1, "scales").reshape(-1)]
        if len(scales) != len(shape):
            raise ShapeError(f"Resize of {shape}: scales {scales} must be {len(shape)} numbers.")
        how = Sampling(str(node.attr("mode", "nearest")), "asymmetric", "simple")
        return _emit(node, _scaled(shape, scales), scales, how)
    how = _sampling(node)
    axes = _resized_axes(node)
    result, scales = _geometry(node, axes)
    roi = _roi(node, axes) if how.crops else ()
    return _emit(node, result, scales, how, roi)


def _emit(
    node: OnnxNode,
    shape: Sequence[int],
    scales: Sequence[float],
    how: Sampling,
    roi: tuple[tuple[float, float], ...] = (),
) -> Source:
    if how.mode not in MODES:
        raise Unsupported(f"mode {how.mode!r} is not one of {', '.join(MODES)}")
    if _weighs_in_integers(node, scales, how):
        how = replace(how, bits=WEIGHT_BITS)
    spec = Resize(tuple(shape), tuple(scales), how, roi)
    if node.varying:  # at other extents there may be something to do
        return Emit(spec, [0])
    idle = tuple(shape) == node.type(0).shape and not spec.taps(tuple(shape))
    return 0 if idle else Emit(spec, [0])


def _weighs_in_integers(node: OnnxNode, scales: Sequence[float], how: Sampling) -> bool:
    """Whether ONNX Runtime takes images of bytes for channels last, whose weights it has as integers."""
    plain = how.mode == "linear" and not how.antialias and node.type(0).dtype in (I8, U8)
    return plain and len(scales) == 4 and scales[1] != 1 and scales[0] == scales[3] == 1


def _sampling(node: OnnxNode) -> Sampling:
    how = Sampling(
        mode=str(node.attr("mode", "nearest")),
        coordinates=str(node.attr("coordinate_transformation_mode", "half_pixel")),
        nearest=str(node.attr("nearest_mode", "round_prefer_floor")),
        cubic_a=float(node.attr("cubic_coeff_a", -0.75)),
        exclude_outside=bool(node.attr("exclude_outside", 0)),
        antialias=bool(node.attr("antialias", 0)),
        extrapolation=float(node.attr("extrapolation_value", 0.0)),
    )
    if how.coordinates not in COORDINATES:
        raise Unsupported(f"coordinate_transformation_mode {how.coordinates!r} is not defined")
    if how.mode == "nearest":
        if how.nearest not in NEAREST[:-1]:
            raise Unsupported(f"nearest_mode {how.nearest!r} is not one of {NEAREST[:-1]}")
        if how.antialias:
            raise Unsupported("antialias with mode 'nearest' is not defined")
        return replace(how, exclude_outside=False)
    return replace(how, nearest="floor")


def _resized_axes(node: OnnxNode) -> list[int]:
    rank = node.type(0).rank
    axes = [normalise_axis(int(a), rank) for a in node.attr("axes", range(rank))]
    if len(set(axes)) != len(axes):
        raise ShapeError(f"Resize axes {axes} name an axis twice.")
    return axes


def _numbers(
    node: OnnxNode, index: int, what: str, count: int, number: Callable[[Any], float] = float
) -> list[Any] | None:
    """Return constant input `index` as `count` numbers, None where it is left out or empty."""
    if not node.has(index) or node.type(index).size == 0:
        return None
    values = [number(v) for v in node.const(index, what).reshape(-1)]
    if len(values) != count:
        raise ShapeError(f"Resize {what} {values} must be {count} numbers, one per axis.")
    return values


def _geometry(node: OnnxNode, axes: Sequence[int]) -> tuple[list[int], list[float]]:
    """Return output extents and scales of all axes."""
    shape = node.type(0).shape
    factors = _numbers(node, 2, "scales", len(axes))
    sizes = _numbers(node, 3, "sizes", len(axes), integer)
    if (factors is None) == (sizes is None):
        raise ShapeError("Resize needs either scales or sizes, not both and not neither.")
    scales = [1.0] * len(shape)
    result = list(shape)
    if factors is not None:
        for axis, scale in zip(axes, factors, strict=True):
            scales[axis] = _single(scale)
        return list(_scaled(shape, scales)), scales
    assert sizes is not None
    for axis, size in zip(axes, sizes, strict=True):
        result[axis] = integer(size)
        scales[axis] = _ratio(integer(size), shape[axis])
    policy = str(node.attr("keep_aspect_ratio_policy", "stretch"))
    if policy not in ("stretch", "not_larger", "not_smaller"):
        raise Unsupported(f"keep_aspect_ratio_policy {policy!r} is not defined")
    if policy != "stretch":
        choose = min if policy == "not_larger" else max
        common = choose(scales[a] for a in axes)
        for axis in axes:
            scales[axis] = common
            result[axis] = int(np.floor(float(np.float32(common) * np.float32(shape[axis])) + 0.5))
    return result, scales


def _roi(node: OnnxNode, axes: Sequence[int]) -> tuple[tuple[float, float], ...]:
    values = _numbers(node, 1, "roi", 2 * len(axes))
    if values is None:
        raise ShapeError("Resize with tf_crop_and_resize needs a region of interest (input 1).")
    roi = [(0.0, 1.0)] * node.type(0).rank
    for place, axis in enumerate(axes):
        roi[axis] = (_single(values[place]), _single(values[len(axes) + place]))
    return tuple(roi)

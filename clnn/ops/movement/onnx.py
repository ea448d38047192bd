"""ONNX operators that only rename elements: Reshape, Transpose, Slice, Concat, Tile and others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from clnn.errors import ShapeError
from clnn.ops.movement.views import Concat, Expand, Reshape, Slice, Transpose, slice_of
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, onnx_op
from clnn.recorded import integer, is_recorded, larger
from clnn.types import broadcast_shapes, normalise_axis


@onnx_op("Transpose")
def _transpose(node: OnnxNode) -> Source:
    rank = node.type(0).rank
    perm = node.attr("perm", list(reversed(range(rank))))
    return Emit(Transpose(tuple(normalise_axis(int(a), rank) for a in perm)), [0])


@onnx_op("Reshape")
def _reshape(node: OnnxNode) -> Source:
    source = node.type(0).shape
    wanted = [integer(d) for d in node.const(1, "shape")]
    if not node.attr("allowzero", 0):
        if any(d == 0 for d in wanted[len(source) :]):
            raise ShapeError(f"Reshape of {source}: shape {wanted} copies one too many.")
        wanted = [source[a] if d == 0 else d for a, d in enumerate(wanted)]
    if wanted.count(-1) > 1 or any(d < -1 for d in wanted):
        raise ShapeError(f"Reshape of {source}: shape {wanted} leaves more than one extent open.")
    if -1 in wanted:
        known = math.prod(d for d in wanted if d != -1)
        if known == 0 or math.prod(source) % known:
            raise ShapeError(f"Reshape of {source}: no extent in place of -1 in {wanted} fits.")
        wanted[wanted.index(-1)] = math.prod(source) // known
    return Emit(Reshape(tuple(wanted)), [0])


@onnx_op("Flatten")
def _flatten(node: OnnxNode) -> Source:
    source = node.type(0).shape
    axis = int(node.attr("axis", 1))
    axis = axis + len(source) if axis < 0 else axis
    return Emit(Reshape((math.prod(source[:axis]), math.prod(source[axis:]))), [0])


def _axes(node: OnnxNode) -> list[int] | None:
    """Return the axes of Squeeze and Unsqueeze: an attribute before opset 13, then an input."""
    if "axes" in node.attrs:
        return [int(a) for a in node.attrs["axes"]]
    return [int(a) for a in node.const(1, "axes").reshape(-1)] if node.has(1) else None


@onnx_op("Squeeze")
def _squeeze(node: OnnxNode) -> Source:
    shape = node.type(0).shape
    axes = _axes(node)
    if axes is None:
        drop = {a for a, d in enumerate(shape) if d == 1}
    else:
        drop = {normalise_axis(a, len(shape)) for a in axes}
    wrong = [a for a in sorted(drop) if shape[a] != 1]
    if wrong:
        raise ShapeError(f"cannot squeeze axes {wrong} of {shape}: their extent is not 1.")
    return Emit(Reshape(tuple(d for a, d in enumerate(shape) if a not in drop)), [0])


@onnx_op("Unsqueeze")
def _unsqueeze(node: OnnxNode) -> Source:
    shape = node.type(0).shape
    axes = _axes(node) or []
    rank = len(shape) + len(axes)
    added = {normalise_axis(a, rank) for a in axes}
    if len(added) != len(axes):
        raise ShapeError(f"Unsqueeze of {shape}: axes {axes} name one twice.")
    rest = iter(shape)
    return Emit(Reshape(tuple(1 if a in added else next(rest) for a in range(rank))), [0])


@onnx_op("Expand")
def _expand(node: OnnxNode) -> Source:
    wanted = tuple(integer(d) for d in node.const(1, "shape"))
    return Emit(Expand(broadcast_shapes(node.type(0).shape, wanted)), [0])


@onnx_op("Concat")
def _concat(node: OnnxNode) -> Source:
    axis = normalise_axis(int(node.attr("axis", 1)), node.type(0).rank)
    return Emit(Concat(axis), list(range(len(node.inputs)))) if len(node.inputs) > 1 else 0


@onnx_op("Split")
def _split(node: OnnxNode) -> list[Source]:
    shape = node.type(0).shape
    axis = normalise_axis(int(node.attr("axis", 0)), len(shape))
    parts = node.attr("split")
    if parts is None and node.has(1):
        parts = node.const(1, "split")
    if parts is None:
        count = int(node.attr("num_outputs", node.n_outputs))
        size = -(-shape[axis] // count)
        parts = [max(0, min(size, shape[axis] - k * size)) for k in range(count)]
    sizes = [integer(p) for p in parts]
    if sum(sizes) != shape[axis]:
        raise ShapeError(f"split {sizes} does not add up to {shape[axis]} on axis {axis}.")
    starts = accumulate(sizes, initial=0)
    return [Emit(slice_of(shape, axis, s, n), [0]) for s, n in zip(starts, sizes, strict=False)]


@onnx_op("Slice")
def _slice(node: OnnxNode) -> Source:
    shape = node.type(0).shape
    if node.opset < 10:
        low, high = list(node.attrs["starts"]), list(node.attrs["ends"])
        axes, steps = node.attr("axes"), None
    else:
        low, high = list(node.const(1, "starts")), list(node.const(2, "ends"))
        axes = node.const(3, "axes") if node.has(3) else None
        steps = node.const(4, "steps") if node.has(4) else None
    where = range(len(low)) if axes is None else [normalise_axis(int(a), len(shape)) for a in axes]
    paces = [1] * len(low) if steps is None else [int(s) for s in steps]
    starts, extents, strides = [0] * len(shape), list(shape), [1] * len(shape)
    for axis, begin, end, step in zip(where, low, high, paces, strict=True):
        starts[axis], extents[axis] = _kept(shape[axis], integer(begin), integer(end), step)
        strides[axis] = step
    starts = [s if e else 0 for s, e in zip(starts, extents, strict=True)]
    return Emit(Slice(tuple(starts), tuple(extents), tuple(strides)), [0])


def _kept(extent: int, begin: int, end: int, step: int) -> tuple[int, int]:
    """Return the first index and the number of those that a slice keeps, as of a range."""
    if step < 0 or not any(map(is_recorded, (extent, begin, end))):
        kept = range(extent)[begin:end:step]
        return kept.start, len(kept)
    first, last = (_clamped(n, extent) for n in (begin, end))
    return first, (last - first + step - 1) // step if first < last else 0


def _clamped(index: int, extent: int) -> int:
    """Return an index of a slice, which may count from the end, within 0 to the extent."""
    from_start = larger(0, index + extent) if index < 0 else index
    return from_start if from_start <= extent else extent


def _shuffle(
    node: OnnxNode, fine: tuple[int, ...], perm: tuple[int, ...], shape: tuple[int, ...]
) -> Source:
    return Emit(Reshape(shape), [Emit(Transpose(perm), [Emit(Reshape(fine), [0])])])


@onnx_op("DepthToSpace")
def _depth_to_space(node: OnnxNode) -> Source:
    n, c, h, w = node.type(0).shape
    b = int(node.attrs["blocksize"])
    if c % (b * b):
        raise ShapeError(f"{c} channels do not divide by blocksize {b} squared.")
    out = (n, c // (b * b), h * b, w * b)
    if node.attr("mode", "DCR") == "DCR":
        return _shuffle(node, (n, b, b, c // (b * b), h, w), (0, 3, 4, 1, 5, 2), out)
    return _shuffle(node, (n, c // (b * b), b, b, h, w), (0, 1, 4, 2, 5, 3), out)


@onnx_op("SpaceToDepth")
def _space_to_depth(node: OnnxNode) -> Source:
    n, c, h, w = node.type(0).shape
    b = int(node.attrs["blocksize"])
    if h % b or w % b:
        raise ShapeError(f"image {h}x{w} does not divide by blocksize {b}.")
    fine = (n, c, h // b, b, w // b, b)
    perm = (0, 3, 5, 1, 2, 4) if node.attr("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return _shuffle(node, fine, perm, (n, c * b * b, h // b, w // b))


@onnx_op("Tile")
def _tile(node: OnnxNode) -> Source:
    shape = node.type(0).shape
    repeats = [integer(r) for r in node.const(1, "repeats").reshape(-1)]
    if len(repeats) != len(shape) or any(r < 0 for r in repeats):
        raise ShapeError(f"Tile of {shape}: repeats {repeats} must be {len(shape)} numbers >= 0.")
    return tiled(shape, repeats)


def tiled(shape: Sequence[int], repeats: Sequence[int]) -> Source:
    """Return ONNX input 0 repeated along each axis.

    Of tensors of many axes two are repeated at a time, so that no value between has more than 8.
    """
    source: Source = 0
    extents = list(shape)
    axes = [axis for axis, count in enumerate(repeats) if count != 1]
    at_once = len(shape) if len(shape) <= 4 else 2
    for first in reversed(range(0, len(axes), at_once)):
        source = _repeated(source, extents, axes[first : first + at_once], repeats)
    return source


def _repeated(
    source: Source, extents: list[int], axes: Sequence[int], repeats: Sequence[int]
) -> Source:
    """Return `source` repeated along `axes`: a new axis before each is stretched, then merged.

    extents: of the source; become those of the result. Axes between are taken together.
    """
    split, stretched = [], []
    for axis, extent in enumerate(extents):
        if axis in axes:
            split += [1, extent]
            stretched += [repeats[axis], extent]
            extents[axis] *= repeats[axis]
        elif axis and axis - 1 not in axes:
            split[-1] *= extent
            stretched[-1] *= extent
        else:
            split.append(extent)
            stretched.append(extent)
    wide = Emit(Expand(tuple(stretched)), [Emit(Reshape(tuple(split)), [source])])
    return Emit(Reshape(tuple(extents)), [wide])

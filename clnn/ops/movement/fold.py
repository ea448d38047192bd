"""Col2Im and MaxUnpool: columns or maxima written back to the places of an image that they come from."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from clnn.errors import ShapeError
from clnn.ops.movement.gather import constant_indices
from clnn.ops.movement.scatter import ScatterElements
from clnn.ops.movement.views import Expand, Reshape, slice_of
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, Unsupported, onnx_op
from clnn.types import Array


@onnx_op("Col2Im")
def _col2im(node: OnnxNode) -> Source:
    """Blocks (n, c * block, blocks) add up to images (n, c, *image); what lies in the pads is dropped."""
    x = node.type(0)
    image, block = (
        tuple(map(int, node.const(k, what))) for k, what in ((1, "image_shape"), (2, "block_shape"))
    )
    if x.rank != 3 or len(image) != len(block) or not min((*image, *block), default=0) > 0:
        raise ShapeError(f"Col2Im of {x.shape} to image {image} of blocks {block}.")
    places = _places(node, image, block)
    size, (count, channels) = prod(block), x.shape[:2]
    if channels % size or x.shape[2] * size != places.size:
        raise ShapeError(
            f"Col2Im of {x.shape} to image {image}: blocks {block} need a multiple of {size} channels and "
            f"{places.size // size} columns."
        )
    shape = count, channels // size, places.size
    zeros = Emit(Expand((*shape[:2], prod(image) + 1)), [np.zeros((1, 1, 1), x.dtype.numpy)])
    index = Emit(Expand(shape), [places.reshape(1, 1, -1)])
    added = Emit(ScatterElements(2, "add"), [zeros, index, Emit(Reshape(shape), [0])])
    kept = Emit(slice_of((*shape[:2], prod(image) + 1), 2, 0, prod(image)), [added])
    return Emit(Reshape((*shape[:2], *image)), [kept])


def _places(node: OnnxNode, image: Sequence[int], block: Sequence[int]) -> Array:
    """Return the place in the image of each element of each block, one behind its end for the pads."""
    rank = len(image)
    strides, dilations, pads = (
        _along(node, *row)
        for row in (("strides", rank, 1), ("dilations", rank, 1), ("pads", 2 * rank, 0))
    )
    place, inside = np.zeros((), np.int64), np.ones((), bool)
    for a, (extent, length) in enumerate(zip(image, block, strict=True)):
        reach = extent + pads[a] + pads[a + rank] - dilations[a] * (length - 1) - 1
        begins = np.arange(reach // strides[a] + 1 if reach >= 0 else 0) * strides[a] - pads[a]
        at = np.arange(length)[:, None] * dilations[a] + begins
        seen = at.reshape(
            [length if k == a else at.shape[1] if k == a + rank else 1 for k in range(2 * rank)]
        )
        place = place * extent + seen
        inside = inside & (seen >= 0) & (seen < extent)
    return np.where(inside, place, prod(image)).astype(np.int32)


def _along(node: OnnxNode, name: str, count: int, default: int) -> list[int]:
    values = [int(v) for v in node.attr(name, [default] * count)]
    if len(values) != count:
        raise ShapeError(f"{node.op_type}: {name} {values} must be {count} numbers.")
    return values


@onnx_op("MaxUnpool")
def _max_unpool(node: OnnxNode) -> Source:
    """Maxima go to their places in the flattened output; all else is 0."""
    x, indices = node.type(0), node.type(1)
    if x.rank < 3 or indices.shape != x.shape:
        raise Unsupported(f"values {x.shape} at places {indices.shape}")
    rank = x.rank - 2
    kernel = [int(k) for k in node.attrs["kernel_shape"]]
    strides, pads = _along(node, "strides", rank, 1), _along(node, "pads", 2 * rank, 0)
    if len(kernel) != rank:
        raise ShapeError(f"MaxUnpool of {x.shape}: kernel_shape {kernel} must be {rank} numbers.")
    extents = [
        (x.shape[2 + a] - 1) * strides[a] + kernel[a] - pads[a] - pads[a + rank]
        for a in range(rank)
    ]
    shape = (*x.shape[:2], *extents)
    if node.has(2):
        shape = tuple(map(int, node.const(2, "output_shape")))
    if len(shape) != x.rank or min(shape) < 0:
        raise ShapeError(f"MaxUnpool of {x.shape} to {shape}.")
    zeros = Emit(Expand((prod(shape),)), [np.zeros(1, x.dtype.numpy)])
    known = constant_indices(node, [prod(shape)])
    index = Emit(Reshape((x.size,)), [1]) if known is None else known.reshape(-1)
    values = Emit(Reshape((x.size,)), [0])
    return Emit(Reshape(shape), [Emit(ScatterElements(0), [zeros, index, values])])

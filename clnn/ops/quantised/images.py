"""Operators of bytes whose images may have channels last, as ONNX Runtime writes models for itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from clnn.errors import ShapeError
from clnn.ops.movement.images import channels_first, channels_last
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, onnx_op
from clnn.ops.pool.spec import Pool, takes_all
from clnn.ops.quantised import build
from clnn.ops.quantised.maps import MICROSOFT, given, same_type, wanted
from clnn.ops.shared.window import window_of
from clnn.types import TensorType

# Takes a node whose first input has channels first, and what feeds that.
OfImage = Callable[[OnnxNode, Source], Source]


def of_image(function: OfImage, node: OnnxNode, last: bool) -> Source:
    """Return what `function` makes of a node; last: channels are last in its input and in its result."""
    if not last:
        return function(node, 0)
    x = node.type(0)
    if x.rank < 3:
        raise ShapeError(f"{x.shape} has no image; channels are last of batch, image and channels.")
    turned = TensorType((x.shape[0], x.shape[-1], *x.shape[1:-1]), x.dtype)
    inner = replace(node, inputs=(turned, *node.inputs[1:]))
    return channels_last(function(inner, channels_first(0, x.rank)), x.rank)


def may_be_last(function: OfImage) -> Callable[[OnnxNode], Source]:
    """Return an importer function, for which attribute channels_last tells where channels are."""
    return lambda node: of_image(function, node, bool(node.attr("channels_last", 0)))


def _image_average(node: OnnxNode, source: Source) -> Source:
    """Inputs x, scale, zero, y scale, zero."""
    x = given(node, 0, "x")
    y = wanted(node, 3, x)
    same_type(x, y)
    if node.type(0).rank < 3:
        raise ShapeError(f"{node.type(0).shape} has no image to take the average of.")
    return build.image_average(source, node.type(0).shape[2:], x, y)


def _average(node: OnnxNode, source: Source) -> Source:
    """Inputs x, scale, zero, y scale, zero."""
    x = given(node, 0, "x")
    y = wanted(node, 3, x)
    kernel = [int(k) for k in node.attrs["kernel_shape"]]
    ceil = bool(node.attr("ceil_mode", 0))
    images = node.type(0).shape[2:]
    window = window_of(node, kernel, images, ceil, "whole")
    if takes_all(window, images) and not node.open_images:
        return _image_average(node, source)
    pool = Pool(window, "average", bool(node.attr("count_include_pad", 0)))
    return build.average(source, pool, x, y)


def _largest(node: OnnxNode, source: Source) -> Source:
    """Input x."""
    kernel = [int(k) for k in node.attrs["kernel_shape"]]
    ceil = bool(node.attr("ceil_mode", 0))
    return Emit(Pool(window_of(node, kernel, node.type(0).shape[2:], ceil), "max"), [source])


onnx_op(f"{MICROSOFT}QLinearGlobalAveragePool")(may_be_last(_image_average))
onnx_op(f"{MICROSOFT}QLinearAveragePool")(may_be_last(_average))


@onnx_op(f"{MICROSOFT}NhwcMaxPool")
def _largest_of_last(node: OnnxNode) -> Source:
    return of_image(_largest, node, last=True)

"""DeformConv: windows whose taps are moved, as samples of each tap and a product with the weights."""

from __future__ import annotations

from math import prod

from clnn.errors import ShapeError
from clnn.ops.composed.values import Value
from clnn.ops.conv.spec import Conv2d
from clnn.ops.onnx_registry import OnnxNode, Source, onnx_op
from clnn.ops.resize.deform_sample import DeformSample
from clnn.ops.shared.window import Window, window_of


@onnx_op("DeformConv")
def _deform_conv(node: OnnxNode) -> Source:
    x, w = Value.of(node, 0), Value.of(node, 1)
    rank = x.type.rank - 2
    if w.type.rank != x.type.rank:
        raise ShapeError(f"DeformConv: weights {w.shape} must have as many axes as {x.shape}.")
    kernel = node.attr("kernel_shape", w.shape[2:])
    if tuple(kernel) != tuple(w.shape[2:]):
        raise ShapeError(f"DeformConv: kernel_shape {kernel} and weights {w.shape} differ.")
    group = int(node.attr("group", 1))
    sample = DeformSample(
        window_of(node, kernel, x.shape[2:]), group, int(node.attr("offset_group", 1))
    )
    mask = Value.of(node, 4) if node.has(4) else None
    samples = x.apply(sample, Value.of(node, 2), mask)
    out_channels, in_group = w.shape[:2]
    taps = w.reshape((out_channels, in_group, sample.taps)).transpose((0, 2, 1))
    outs, axes = samples.shape[2:], min(rank, 2)
    if rank > 2:  # a product has images
        samples = samples.reshape((*samples.shape[:2], outs[0], prod(outs[1:])))
    weights = taps.reshape((out_channels, in_group * sample.taps, *[1] * axes))
    ones, none = (1,) * axes, (0,) * axes
    product = Conv2d(Window(ones, ones, ones, none, none), group)
    made = samples.apply(product, weights, Value.of(node, 3) if node.has(3) else None)
    if rank > 2:
        made = made.reshape((*made.shape[:2], *outs))
    return made.source

"""Weights and biases of products in integers: scales, and what rounding leaves."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from clnn.records import dataclass
from clnn.types import Array

BIAS_STEPS = 2.0**30  # that a bias takes at most
LARGEST = 127


@dataclass(frozen=True)
class Rounded:
    """A product's weights in int8 and bias in int32: (integers, scale) of each; bias None: it has none.

    axis: of the weights, along which scale lies where it is more than one.
    """

    integers: Array
    scale: Array
    axis: int
    bias: Array | None
    bias_scale: Array

    @property
    def weights(self) -> Array:
        """The weights as they are multiplied."""
        return self.integers.astype(np.float32) * _along(self.scale, self.axis, self.integers.ndim)

    @property
    def bias_values(self) -> Array | None:
        """The bias as it is added."""
        return None if self.bias is None else self.bias.astype(np.float32) * self.bias_scale


def attributes(node: onnx.NodeProto) -> dict[str, int]:
    """Return a node's whole numbers by name."""
    return {a.name: a.i for a in node.attribute}


def output_axis(node: onnx.NodeProto) -> int:
    """Return the axis of a product's weights along which its output channels lie."""
    if node.op_type == "Conv" or attributes(node).get("transB"):
        return 0
    return 1


def groups_of(node: onnx.NodeProto) -> int:
    """Return in how many groups of output channels the output axis counts."""
    return attributes(node).get("group", 1) if node.op_type == "ConvTranspose" else 1


def channels_of(node: onnx.NodeProto, weights: Array) -> int:
    """Return the number of a product's output channels."""
    return int(weights.shape[output_axis(node)]) * groups_of(node)


def rounded(
    node: onnx.NodeProto, weights: Array, bias: Array | None, step: float, per_channel: bool
) -> Rounded:
    """Return a product's weights and bias in integers. step: of its input."""
    axis, groups = output_axis(node), groups_of(node)
    # One scale for all groups of a transposed convolution, whose weights have no axis of output channels.
    scale = _scales(weights, axis, bias, np.float64(step), per_channel and groups == 1)
    wide = _along(scale, axis, weights.ndim)
    integers = np.clip(np.rint(weights / wide), -LARGEST, LARGEST).astype(np.int8)
    steps = (np.float32(step) * scale).astype(np.float32)
    if bias is None:
        return Rounded(integers, scale, axis, None, steps)
    whole = np.rint(bias.astype(np.float64) / steps).astype(np.int32)
    channels = channels_of(node, weights)
    whole = np.ascontiguousarray(np.broadcast_to(whole, (channels,)))
    return Rounded(integers, scale, axis, whole, steps)


def array_of(tensor: onnx.TensorProto) -> Array:
    """Return the elements of a constant."""
    return np.asarray(numpy_helper.to_array(tensor))


def _along(scale: Array, axis: int, rank: int) -> Array:
    """Return scales as they multiply weights."""
    return scale.reshape([-1 if a == axis and scale.size > 1 else 1 for a in range(rank)])


def _scales(
    weights: Array, axis: int, bias: Array | None, step: np.float64, per_channel: bool
) -> Array:
    """Return the scale of each output channel, or one; large enough that the bias fits 32 bits."""
    rows = np.moveaxis(weights, axis, 0).reshape(weights.shape[axis], -1).astype(np.float64)
    most = np.abs(rows).max(axis=1)
    least = np.zeros(1) if bias is None else np.abs(bias.astype(np.float64)) / (BIAS_STEPS * step)
    least = least if per_channel else least.max(keepdims=True)
    scale = np.maximum(np.maximum(most / LARGEST, least), float(np.finfo(np.float32).tiny))
    scale = np.where(most > 0, scale, np.maximum(scale, 1 / LARGEST))
    return np.asarray(scale if per_channel else scale.max(keepdims=True), np.float32)

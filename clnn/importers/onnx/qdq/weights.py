"""Weights of ONNX products: along which axis output channels lie, and what rounding leaves of them."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from clnn.graph import rounding
from clnn.graph.rounding import Rounded
from clnn.types import Array


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
    return rounding.rounded(weights, bias, step, output_axis(node), groups_of(node), per_channel)


def array_of(tensor: onnx.TensorProto) -> Array:
    """Return the elements of a constant."""
    return np.asarray(numpy_helper.to_array(tensor))

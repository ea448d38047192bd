"""Operators that ONNX once had and has no more; onnxruntime still runs them."""

from __future__ import annotations

import numpy as np

from clnn.errors import ShapeError
from clnn.ops.composed.values import Value
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, onnx_op
from clnn.ops.shared.functions import PostOp


def _steps(*post_ops: PostOp) -> Emit:
    return Emit(Eltwise(post_ops), [0])


@onnx_op("Affine")
def _affine(node: OnnxNode) -> Source:
    alpha, beta = float(node.attr("alpha", 1.0)), float(node.attr("beta", 0.0))
    return _steps(PostOp("mul", (alpha,)), PostOp("add", (beta,)))


@onnx_op("Scale")
def _scale(node: OnnxNode) -> Source:
    return _steps(PostOp("mul", (float(node.attr("scale", 1.0)),)))


@onnx_op("ScaledTanh", "ParametricSoftplus")
def _scaled(node: OnnxNode) -> Source:
    """alpha * f(beta * x)."""
    function = "tanh" if node.op_type == "ScaledTanh" else "softplus"
    alpha, beta = float(node.attrs["alpha"]), float(node.attrs["beta"])
    return _steps(PostOp("mul", (beta,)), PostOp(function), PostOp("mul", (alpha,)))


@onnx_op("ImageScaler")
def _image_scaler(node: OnnxNode) -> Source:
    x, bias = Value.of(node, 0), np.array(node.attr("bias", []), node.type(0).dtype.numpy)
    if x.type.rank != 4 or bias.shape != (x.shape[1],):
        raise ShapeError(
            f"ImageScaler of {x.shape}: {bias.size} biases, must be one for each channel."
        )
    scaled = x.unary("mul", float(node.attr("scale", 1.0)))
    return scaled.binary("add", Value.const(bias.reshape(1, -1, 1, 1))).source


@onnx_op("Crop")
def _crop(node: OnnxNode) -> Source:
    x, border = Value.of(node, 0), [int(n) for n in node.attr("border", [])]
    size = [int(n) for n in node.attr("scale", [])]
    if x.type.rank != 4 or len(border) != 4 or len(size) not in (0, 2) or min(border) < 0:
        raise ShapeError(
            f"Crop of {x.shape} by {border} to {size}: it needs images, and four borders."
        )
    left, top, right, bottom = border
    height, width = size or (x.shape[2] - top - bottom, x.shape[3] - left - right)
    if height < 1 or width < 1 or top + height > x.shape[2] or left + width > x.shape[3]:
        raise ShapeError(f"Crop of {x.shape} by {border} to {size}: that leaves it.")
    return x.part(2, top, height).part(3, left, width).source

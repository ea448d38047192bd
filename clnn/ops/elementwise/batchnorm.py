"""BatchNormalization for inference: a scale and a shift per channel, as post-ops."""

from __future__ import annotations

from math import prod

import numpy as np

from clnn.errors import ShapeError
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.movement.views import Reshape
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, Unsupported, onnx_op
from clnn.ops.shared.functions import PostOp
from clnn.types import Array

SCALE, SHIFT, MEAN, VARIANCE = 1, 2, 3, 4


@onnx_op("BatchNormalization")
def _batch_norm(node: OnnxNode) -> Source:
    if node.attr("training_mode", 0) or node.n_outputs > 1:
        raise Unsupported("training_mode is on (statistics of the batch); clnn runs inference only")
    x = node.type(0)
    shape = _parameter_shape(node, x.shape)
    count = prod(shape)
    for index in (SCALE, SHIFT, MEAN, VARIANCE):
        if node.type(index).size != count:
            raise ShapeError(
                f"BatchNormalization of {x.shape}: input {index} is {node.type(index).shape}, must "
                f"hold {count} values."
            )
    epsilon = float(node.attr("epsilon", 1e-5))
    if all(index in node.consts for index in (SCALE, SHIFT, MEAN, VARIANCE)):
        return _constant(node, shape, epsilon)
    return _general(node, shape, epsilon)


def _parameter_shape(node: OnnxNode, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape in which scale and the others broadcast with the input.

    `spatial` 0 (before opset 9) keeps statistics for every element of an image.
    """
    if len(shape) < 2:
        return (1,) * len(shape)
    if node.opset < 9 and not node.attr("spatial", 1):
        return (1, *shape[1:])
    return (1, shape[1], *(1,) * (len(shape) - 2))


def _constant(node: OnnxNode, shape: tuple[int, ...], epsilon: float) -> Source:
    """Return one node with constant factor and shift, in steps that are rounded as ONNX Runtime's are."""
    kind = node.type(0).dtype.numpy
    wide = np.dtype(np.float64 if kind == np.float64 else np.float32)
    scale, shift, mean, variance = (
        node.consts[index].astype(wide).reshape(shape) for index in (SCALE, SHIFT, MEAN, VARIANCE)
    )
    one, least = np.ones((), wide), np.array(epsilon, wide)
    with np.errstate(all="ignore"):
        factor = scale * (one / np.sqrt(variance + least))
        summand = shift - mean * factor
    arrays: list[Array] = [factor.astype(kind), summand.astype(kind)]
    return Emit(Eltwise((PostOp("mul", operand=1), PostOp("add", operand=2))), [0, *arrays])


def _general(node: OnnxNode, shape: tuple[int, ...], epsilon: float) -> Source:
    """Return nodes for parameters that are inputs of the model."""
    scale, shift, mean, variance = (
        Emit(Reshape(shape), [index]) for index in (SCALE, SHIFT, MEAN, VARIANCE)
    )
    post_ops = (PostOp("add", (epsilon,)), PostOp("sqrt"), PostOp("div", operand=1, swapped=True))
    factor = Emit(Eltwise(post_ops), [variance, scale])
    chain = (PostOp("sub", operand=1), PostOp("mul", operand=2), PostOp("add", operand=3))
    return Emit(Eltwise(chain), [0, mean, factor, shift])

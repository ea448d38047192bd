"""Activations, normalisations and products of onnxruntime's transformers (domain com.microsoft)."""

from __future__ import annotations

import numpy as np

from clnn.errors import ShapeError
from clnn.ops.elementwise.cast import cast_to
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.views import Expand, Transpose
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, onnx_op
from clnn.ops.rows.norm import Normalise
from clnn.ops.rows.reduce import Reduce
from clnn.ops.shared.functions import PostOp
from clnn.ops.transformer import MICROSOFT
from clnn.types import F32, TensorType, normalise_axis


def _with_bias(node: OnnxNode, *post_ops: PostOp) -> Source:
    """Return `post_ops` of input 0, to which input 1 is added where it is given."""
    if not node.has(1):
        return Emit(Eltwise(post_ops), [0])
    bias, last = node.type(1).shape, node.type(0).shape[-1:]
    if bias != last:
        raise ShapeError(f"{node.op_type}: the bias is {bias}, must be {last} as the last axis.")
    return Emit(Eltwise((PostOp("add", operand=1), *post_ops)), [0, 1])


@onnx_op(MICROSOFT + "Gelu", MICROSOFT + "BiasGelu")
def _gelu(node: OnnxNode) -> Source:
    return _with_bias(node, PostOp("gelu"))


@onnx_op(MICROSOFT + "FastGelu")
def _fast_gelu(node: OnnxNode) -> Source:
    return _with_bias(node, PostOp("gelu_tanh"))


@onnx_op(MICROSOFT + "QuickGelu")
def _quick_gelu(node: OnnxNode) -> Source:
    return Emit(Eltwise((PostOp("swish", (float(node.attr("alpha", 1.702)),)),)), [0])


@onnx_op("SimplifiedLayerNormalization")
def _simplified_layer_norm(node: OnnxNode) -> list[Source]:
    """RMSNormalization as onnxruntime had it before ONNX; its second output is the factor of all values."""
    x = node.type(0)
    axes = tuple(range(normalise_axis(int(node.attr("axis", -1)), x.rank), x.rank))
    epsilon = float(node.attr("epsilon", 1e-5))
    return [_scaled(0, axes, epsilon, False, 1, None), _factor(cast_to(F32, x), axes, epsilon)]


def _factor(source: Source, axes: tuple[int, ...], epsilon: float) -> Emit:
    """Return 1 / sqrt(mean of squares + epsilon) of a value over `axes`, which stay."""
    square = Emit(Eltwise((PostOp("square"),)), [source])
    steps = (PostOp("add", (epsilon,)), PostOp("sqrt"), PostOp("reciprocal"))
    return Emit(Reduce("mean", axes, post_ops=steps), [square])


@onnx_op(MICROSOFT + "SkipLayerNormalization")
def _skip_layer_norm(node: OnnxNode) -> list[Source]:
    return _skip_norm(node, True, shift=3, bias=4)


@onnx_op(MICROSOFT + "SkipSimplifiedLayerNormalization")
def _skip_simplified(node: OnnxNode) -> list[Source]:
    return _skip_norm(node, False, shift=None, bias=3)


def _skip_norm(node: OnnxNode, centre: bool, shift: int | None, bias: int) -> list[Source]:
    """Return the normalisation of the last axis of input + skip (+ bias), and that sum."""
    x, skip = node.type(0), node.type(1)
    if skip.shape not in (x.shape, x.shape[1:], (1, *x.shape[1:])):
        raise ShapeError(f"{node.op_type}: the input is {x.shape}, skip {skip.shape}.")
    sums, inputs = [PostOp("add", operand=1)], [0, 1]
    if node.has(bias):
        sums.append(PostOp("add", operand=2))
        inputs.append(bias)
    total = Emit(Eltwise(tuple(sums)), inputs)
    axes, epsilon = (x.rank - 1,), float(node.attr("epsilon", 1e-12))
    made = _scaled(total, axes, epsilon, centre, 2, shift if shift and node.has(shift) else None)
    return [made, *_moments(total, x, axes, epsilon, centre), total]


def _scaled(
    total: Source, axes: tuple[int, ...], epsilon: float, centre: bool, scale: Source, shift: Source
) -> Emit:
    """Return the normalisation of a value, times a scale, plus a shift where there is one."""
    post_ops, inputs = [PostOp("mul", operand=1)], [total, scale]
    if shift is not None:
        post_ops.append(PostOp("add", operand=2))
        inputs.append(shift)
    return Emit(Normalise(axes, epsilon, centre=centre, post_ops=tuple(post_ops)), inputs)


def _moments(
    total: Source, kind: TensorType, axes: tuple[int, ...], epsilon: float, centre: bool
) -> list[Source]:
    """Return the mean and the factor of a normalisation, as float32; without a centre the mean is 0."""
    wide = cast_to(F32, kind, total)
    if not centre:
        shape = (*kind.shape[:-1], 1)
        return [
            Emit(Expand(shape), [np.zeros((1,) * kind.rank, np.float32)]),
            _factor(wide, axes, epsilon),
        ]
    mean = Emit(Reduce("mean", axes), [wide])
    return [
        mean,
        _factor(Emit(Eltwise((PostOp("sub", operand=1),)), [wide, mean]), axes, epsilon),
    ]


@onnx_op(MICROSOFT + "FusedMatMul", MICROSOFT + "TransposeMatMul")
def _fused_matmul(node: OnnxNode) -> Source:
    operands: list[Source] = []
    for index, side in enumerate("AB"):
        rank, value = node.type(index).rank, index
        if int(node.attr(f"transBatch{side}", 0)):
            if rank < 3:
                raise ShapeError(f"transBatch{side} of {node.type(index).shape}: it has no batch.")
            operands.append(Emit(Transpose((*range(1, rank - 1), 0, rank - 1)), [value]))
        else:
            operands.append(value)
    # a vector has nothing to exchange
    turn_a, turn_b = (
        bool(node.attr(f"trans{side}", 0)) and node.type(index).rank > 1
        for index, side in enumerate("AB")
    )
    return Emit(Gemm(float(node.attr("alpha", 1.0)), 1.0, turn_a, turn_b), [*operands, None])

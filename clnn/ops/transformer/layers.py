"""Activations, normalisations and products of onnxruntime's transformers (domain com.microsoft)."""

from __future__ import annotations

from clnn.errors import ShapeError
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.views import Transpose
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, onnx_op
from clnn.ops.rows.norm import Normalise
from clnn.ops.shared.functions import PostOp
from clnn.ops.transformer import MICROSOFT


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
    scaled: list[Source] = [total, 2]
    post_ops = [PostOp("mul", operand=1)]
    if shift is not None and node.has(shift):
        post_ops.append(PostOp("add", operand=2))
        scaled.append(shift)
    epsilon = float(node.attr("epsilon", 1e-12))
    spec = Normalise((x.rank - 1,), epsilon, centre=centre, post_ops=tuple(post_ops))
    return [Emit(spec, scaled), None, None, total]


@onnx_op(MICROSOFT + "FusedMatMul")
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

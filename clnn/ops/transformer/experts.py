"""MoE of onnxruntime: each token's result is a weighted sum of those of its best experts.

All experts see all tokens here, and those that a token has not chosen have weight 0.
"""

from __future__ import annotations

import numpy as np

from clnn.errors import ShapeError
from clnn.ops.composed.values import Value
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.scatter import ScatterElements
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, Unsupported, onnx_op
from clnn.ops.rows.softmax import Softmax
from clnn.ops.rows.topk import TopK
from clnn.ops.shared.functions import PostOp
from clnn.ops.transformer import MICROSOFT
from clnn.types import I64, TensorType

TOKENS, ROUTING, FIRST, FIRST_BIAS, SECOND, SECOND_BIAS, THIRD = range(7)
_PLAIN = {"relu": PostOp("relu"), "gelu": PostOp("gelu_tanh"), "silu": PostOp("swish", (1.0,))}


@onnx_op(MICROSOFT + "MoE")
def _experts(node: OnnxNode) -> Source:
    """Inputs: tokens, scores of experts (tokens, experts), weights and biases of both layers."""
    if node.has(THIRD) or int(node.attr("use_sparse_mixer", 0)):
        raise Unsupported("a third layer, or a sparse mixer")
    given, first, second = (Value.of(node, k) for k in (TOKENS, FIRST, SECOND))
    routing = Value.of(node, ROUTING)
    if first.type.rank != 3 or second.type.rank != 3 or routing.type.rank != 2:
        raise ShapeError(f"MoE: weights {first.shape} and {second.shape}, scores {routing.shape}.")
    count, experts = routing.shape
    tokens = given.reshape((1, count, given.shape[-1]))
    hidden = _activated(node, _layer(node, tokens, first, FIRST_BIAS))
    made = _layer(node, hidden, second, SECOND_BIAS)
    weights = _weights(node, routing).transpose((1, 0)).reshape((experts, count, 1))
    return made.binary("mul", weights).sum([0]).reshape(given.shape).source


def _layer(node: OnnxNode, x: Value, weights: Value, bias: int) -> Value:
    """Return the layer of each expert, (experts, tokens, columns)."""
    made = x.apply(Gemm(trans_b=True), weights, None)
    if not node.has(bias):
        return made
    added = Value.of(node, bias)
    return made.binary("add", added.reshape((added.shape[0], 1, added.shape[1])))


def _activated(node: OnnxNode, x: Value) -> Value:
    name = str(node.attr("activation_type", "relu"))
    if name == "swiglu":
        return _gated(node, x)
    if name != "identity" and name not in _PLAIN:
        raise Unsupported(f"activation {name!r}")
    return x if name == "identity" else x.apply(Eltwise((_PLAIN[name],)))


def _gated(node: OnnxNode, x: Value) -> Value:
    """Return gate * sigmoid(alpha * gate) * (other + beta); both lie side by side in turns."""
    if int(node.attr("swiglu_fusion", 0)) != 1 or int(
        node.attr("swiglu_limit_after_activation", 0)
    ):
        raise Unsupported(
            "swiglu of gates that are not interleaved, or limited behind the activation"
        )
    half = x.shape[2] // 2
    pairs = x.reshape((*x.shape[:2], half, 2))
    gate, other = (pairs.part(3, k, 1).reshape((*x.shape[:2], half)) for k in (0, 1))
    limit = node.attr("swiglu_limit")
    if limit is not None and float(limit) > 0:
        gate, other = gate.unary("at_most", limit), other.unary("clip", -limit, limit)
    other = other.unary("add", float(node.attr("activation_beta", 0.0)))
    return gate.unary("swish", float(node.attr("activation_alpha", 1.0))).binary("mul", other)


def _weights(node: OnnxNode, routing: Value) -> Value:
    """Return the weight of each expert for each token, 0 of those that it has not chosen."""
    chosen = TopK(int(node.attr("k", 1)), 1)
    shares = routing.apply(Softmax((1,)))
    top = Emit(chosen, [shares.source])
    values = Value(top, chosen.infer([shares.type])[0])
    if int(node.attr("normalize_routing_weights", 0)):
        values = values.binary("div", values.sum([1]).reshape((values.shape[0], 1)))
    places = Value(top.out(1), TensorType(values.shape, I64))
    nothing = Value.const(np.zeros((1, 1), routing.type.dtype.numpy)).expand(routing.shape)
    return nothing.apply(ScatterElements(1), places, values)

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
from clnn.records import dataclass
from clnn.types import I64, TensorType

TOKENS, ROUTING, FIRST, FIRST_BIAS, SECOND, SECOND_BIAS, THIRD = range(7)
_PLAIN = {"relu": PostOp("relu"), "gelu": PostOp("gelu_tanh"), "silu": PostOp("swish", (1.0,))}


@dataclass(frozen=True, eq=False)
class Layer:
    """Of all experts: weights (experts, columns, width), and what is added, (experts, columns)."""

    weights: Value
    bias: Value | None

    def of(self, x: Value) -> Value:
        """Return the layer of each expert, (experts, tokens, columns)."""
        made = x.apply(Gemm(trans_b=True), self.weights, None)
        if self.bias is None:
            return made
        experts, columns = self.bias.shape
        return made.binary("add", self.bias.reshape((experts, 1, columns)))


@onnx_op(MICROSOFT + "MoE")
def _experts(node: OnnxNode) -> Source:
    """Inputs: tokens, scores of experts (tokens, experts), weights and biases of both layers."""
    if node.has(THIRD):
        raise Unsupported("a third layer")
    first, second = ((FIRST, FIRST_BIAS), (SECOND, SECOND_BIAS))
    return mixture(node, *(Layer(Value.of(node, w), bias_of(node, b)) for w, b in (first, second)))


def bias_of(node: OnnxNode, index: int) -> Value | None:
    """Return input `index`, None where it is left out."""
    return Value.of(node, index) if node.has(index) else None


def mixture(node: OnnxNode, first: Layer, second: Layer) -> Source:
    """Return what the experts of two layers make of a node's tokens, by its scores."""
    if int(node.attr("use_sparse_mixer", 0)):
        raise Unsupported("a sparse mixer")
    given, routing = Value.of(node, TOKENS), Value.of(node, ROUTING)
    shapes = first.weights.shape, second.weights.shape
    if {len(s) for s in shapes} != {3} or routing.type.rank != 2:
        raise ShapeError(
            f"{node.op_type}: weights {shapes[0]} and {shapes[1]}, scores {routing.shape}."
        )
    count, experts = routing.shape
    tokens = given.reshape((1, count, given.shape[-1]))
    made = second.of(_activated(node, first.of(tokens)))
    weights = _weights(node, routing).transpose((1, 0)).reshape((experts, count, 1))
    return made.binary("mul", weights).sum([0]).reshape(given.shape).source


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

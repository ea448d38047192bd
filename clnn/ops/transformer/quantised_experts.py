"""QMoE of onnxruntime: a mixture of experts whose weights are unpacked to float32 at import."""

from __future__ import annotations

import numpy as np

from clnn.budget import take_table
from clnn.errors import ShapeError
from clnn.ops.composed.values import Value
from clnn.ops.onnx_registry import OnnxNode, Source, Unsupported, onnx_op
from clnn.ops.quantised.few_bits import unpacked
from clnn.ops.transformer import MICROSOFT
from clnn.ops.transformer.experts import Layer, bias_of, mixture
from clnn.types import U8, Array

F = np.float32
THIRD, FIRST_ZERO, SECOND_ZERO, MIXING = 8, 11, 12, 14  # inputs


@onnx_op(MICROSOFT + "QMoE")
def _experts(node: OnnxNode) -> Source:
    """Inputs: tokens, scores of experts, of each layer weights, scales and biases, zero points.

    accuracy_level is the least accuracy that is asked for; products and sums are those of float32 for all.
    """
    if node.has(THIRD) or node.has(MIXING):
        raise Unsupported("a third layer, or weights of experts apart from their scores")
    if str(node.attr("quant_type", "int")) != "int":
        raise Unsupported(f"quant_type {node.attr('quant_type')!r}; it must be 'int'")
    if int(node.attr("weights_prepacked", -1)) > 0:
        raise Unsupported("weights in a layout of one device")
    first = Layer(_weights(node, 1, 2, FIRST_ZERO), bias_of(node, 4))
    return mixture(node, first, Layer(_weights(node, 2, 5, SECOND_ZERO), bias_of(node, 7)))


def _weights(node: OnnxNode, layer: int, at: int, zero: int) -> Value:
    """Return the weights of a layer, whose bytes are input `at`, and its scales the next."""
    bits = int(node.attr(f"fc{layer}_expert_weight_bits", node.attr("expert_weight_bits", 4)))
    packed, steps = node.const(at, "the weights"), node.const(at + 1, "the scales").astype(F)
    if bits not in (2, 4, 8) or node.type(at).dtype != U8:
        raise Unsupported(f"weights of {bits} bits in {packed.dtype}; 2, 4 or 8 in uint8")
    take_table(packed.size * (8 // bits) * F(0).itemsize, f"{node.op_type} of {packed.shape}")
    whole = unpacked(packed, bits)
    experts, columns, width = whole.shape
    blocks = steps.shape[2] if steps.ndim == 3 else 1
    if steps.shape[:2] != (experts, columns) or not blocks or width % blocks:
        raise ShapeError(f"scales {steps.shape} for weights {whole.shape}.")
    zeros: Array = np.array(1 << (bits - 1), F)
    if node.has(zero):
        given = unpacked(node.const(zero, "the zero points"), bits)
        zeros = given[..., : steps.shape[-1]].reshape(experts, columns, blocks, 1)
    parts = whole.reshape(experts, columns, blocks, -1)
    real = (parts - zeros) * steps.reshape(experts, columns, blocks, 1)
    return Value.const(np.ascontiguousarray(real.reshape(whole.shape)))

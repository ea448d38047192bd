"""onnxruntime's LSTM with weights of bytes: DynamicQuantizeLSTM of com.microsoft."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from clnn.errors import ShapeError
from clnn.ops.onnx_registry import OnnxNode, Source, onnx_op
from clnn.ops.recurrent.onnx import R, W, layer
from clnn.types import Array, TensorType

STEPS = {W: 8, R: 10}  # input with the scales of each, before that with the zero points
OWN_INPUTS = 8  # of an LSTM


@onnx_op("com.microsoft::DynamicQuantizeLSTM")
def _lstm(node: OnnxNode) -> list[Source]:
    """Inputs of an LSTM with W and R as bytes (directions, terms, gates), their scales, zero points.

    Computed as an LSTM in float32. onnxruntime rounds each step's inputs and states to bytes too, at
    scales that it finds in each call, so its results are up to a step of those away.
    """
    consts, inputs = dict(node.consts), list(node.inputs[:OWN_INPUTS])
    for which, name in ((W, "W"), (R, "R")):
        consts[which] = _real(node, which, name)
        inputs[which] = TensorType.of(consts[which])
    plain = replace(node, op_type="LSTM", inputs=tuple(inputs), consts=consts)
    return layer(plain, consts[R])


def _real(node: OnnxNode, which: int, name: str) -> Array:
    """Return weights as an LSTM has them, (directions, gates, terms) in float32."""
    held, at = node.const(which, name), STEPS[which]
    if held.ndim != 3:
        raise ShapeError(f"DynamicQuantizeLSTM: {name} {held.shape} must have three axes.")
    turns, _, gates = held.shape
    scale = node.const(at, f"the scale of {name}").astype(np.float32)
    zero = np.zeros(1, np.float32)
    if node.has(at + 1):
        zero = node.const(at + 1, f"the zero point of {name}").astype(np.float32)
    for array, what in ((scale, "scale"), (zero, "zero point")):
        if array.size not in (1, turns, turns * gates):
            raise ShapeError(
                f"DynamicQuantizeLSTM: the {what} of {name} is {array.shape}; for {held.shape} it must be"
                f" ({turns},) or ({turns}, {gates})."
            )
    steps, zeros = (a.reshape(1 if a.size == 1 else turns, 1, -1) for a in (scale, zero))
    real: Array = (held.astype(np.float32) - zeros) * steps
    return np.ascontiguousarray(real.transpose(0, 2, 1))

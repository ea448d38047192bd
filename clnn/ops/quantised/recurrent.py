"""onnxruntime's LSTM with weights of bytes: DynamicQuantizeLSTM of com.microsoft."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from clnn.errors import ShapeError
from clnn.ops.elementwise.cast import Cast
from clnn.ops.elementwise.logic import Logic
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, Unsupported, onnx_op
from clnn.ops.quantised import build
from clnn.ops.quantised.products import BYTES, dynamic_product
from clnn.ops.recurrent.onnx import LENGTHS, R, W, X, layer
from clnn.ops.rows.reduce import Reduce
from clnn.records import dataclass
from clnn.types import F32, I32, Array, TensorType

STEPS = {W: 8, R: 10}  # input with the scales of each, before that with the zero points
OWN_INPUTS = 8  # of an LSTM


@dataclass(frozen=True)
class _Weights:
    """Integers counted from their zero points, and what one is worth in each row of each direction.

    integers: (directions, terms, gates * hidden). scales: (directions, gates * hidden), float32.
    """

    integers: Array
    scales: Array


@onnx_op("com.microsoft::DynamicQuantizeLSTM")
def _lstm(node: OnnxNode) -> list[Source]:
    """Inputs of an LSTM with W and R as bytes (directions, terms, gates), their scales, zero points.

    As onnxruntime computes it: X is rounded to uint8 over the range of all its steps and sequences
    (those up to the longest sequence's length), each state over its own before every step, products
    are sums of integers. onnxruntime rounds states of several sequences at one scale, and differs
    from this, where it has fewer threads than sequences, and with any threads where two to four
    sequences have more than 256 units.
    """
    w, r = _weights(node, W, "W"), _weights(node, R, "R")
    consts, inputs = dict(node.consts), list(node.inputs[:OWN_INPUTS])
    for which, held in ((W, w), (R, r)):
        consts[which] = np.ascontiguousarray(held.integers.transpose(0, 2, 1), np.float32)
        inputs[which] = TensorType.of(consts[which])
    plain = replace(node, op_type="LSTM", inputs=tuple(inputs), consts=consts)
    if node.type(X).rank != 3 or node.type(X).shape[2] != w.integers.shape[1]:
        raise ShapeError(
            f"DynamicQuantizeLSTM: X {node.type(X).shape} does not fit W {node.type(W).shape}, "
            "(directions, elements of X, gates)."
        )
    columns = np.concatenate(list(w.integers), axis=1)
    products = dynamic_product(node.type(X), columns, w.scales.reshape(-1), _reached(node))
    return layer(plain, consts[R], products, r.scales)


def _weights(node: OnnxNode, which: int, name: str) -> _Weights:
    """Return W or R. Raises ShapeError, Unsupported where it or its parameters do not fit."""
    held, at = node.const(which, name), STEPS[which]
    if held.ndim != 3:
        raise ShapeError(f"DynamicQuantizeLSTM: {name} {held.shape} must have three axes.")
    if node.type(which).dtype not in BYTES:
        raise Unsupported(f"{name} is {node.type(which).dtype.name}; it must be int8 or uint8")
    scale = _parameter(node, at, f"the scale of {name}", held).astype(np.float32)
    zero = np.zeros((1, 1), np.int64)
    if node.has(at + 1):
        zero = _parameter(node, at + 1, f"the zero point of {name}", held).astype(np.int64)
    rows = held.shape[0], held.shape[2]
    scales = np.ascontiguousarray(np.broadcast_to(scale, rows))
    return _Weights(build.signed(held, zero[:, None]), scales)


def _parameter(node: OnnxNode, at: int, what: str, held: Array) -> Array:
    """Return scales or zero points in a shape that broadcasts over (directions, gates)."""
    array, (turns, _, gates) = node.const(at, what), held.shape
    if array.size not in (1, turns, turns * gates):
        raise ShapeError(
            f"DynamicQuantizeLSTM: {what} is {array.shape}; for {held.shape} it must be"
            f" ({turns},) or ({turns}, {gates})."
        )
    return array.reshape(1 if array.size == 1 else turns, -1)


def _reached(node: OnnxNode) -> Source | None:
    """Return X with zeros behind the longest sequence; None where it has no such steps."""
    if not node.has(LENGTHS):
        return None
    steps = np.arange(node.type(X).shape[0], dtype=np.int32).reshape(-1, 1, 1)
    zero = np.zeros((), np.float32)
    if LENGTHS in node.consts:
        inside: Source = steps < node.consts[LENGTHS].max(initial=0)
    else:
        kind = node.type(LENGTHS)
        counts: Source = LENGTHS if kind.dtype == I32 else Emit(Cast(I32), [LENGTHS])
        longest = Emit(Reduce("max", (0,), False), [Emit(Cast(F32), [counts])])
        inside = Emit(Logic("less"), [steps.astype(np.float32), longest])
    return Emit(Logic("where"), [inside, X, zero])

"""Embeddings of words, places and segments, summed and normalised: of real numbers, and of bytes."""

from __future__ import annotations

import numpy as np

from clnn.arith.quantised_maps import Dequantise
from clnn.errors import ShapeError
from clnn.ops.composed.values import Value
from clnn.ops.elementwise.fixed_map import FixedMap
from clnn.ops.elementwise.logic import Logic
from clnn.ops.movement.gather import Gather
from clnn.ops.movement.views import Expand
from clnn.ops.onnx_registry import OnnxNode, Source, onnx_op
from clnn.ops.rows.norm import Normalise
from clnn.ops.shared.functions import PostOp
from clnn.ops.transformer import MICROSOFT
from clnn.types import I32

WORDS, SEGMENTS, WORD_TABLE, PLACE_TABLE, SEGMENT_TABLE, SCALE, SHIFT, MASK, PLACES = range(9)
# Of QEmbedLayerNormalization: the first of the scales and of the zero points of WORD_TABLE to SHIFT.
STEPS, ZEROS = 8, 13


@onnx_op(MICROSOFT + "EmbedLayerNormalization")
def _embed_layer_norm(node: OnnxNode) -> list[Source]:
    """Outputs: the normalised sum, how many words of each sample count, and the sum itself."""
    words = Value.of(node, WORDS)
    if words.type.rank != 2 or node.has(SEGMENTS) != node.has(SEGMENT_TABLE):
        raise ShapeError(f"{node.op_type}: words {words.shape}, or segments without their table.")
    total = _rows(node, WORD_TABLE, words).binary("add", _of_places(node, words))
    if node.has(SEGMENTS):
        total = total.binary("add", _rows(node, SEGMENT_TABLE, Value.of(node, SEGMENTS)))
    made = _normalised(total, node, Value.of(node, SCALE), Value.of(node, SHIFT))
    return [v.source for v in (made, _counts(node, words), total)]


@onnx_op(MICROSOFT + "QEmbedLayerNormalization")
def _quantised_embed_layer_norm(node: OnnxNode) -> list[Source]:
    """Tables, scale and shift are bytes with one scale and zero point each. Outputs: the sum normalised, the counts."""
    words = Value.of(node, WORDS)
    if words.type.rank != 2 or node.has(SEGMENTS) != node.has(SEGMENT_TABLE):
        raise ShapeError(f"{node.op_type}: words {words.shape}, or segments without their table.")
    places = Value.of(node, PLACE_TABLE)
    length = words.shape[1]
    if length > places.shape[0]:
        raise ShapeError(f"{node.op_type}: {length} words, but {places.shape[0]} places.")
    total = _real(node, WORD_TABLE, _rows(node, WORD_TABLE, words))
    first = places.part(0, 0, length).reshape((1, length, places.shape[1]))
    total = total.binary("add", _real(node, PLACE_TABLE, first))
    if node.has(SEGMENTS):
        segments = _rows(node, SEGMENT_TABLE, Value.of(node, SEGMENTS))
        total = total.binary("add", _real(node, SEGMENT_TABLE, segments))
    scale, shift = (_real(node, k, Value.of(node, k)) for k in (SCALE, SHIFT))
    made = _normalised(total, node, scale, shift)
    return [v.source for v in (made, _counts(node, words))]


def _rows(node: OnnxNode, table: int, places: Value) -> Value:
    """Return rows of a table."""
    return Value.of(node, table).apply(Gather(0), places)


def _real(node: OnnxNode, table: int, values: Value) -> Value:
    """Return what bytes of a table, or of the scale or the shift, stand for."""
    step, zero = (
        Value.of(node, first + table - WORD_TABLE).reshape(()) for first in (STEPS, ZEROS)
    )
    return values.apply(FixedMap(Dequantise()), step, zero)


def _normalised(total: Value, node: OnnxNode, scale: Value, shift: Value) -> Value:
    steps = (PostOp("mul", operand=1), PostOp("add", operand=2))
    spec = Normalise((2,), float(node.attr("epsilon", 1e-12)), post_ops=steps)
    return total.apply(spec, scale, shift)


def _of_places(node: OnnxNode, words: Value) -> Value:
    """Return the embeddings of the places, of one sample where all have the same."""
    table = Value.of(node, PLACE_TABLE)
    if node.has(PLACES):
        return table.apply(Gather(0), Value.of(node, PLACES))
    length = words.shape[1]
    if length > table.shape[0]:
        raise ShapeError(f"{node.op_type}: {length} words, but {table.shape[0]} places.")
    return table.part(0, 0, length).reshape((1, length, table.shape[1]))


def _counts(node: OnnxNode, words: Value) -> Value:
    """Return how many words of each sample have 1 in the mask, 0 without one."""
    if not node.has(MASK):
        return Value.const(np.zeros(1, np.int32)).apply(Expand(words.shape[:1]))
    one, zero = (Value.const(np.array(n, np.int32)) for n in (1, 0))
    counted = Value.of(node, MASK).cast(I32).apply(Logic("equal"), one)
    return counted.apply(Logic("where"), one, zero).sum([1])

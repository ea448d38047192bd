"""EmbedLayerNormalization: embeddings of words, places and segments, summed and normalised."""

from __future__ import annotations

import numpy as np

from clnn.errors import ShapeError
from clnn.ops.composed.values import Value
from clnn.ops.elementwise.logic import Logic
from clnn.ops.movement.gather import Gather
from clnn.ops.movement.views import Expand
from clnn.ops.onnx_registry import OnnxNode, Source, onnx_op
from clnn.ops.rows.norm import Normalise
from clnn.ops.shared.functions import PostOp
from clnn.ops.transformer import MICROSOFT
from clnn.types import I32

WORDS, SEGMENTS, WORD_TABLE, PLACE_TABLE, SEGMENT_TABLE, SCALE, SHIFT, MASK, PLACES = range(9)


@onnx_op(MICROSOFT + "EmbedLayerNormalization")
def _embed_layer_norm(node: OnnxNode) -> list[Source]:
    """Outputs: the normalised sum, how many words of each sample count, and the sum itself."""
    words = Value.of(node, WORDS)
    if words.type.rank != 2 or node.has(SEGMENTS) != node.has(SEGMENT_TABLE):
        raise ShapeError(f"{node.op_type}: words {words.shape}, or segments without their table.")
    total = (
        Value.of(node, WORD_TABLE).apply(Gather(0), words).binary("add", _of_places(node, words))
    )
    if node.has(SEGMENTS):
        segments = Value.of(node, SEGMENT_TABLE).apply(Gather(0), Value.of(node, SEGMENTS))
        total = total.binary("add", segments)
    steps = (PostOp("mul", operand=1), PostOp("add", operand=2))
    spec = Normalise((2,), float(node.attr("epsilon", 1e-12)), post_ops=steps)
    made = total.apply(spec, Value.of(node, SCALE), Value.of(node, SHIFT))
    return [v.source for v in (made, _counts(node, words), total)]


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

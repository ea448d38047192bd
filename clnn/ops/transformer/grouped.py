"""GroupQueryAttention of onnxruntime: groups of heads share keys and values, which are kept from call to call.

past keys    p p p . .      `places` of a call's tokens follow from how many tokens each sample has by now,
new keys           n n      which is known in the run only: past ones in front of them are kept, new ones
present      p p p n n 0    are written to their places, and what lies behind is 0
"""

from __future__ import annotations

import math

import numpy as np

from clnn.errors import ShapeError
from clnn.ops.composed.values import Value, concat
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.elementwise.logic import Logic
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.pad import Pad
from clnn.ops.movement.scatter import ScatterElements
from clnn.ops.onnx_registry import OnnxNode, Source, Unsupported, onnx_op
from clnn.ops.rows.softmax import Softmax
from clnn.ops.shared.functions import PostOp
from clnn.ops.transformer import MICROSOFT
from clnn.ops.transformer.rotary import at_places, rotated
from clnn.recorded import integer
from clnn.recorded_arrays import counted
from clnn.records import dataclass
from clnn.traced import is_one
from clnn.types import I32

LENGTHS, TOTAL, COS, PLACES, BIAS, SINK, VALID = 5, 6, 7, 9, 10, 11, 16
HIDDEN = np.array(np.finfo(np.float32).min)  # added to scores of keys that a query does not see
_REFUSED = {
    12: "keys in few bits",
    13: "values in few bits",
    14: "a norm of queries",
    15: "a norm of keys",
}


@dataclass(frozen=True)
class _Tokens:
    """Which tokens a call brings.

    length: of its queries. total: most tokens that a sample has by now. first: whether there are none
    before them. before: tokens that each sample has before them, (b, 1) or (1, 1). now: by now, (b, 1).
    places: of the call's tokens, (b, length) or (1, length).
    """

    length: int
    total: int
    first: bool
    before: Value
    now: Value
    places: Value


@onnx_op(MICROSOFT + "GroupQueryAttention")
def _group_query_attention(node: OnnxNode) -> list[Source]:
    """Inputs: query or all packed, key, value, past key and value, lengths - 1, total, cosines, sines, ..."""
    for index, what in _REFUSED.items():
        if node.has(index):
            raise Unsupported(f"{what}, which onnxruntime's CPU provider lacks or quantises")
    if node.n_outputs > 3 or int(node.attr("sliding_window_cache", 0)):
        raise Unsupported("scores as an output, or a past that holds a window only")
    heads, shared = int(node.attrs["num_heads"]), int(node.attrs["kv_num_heads"])
    if shared < 1 or heads % shared:
        raise ShapeError(f"{node.op_type}: {heads} heads do not divide into {shared} groups.")
    parts = _projected(node, heads, shared)
    tokens = _tokens(node, parts[0])
    if int(node.attr("do_rotary", 0)):
        parts = [*(_turned(node, part, tokens) for part in parts[:2]), parts[2]]
    query, key, value = (part.transpose((0, 2, 1, 3)) for part in parts)
    key, value = _present(node, 3, key, tokens), _present(node, 4, value, tokens)
    mixed = _attend(node, query, key, value, tokens)
    batch, length, width = query.shape[0], tokens.length, heads * query.shape[-1]
    result = mixed.transpose((0, 2, 1, 3)).reshape((batch, length, width))
    return [v.source for v in (result, key, value)]


def _projected(node: OnnxNode, heads: int, shared: int) -> list[Value]:
    """Return queries, keys and values, each (b, length, heads, size)."""
    query = Value.of(node, 0)
    if query.type.rank != 3 or node.has(1) != node.has(2):
        raise ShapeError(
            f"{node.op_type}: queries {query.shape}, with keys and values or without both."
        )
    batch, length, width = query.shape
    counts = (heads, shared, shared)
    if node.has(1):
        parts = [query, Value.of(node, 1), Value.of(node, 2)]
        size = width // heads
    else:
        size = width // sum(counts)
        starts = (0, heads * size, (heads + shared) * size)
        parts = [query.part(2, at, n * size) for at, n in zip(starts, counts, strict=True)]
    for part, count in zip(parts, counts, strict=True):
        if part.shape != (batch, length, count * size) or width % size:
            raise ShapeError(
                f"{node.op_type}: {part.shape} for {batch} times {length} tokens and {count} heads of {size}."
            )
    return [p.reshape((batch, length, n, size)) for p, n in zip(parts, counts, strict=True)]


def _tokens(node: OnnxNode, query: Value) -> _Tokens:
    batch, length = query.shape[:2]
    total = integer(node.const(TOTAL, "total_sequence_length").item())
    if node.type(LENGTHS).size != batch or total < length:
        raise ShapeError(
            f"{node.op_type}: {batch} times {length} tokens of {total}, {node.type(LENGTHS)}."
        )
    now = (
        Value.of(node, LENGTHS).cast(I32).reshape((batch, 1)).apply(Eltwise((PostOp("add", (1,)),)))
    )
    first = total == length and not node.has(VALID)
    if first:
        before = Value.const(np.zeros((1, 1), np.int32))
    elif node.has(VALID):
        before = now.binary("sub", Value.of(node, VALID).cast(I32).reshape((batch, 1)))
    else:
        before = now.apply(Eltwise((PostOp("sub", (length,)), PostOp("at_least", (0,)))))
    steps = Value.const(counted(length)).reshape((1, length))
    return _Tokens(
        length, total, first, before, now, steps if first else before.binary("add", steps)
    )


def _turned(node: OnnxNode, part: Value, tokens: _Tokens) -> Value:
    """Return queries or keys turned by the angles of their places."""
    places = Value.of(node, PLACES) if node.has(PLACES) else tokens.places
    if node.has(PLACES) and tokens.first:  # all samples count from the first one's place
        begin = places.cast(I32).part(0, 0, 1).part(1, 0, 1)
        places = begin.binary("add", tokens.places)
    cos, sin = (at_places(Value.of(node, k), places) for k in (COS, COS + 1))
    cos, sin = (v.reshape((*v.shape[:2], 1, v.shape[-1])) for v in (cos, sin))
    return rotated(part, cos, sin, bool(node.attr("rotary_interleaved", 0)))


def _present(node: OnnxNode, past: int, new: Value, tokens: _Tokens) -> Value:
    """Return keys or values with those of the past in front, (b, heads, all, size)."""
    batch, heads, length, size = new.shape
    held = node.type(past).shape if node.has(past) else (batch, heads, 0, size)
    if len(held) != 4 or (held[0], held[1], held[3]) != (batch, heads, size):
        raise ShapeError(f"{node.op_type}: a past of {held} before {new.shape}.")
    grows = tokens.total > held[2]
    if grows and tokens.total != held[2] + length and not tokens.first and not node.has(VALID):
        raise ShapeError(f"{node.op_type}: {tokens.total} tokens of {held[2]} before {length}.")
    extent = tokens.total if grows else held[2]
    if tokens.first:
        return _longer(new, extent)
    if not node.has(past):
        raise ShapeError(f"{node.op_type}: {length} tokens of {tokens.total}, but no past.")
    rows = Value.const(counted(extent)).reshape((1, 1, extent, 1))
    kept = rows.apply(Logic("less"), tokens.before.reshape((*tokens.before.shape, 1, 1)))
    zero = Value.const(np.zeros((), new.type.dtype.numpy))
    old = kept.apply(Logic("where"), _longer(Value.of(node, past), extent), zero)
    index = tokens.places.reshape((batch, 1, length, 1)).expand(new.shape)
    return old.apply(ScatterElements(2), index, new)


def _longer(value: Value, extent: int) -> Value:
    """Return keys or values with zeros behind them."""
    after = extent - value.shape[2]
    return value.apply(Pad((0,) * 4, (0, 0, after, 0), "constant", 0.0)) if after else value


def _attend(node: OnnxNode, query: Value, key: Value, value: Value, tokens: _Tokens) -> Value:
    """Return softmax(scores of queries and keys) times values, (b, heads, length, size)."""
    key, value = (
        v if v.shape[2] == tokens.total else v.part(2, 0, tokens.total) for v in (key, value)
    )
    groups = (key.shape[1], query.shape[1] // key.shape[1])
    merged = tokens.length == 1
    if groups[1] > 1 and not merged:  # a group's heads stand between its keys and its queries
        key, value = (v.reshape((*v.shape[:2], 1, *v.shape[2:])) for v in (key, value))
    scale = float(node.attr("scale", 0.0)) or 1 / math.sqrt(query.shape[-1])
    scores = _in_groups(query, groups, merged).apply(Gemm(scale, 1.0, trans_b=True), key, None)
    cap = float(node.attr("softcap", 0.0))
    if cap > 0:
        steps = (PostOp("mul", (1 / cap,)), PostOp("tanh"), PostOp("mul", (cap,)))
        scores = scores.apply(Eltwise(steps))
    if node.has(BIAS):
        scores = scores.binary("add", _in_groups(Value.of(node, BIAS), groups, merged))
    scores = scores.binary("add", _in_groups(_hidden(node, tokens), groups, merged))
    weights = _weights(node, scores, groups, merged)
    return weights.apply(Gemm(), value, None).reshape(query.shape)


def _in_groups(value: Value, groups: tuple[int, int], merged: bool = False) -> Value:
    """Return (b, heads or 1, length, n) as scores of groups are: (b, shared, group, length, n), or less.

    merged: the group's heads are the queries of one product, since each has one query.
    """
    batch, heads, length, last = value.shape
    if groups[1] == 1:
        return value
    split = (1, 1) if is_one(heads) else groups
    return value.reshape((batch, *split, last) if merged else (batch, *split, length, last))


def _hidden(node: OnnxNode, tokens: _Tokens) -> Value:
    """Return what is added to scores, (b, 1, length, total): 0 where a query sees a key."""
    keys = Value.const(counted(tokens.total)).reshape((1, 1, 1, tokens.total))
    window = int(node.attr("local_window_size", -1))
    if not int(node.attr("causal", 1)):
        seen = keys.apply(Logic("less"), tokens.now.reshape((*tokens.now.shape, 1, 1)))
    else:
        places = tokens.places.reshape((tokens.places.shape[0], 1, tokens.length, 1))
        seen = keys.apply(Logic("less_or_equal"), places)
        if window > 0:
            oldest = places.apply(Eltwise((PostOp("sub", (window,)),)))
            seen = seen.apply(Logic("and"), keys.apply(Logic("greater"), oldest))
    return seen.apply(Logic("where"), Value.const(np.zeros((), np.float32)), Value.const(HIDDEN))


def _weights(node: OnnxNode, scores: Value, groups: tuple[int, int], merged: bool) -> Value:
    """Return the softmax of scores, to whose sum each head adds the exponential of a number of its own."""
    last, shape = scores.type.rank - 1, (1, groups[0] * groups[1], 1, 1)
    if node.has(SINK):
        sink = Value.of(node, SINK).reshape(shape)
    elif int(node.attr("smooth_softmax", -1)) > 0:
        sink = Value.const(np.zeros(shape, np.float32))
    else:
        return scores.apply(Softmax((last,)))
    column = _in_groups(sink, groups, merged).expand((*scores.shape[:-1], 1))
    weights = concat([scores, column], last).apply(Softmax((last,)))
    return weights.part(last, 0, scores.shape[-1])

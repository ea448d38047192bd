"""Attention of onnxruntime's transformers: views of heads, two products and a softmax between them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from clnn.errors import ShapeError
from clnn.ops.elementwise.cast import Cast, cast_to
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.elementwise.logic import Logic
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.views import Concat, Reshape, Transpose, slice_of
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, Unsupported, onnx_op
from clnn.ops.quantised.products import integer_product, scales_product
from clnn.ops.rows.softmax import Softmax
from clnn.ops.shared.functions import PostOp
from clnn.ops.transformer import MICROSOFT
from clnn.records import dataclass
from clnn.types import F32, I32, Array, TensorType

ONE, ZERO = np.ones((), np.float32), np.zeros((), np.float32)
MASKED = -10000.0  # mask_filter_value's default: what is added to the scores of masked keys


@dataclass(frozen=True)
class _Heads:
    """A value of heads, (batch, heads, length, size) in this order of axes."""

    source: Source
    length: int
    size: int


@onnx_op(MICROSOFT + "Attention")
def _attention(node: OnnxNode) -> list[Source]:
    """Inputs: x (b, s, d), weights (d, q + k + v), bias, mask, past, attention bias."""
    if node.has(6) or int(node.attr("do_rotary", 0)):
        raise Unsupported("rotary positions, or a past that shares memory with what comes out")
    bias = (PostOp("add", operand=3),) if node.has(2) else ()
    inputs: list[Source] = [0, 1, None, 2] if bias else [0, 1, None]
    width = node.type(1).shape[-1]
    sizes = [int(s) for s in node.attr("qkv_hidden_sizes", [width // 3] * 3)]
    return _of_projected(node, Emit(Gemm(post_ops=bias), inputs), sizes, mask=3, past=4, added=5)


@onnx_op(MICROSOFT + "QAttention")
def _quantised_attention(node: OnnxNode) -> list[Source]:
    """Inputs: x, weights, bias, scales of x and weights, mask, zero points of x and weights, past.

    Queries, keys and values are sums of integers times the scales, and all behind them is float32.
    """
    if node.type(3).dtype != F32 or int(node.attr("do_rotary", 0)):
        raise Unsupported("rotary positions, or scales that are not float32")
    sums = integer_product(node, 0, 1, 6, 7)
    inputs: list[Source] = [Emit(Cast(F32), [sums]), scales_product(node, 3, 4), 2]
    steps = (PostOp("mul", operand=1), PostOp("add", operand=2))
    sizes = [node.type(1).shape[-1] // 3] * 3
    return _of_projected(node, Emit(Eltwise(steps), inputs), sizes, mask=5, past=8, added=9)


def _of_projected(
    node: OnnxNode, projected: Emit, sizes: Sequence[int], mask: int, past: int, added: int
) -> list[Source]:
    """Return attention of queries, keys and values side by side; mask, past, added: inputs of these."""
    heads, (batch, length, _) = int(node.attrs["num_heads"]), _axes(node, 0, 3)
    width = node.type(1).shape[-1]
    if sum(sizes) != width or any(s % heads for s in sizes) or sizes[0] != sizes[1]:
        raise ShapeError(
            f"{node.op_type}: {width} columns of weights for {heads} heads of {list(sizes)}."
        )
    parts, start = [], 0
    for size in sizes:
        part = Emit(slice_of((batch, length, width), 2, start, size), [projected])
        parts.append(_heads(part, (batch, length, size), heads))
        start += size
    query, key, value = parts
    if node.has(past):
        before = node.type(past).shape
        key, value = (
            _behind(Emit(slice_of(before, 0, k, 1), [past]), before[1:], new, batch, heads)
            for k, new in ((0, key), (1, value))
        )
    masks = [_mask(node, mask, query.length, key.length), _causal(node, query.length, key.length)]
    result = _attend(node, query, key, value, [*masks, added if node.has(added) else None])
    if node.n_outputs == 1:
        return [result]
    five = (1, batch, heads, key.length, key.size)
    both = [Emit(Reshape(five), [part.source]) for part in (key, value)]
    return [result, Emit(Concat(0), both)]


@onnx_op(MICROSOFT + "MultiHeadAttention")
def _multi_head_attention(node: OnnxNode) -> list[Source]:
    """Inputs: query, key, value, bias, key mask, attention bias, past key and value."""
    if node.has(8) or node.has(9) or node.n_outputs > 3:
        raise Unsupported("a past that shares memory, beams, or the scores as an output")
    if not node.has(1) or not node.has(2):
        raise Unsupported("queries, keys and values packed into one input")
    heads, (batch, length, width) = int(node.attrs["num_heads"]), _axes(node, 0, 3)
    if width % heads:
        raise ShapeError(f"{node.op_type}: {width} columns do not divide into {heads} heads.")
    query = _heads(_biased(node, 0, 0), (batch, length, width), heads)
    start, made = width, []
    for index in (1, 2):
        shape = node.type(index).shape
        if len(shape) == 4:  # heads already, as cross attention keeps them
            made.append(_Heads(index, shape[2], shape[3]))
            continue
        batch_, keys, columns = _axes(node, index, 3)
        made.append(_heads(_biased(node, index, start), (batch_, keys, columns), heads))
        start += columns
    key, value = (
        new if not node.has(at) else _behind(at, node.type(at).shape, new, batch, heads)
        for at, new in zip((6, 7), made, strict=True)
    )
    masks = [_mask(node, 4, query.length, key.length), _causal(node, query.length, key.length)]
    result = _attend(node, query, key, value, [*masks, 5 if node.has(5) else None])
    return [result, key.source, value.source][: node.n_outputs]


def _axes(node: OnnxNode, index: int, rank: int) -> tuple[int, ...]:
    """Return the shape of an input. Raises ShapeError where it has another rank."""
    shape = node.type(index).shape
    if len(shape) != rank:
        raise ShapeError(f"{node.op_type}: input {index} is {shape}, it must have {rank} axes.")
    return shape


def _biased(node: OnnxNode, index: int, start: int) -> Source:
    """Return an input plus its part of the bias, which begins at `start`."""
    if not node.has(3):
        return index
    size = node.type(index).shape[-1]
    part = Emit(slice_of(node.type(3).shape, 0, start, size), [3])
    return Emit(Eltwise((PostOp("add", operand=1),)), [index, part])


def _heads(source: Source, shape: tuple[int, ...], heads: int) -> _Heads:
    """Return (batch, length, heads * size) as heads."""
    batch, length, width = shape
    size = width // heads
    split = Emit(Reshape((batch, length, heads, size)), [source])
    return _Heads(Emit(Transpose((0, 2, 1, 3)), [split]), length, size)


def _behind(past: Source, shape: Sequence[int], new: _Heads, batch: int, heads: int) -> _Heads:
    """Return heads behind those of the past, (batch, heads, earlier, size)."""
    earlier = shape[-2]
    before = Emit(Reshape((batch, heads, earlier, new.size)), [past])
    return _Heads(Emit(Concat(2), [before, new.source]), earlier + new.length, new.size)


def _attend(
    node: OnnxNode, query: _Heads, key: _Heads, value: _Heads, added: Sequence[Source]
) -> Emit:
    """Return softmax(scale q k' + what is added) v, heads side by side again."""
    scale = float(node.attr("scale", 0.0)) or 1 / math.sqrt(query.size)
    scores = Emit(Gemm(scale, 1.0, trans_b=True), [query.source, key.source, _sum([*added])])
    mixed = Emit(Gemm(), [Emit(Softmax((3,)), [scores]), value.source, None])
    batch, heads = node.type(0).shape[0], int(node.attrs["num_heads"])
    turned = Emit(Transpose((0, 2, 1, 3)), [mixed])
    return Emit(Reshape((batch, query.length, heads * value.size)), [turned])


def _sum(parts: list[Source]) -> Source:
    """Return the sum of what is given, None where nothing is."""
    total: Source = None
    for part in parts:
        if part is None:
            continue
        total = part if total is None else Emit(Eltwise((PostOp("add", operand=1),)), [total, part])
    return total


def _causal(node: OnnxNode, queries: int, keys: int) -> Array | None:
    """Return what is added where a key stands behind its query, None where all are seen."""
    if not int(node.attr("unidirectional", 0)):
        return None
    behind = np.arange(keys) > np.arange(queries)[:, None] + (keys - queries)
    return np.where(behind, np.finfo(np.float32).min, np.float32(0))


def _filter(node: OnnxNode) -> np.float32:
    return np.float32(node.attr("mask_filter_value", MASKED))


def _mask(node: OnnxNode, index: int, queries: int, keys: int) -> Source:
    """Return what is added for a mask of whole numbers: 1 where a key counts, or lengths."""
    if not node.has(index):
        return None
    kind = node.type(index)
    batch = node.type(0).shape[0]
    if kind.shape in ((batch, keys), (batch, queries, keys)):
        shape = (batch, *(1,) * (4 - kind.rank), *kind.shape[1:])
        return _filtered(node, Emit(Reshape(shape), [_counted(kind, index)]))
    if kind.shape in ((batch,), (2 * batch,)):
        return _lengths(node, index, kind, batch, keys)
    raise Unsupported(f"a mask of {kind.shape} for {batch} times {queries} queries and {keys} keys")


def _counted(kind: TensorType, source: Source) -> Source:
    """Return 1 where a mask is above 0, else 0, as float32."""
    zero = np.zeros((), kind.dtype.numpy)
    seen = source if kind.dtype.name == "bool" else Emit(Logic("greater"), [source, zero])
    return Emit(Logic("where"), [seen, ONE, ZERO])


def _filtered(node: OnnxNode, seen: Source) -> Emit:
    """Return 0 where `seen` is 1, and the filter's number where it is 0."""
    value = float(_filter(node))
    return Emit(Eltwise((PostOp("mul", (-value,)), PostOp("add", (value,)))), [seen])


def _lengths(node: OnnxNode, index: int, kind: TensorType, batch: int, keys: int) -> Emit:
    """Return the mask of ends, and of starts behind them where there are twice as many numbers."""
    places = np.arange(keys, dtype=np.int32).reshape(1, 1, 1, keys)
    column = Emit(Reshape((kind.shape[0] // batch, batch, 1, 1, 1)), [cast_to(I32, kind, index)])
    whole = (kind.shape[0] // batch, batch, 1, 1, 1)

    def number(place: int) -> Emit:
        return Emit(Reshape(whole[1:]), [Emit(slice_of(whole, 0, place, 1), [column])])

    seen: Source = Emit(Logic("less"), [places, number(0)])
    if whole[0] == 2:
        seen = Emit(Logic("and"), [seen, Emit(Logic("greater_or_equal"), [places, number(1)])])
    return _filtered(node, Emit(Logic("where"), [seen, ONE, ZERO]))

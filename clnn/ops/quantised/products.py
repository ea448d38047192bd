"""Convolutions and matrix products of quantised tensors, in ONNX's domain and that of ONNX Runtime."""

from __future__ import annotations

import numpy as np

from clnn.arith.quantised import LARGEST_I16, Quantisation, Sums
from clnn.errors import ShapeError
from clnn.ops.elementwise.cast import Cast
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.views import Transpose
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, Unsupported, onnx_op
from clnn.ops.quantised import build
from clnn.ops.quantised.images import may_be_last
from clnn.ops.quantised.linear import above_zero, dynamic
from clnn.ops.quantised.parameters import numbers, parameters, zero_of, zero_type
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window, window_of
from clnn.types import F32, I8, I16, I32, U8, Array, DType, TensorType

BYTES = (I8, U8)
LAST = -1  # axis of the columns of b


def _convolution(node: OnnxNode, source: Source) -> Source:
    """Inputs x, scale, zero, w, scale, zero, y scale, zero, bias."""
    x = parameters(node, 1, 2, "the input", _bytes(node, 0))
    kind = zero_type(node, 7, x.dtype)
    weights, w = _filters(node, 3, 4, 5)
    y = parameters(node, 6, 7, "the result", kind)
    arith = build.requantised(x, w, y)
    bias = node.const(8, "the bias") if node.has(8) else None
    return build.convolution(source, _window(node, 0, 3), _group(node), weights, bias, arith)


onnx_op("QLinearConv", "com.microsoft::QLinearConv")(may_be_last(_convolution))


@onnx_op("ConvInteger")
def _convolution_sums(node: OnnxNode) -> Source:
    """Inputs x, w, x zero, w zero."""
    x, raw = _bytes(node, 0), node.const(1, "the weights")
    weights = build.signed(raw, _along(zero_of(node, 3, "the weights'", node.type(1).dtype), raw))
    window, group = _window(node, 0, 1), _group(node)
    if node.has(2) and 2 not in node.consts:
        near = Emit(Cast(I16), [above_zero(0, 2, x)])
        return build.convolution(near, window, group, weights, None, Sums(most=LARGEST_I16))
    (zero,) = zero_of(node, 2, "the input's", x).tolist() or [0]
    return build.convolution(0, window, group, weights, None, Sums(int(zero)))


def _filters(node: OnnxNode, index: int, scale: int, zero: int) -> tuple[Array, Quantisation]:
    """Return the weights of a convolution, counted from 0, and their quantisation."""
    raw, kind = node.const(index, "the weights"), _bytes(node, index)
    w = parameters(node, scale, zero, "the weights", kind, 0)
    if len(w.scale) not in (1, len(raw)) or len(w.zero) not in (1, len(raw)):
        raise ShapeError(f"{len(w.scale)} scales of weights {raw.shape}: one, or {len(raw)}.")
    return build.signed(raw, _along(np.array(w.zero), raw)), w


def _along(zero: Array, weights: Array) -> Array:
    """Return zero points of output channels in a shape that broadcasts over weights."""
    return zero.astype(np.int64).reshape(-1, *(1,) * (weights.ndim - 1))


def _window(node: OnnxNode, x: int, w: int) -> Window:
    if node.type(x).rank not in (3, 4):
        raise Unsupported(
            f"convolution of an input with {node.type(x).rank} axes; 3 and 4 are supported"
        )
    kernel = node.attr("kernel_shape", node.type(w).shape[2:])
    return window_of(node, kernel, node.type(x).shape[2:])


def _group(node: OnnxNode) -> int:
    return int(node.attr("group", 1))


def _bytes(node: OnnxNode, index: int) -> DType:
    kind = node.type(index).dtype
    if kind not in BYTES:
        raise Unsupported(f"input {index} is {kind.name}; it must be int8 or uint8")
    return kind


@onnx_op("QLinearMatMul")
def _matrices(node: OnnxNode) -> Source:
    """Inputs a, scale, zero, b, scale, zero, y scale, zero."""
    a = parameters(node, 1, 2, "a", _bytes(node, 0))
    y = parameters(node, 6, 7, "the result", zero_type(node, 7, a.dtype))
    return _scaled_product(node, 3, (4, 5), a, y)


@onnx_op("com.microsoft::QGemm")
def _gemm(node: OnnxNode) -> Source:
    """Inputs a, scale, zero, b, scale, zero, c, y scale, zero; float32 results without the last two."""
    a = parameters(node, 1, 2, "a", _bytes(node, 0))
    alpha = float(node.attr("alpha", 1.0))
    turned = bool(node.attr("transA", 0)), bool(node.attr("transB", 0))
    bias = node.const(6, "c") if node.has(6) else None
    if node.has(7):
        y = parameters(node, 7, 8, "the result", zero_type(node, 8, a.dtype))
        return _scaled_product(node, 3, (4, 5), a, y, alpha, turned, bias)
    w = parameters(node, 4, 5, "b", _bytes(node, 3), 1)
    one = Quantisation(a.dtype, (1.0,), (0,))
    sums = _sums(node, 0, 3, a, w, turned, bias)
    return _in_steps(sums, build.factors(a, w, one, alpha))


def _in_steps(sums: Source, ratios: Source) -> Emit:
    """Return int32 sums as float32, times what a step is worth."""
    return Emit(Eltwise((PostOp("mul", operand=1),)), [Emit(Cast(F32), [sums]), ratios])


def _scaled_product(
    node: OnnxNode,
    at: int,
    of_b: tuple[int, int],
    a: Quantisation,
    y: Quantisation,
    alpha: float = 1.0,
    turned: tuple[bool, bool] = (False, False),
    bias: Array | None = None,
) -> Source:
    """Return the product of inputs 0 and `at` in steps of the result."""
    b = _bytes(node, at)
    w = parameters(node, *of_b, "b", b, node.type(at).rank - 1)
    if at in node.consts and node.type(at).rank == 2 and not turned[0] and _is_row(bias):
        raw = node.consts[at].T if turned[1] else node.consts[at]
        columns = build.signed(raw, np.array(w.zero))
        row = _row(bias, columns.shape[1])
        shape = node.type(0).shape
        return build.rows_product(0, shape, columns, row, build.requantised(a, w, y, alpha))
    sums = _sums(node, 0, at, a, w, turned, bias, scaled=True)
    return build.requantise_sums(sums, build.factors(a, w, y, alpha), y)


def _is_row(bias: Array | None) -> bool:
    return bias is None or all(d == 1 for d in bias.shape[:-1])


def _row(bias: Array | None, columns: int) -> Array | None:
    if bias is None:
        return None
    return np.ascontiguousarray(np.broadcast_to(bias.reshape(-1), (columns,)))


def _sums(
    node: OnnxNode,
    left: int,
    right: int,
    a: Quantisation,
    b: Quantisation,
    turned: tuple[bool, bool] = (False, False),
    bias: Array | None = None,
    scaled: bool = False,
) -> Source:
    """Return the product of two inputs as int32; scaled: or as float32 where that holds all sums."""
    rank, known = node.type(right).rank, node.consts.get(right)
    if known is not None and rank == 2 and not turned[0] and _is_row(bias):
        columns = build.signed(known.T if turned[1] else known, np.array(b.zero))
        row = _row(bias, columns.shape[1])
        arith = Sums(a.zero[0])
        return build.rows_product(left, node.type(left).shape, columns, row, arith)
    if bias is None and build.float_holds(a, b, node.type(left).shape[-1 - turned[0]]):
        ranks, turns = (node.type(left).rank, rank), Gemm(trans_a=turned[0], trans_b=turned[1])
        sums = build.real_sums_of((left, right), (a, b), ranks, turns)
        return sums if scaled else Emit(Cast(I32), [sums])
    sides: list[Source] = []
    for index, kind, flip in ((left, a, turned[0]), (right, b, turned[1])):
        wide: Source = Emit(Cast(I32), [index])
        wide = Emit(Transpose((1, 0)), [wide]) if flip else wide
        zero = np.array(kind.zero, np.int32)
        if zero.any():
            wide = Emit(Eltwise((PostOp("sub", operand=1),)), [wide, zero])
        sides.append(wide)
    made: Source = Emit(Gemm(), [*sides, None])
    return made if bias is None else Emit(Eltwise((PostOp("add", operand=1),)), [made, bias])


@onnx_op("MatMulInteger")
def _integers(node: OnnxNode) -> Source:
    """Inputs a, b, a zero, b zero."""
    return integer_product(node, 0, 1, 2, 3)


def integer_product(node: OnnxNode, a: int, b: int, a_zero: int, b_zero: int) -> Source:
    """Return the product of inputs a and b as int32; their zero points may be computed by the run."""
    kinds = _bytes(node, a), _bytes(node, b)
    fixed = [not node.has(k) or k in node.consts for k in (a_zero, b_zero)]
    if all(fixed) and (not node.has(a_zero) or node.type(a_zero).size == 1):
        left = Quantisation(kinds[0], (1.0,), _zeros(node, a_zero, "a's", kinds[0]))
        right = Quantisation(kinds[1], (1.0,), _zeros(node, b_zero, "b's", kinds[1]))
        return _sums(node, a, b, left, right)
    if fixed[1] and b in node.consts and node.type(b).rank == 2 and node.type(a_zero).size == 1:
        return _moving_zero(node, a, b, a_zero, b_zero)
    sides = [
        above_zero(k, _of_rows(node, zero, k, is_left), kind)
        if node.has(zero)
        else Emit(Cast(I32), [k])
        for k, zero, kind, is_left in ((a, a_zero, kinds[0], True), (b, b_zero, kinds[1], False))
    ]
    return Emit(Gemm(), [*sides, None])


def _zeros(node: OnnxNode, index: int, what: str, kind: DType) -> tuple[int, ...]:
    return tuple(map(int, zero_of(node, index, what, kind)))


def _of_rows(node: OnnxNode, zero: int, of: int, is_left: bool) -> Source:
    """Return a zero point of rows of a in a shape that broadcasts over it."""
    if is_left and node.type(zero).rank == 1 and node.type(zero).size > 1:
        known = node.const(zero, "the zero points of a's rows")
        return known.reshape(-1, 1)
    return zero


def _moving_zero(node: OnnxNode, a: int, b: int, a_zero: int, b_zero: int) -> Source:
    """Return the product where the zero point of a is computed: sums less it times those of b."""
    kind = _bytes(node, b)
    zero = zero_of(node, b_zero, "b's", kind).astype(np.int64)
    columns = build.signed(node.consts[b], zero)
    raw = build.rows_product(a, node.type(a).shape, columns, None, Sums())
    above = columns.sum(axis=0, dtype=np.int64).astype(np.int32)
    wide = Emit(Cast(I32), [a_zero])
    taken = Emit(Eltwise((PostOp("mul", operand=1),)), [above, wide])
    return Emit(Eltwise((PostOp("sub", operand=1),)), [raw, taken])


@onnx_op("com.microsoft::MatMulIntegerToFloat")
def _real_product(node: OnnxNode) -> Source:
    """Inputs a, b, a scale, b scale, a zero, b zero, bias."""
    return _with_bias(
        node, _in_steps(integer_product(node, 0, 1, 4, 5), scales_product(node, 2, 3)), 6
    )


def scales_product(node: OnnxNode, a: int, b: int) -> Source:
    """Return the product of two inputs that are scales."""
    if a in node.consts and b in node.consts:
        return numbers(node, a, "a's scale", F32) * numbers(node, b, "b's scale", F32)
    return Emit(Eltwise((PostOp("mul", operand=1),)), [b, a])


def _with_bias(node: OnnxNode, made: Emit, index: int) -> Source:
    if not node.has(index):
        return made
    return Emit(Eltwise((PostOp("add", operand=1),)), [made, index])


@onnx_op("com.microsoft::DynamicQuantizeMatMul")
def _dynamic_product(node: OnnxNode) -> Source:
    """Inputs a (float32), b, b scale, b zero, bias."""
    if node.type(1).rank != 2 or 1 not in node.consts:
        raise Unsupported("b must be a constant matrix")
    columns = build.signed(
        node.consts[1], zero_of(node, 3, "b's", _bytes(node, 1)).astype(np.int64)
    )
    steps = node.const(2, "b's scale").reshape(-1)
    return _with_bias(node, dynamic_product(node.type(0), columns, steps), 4)


def dynamic_product(
    x: TensorType, columns: Array, steps: Array, over: Source | None = None
) -> Emit:
    """Return input 0, rounded to uint8 as `dynamic` does, times weights, in float32.

    columns: integers (terms, columns), counted from their zero points. steps: what one is worth, for
    each column or all.
    """
    a, scale, zero = dynamic(x, over=over)
    raw = build.rows_product(a, x.shape, columns, None, Sums())
    above = columns.sum(axis=0, dtype=np.int64).astype(np.int32)
    taken = Emit(Eltwise((PostOp("mul", operand=1),)), [above, Emit(Cast(I32), [zero])])
    sums = Emit(Eltwise((PostOp("sub", operand=1),)), [raw, taken])
    return _in_steps(sums, Emit(Eltwise((PostOp("mul", operand=1),)), [steps, scale]))

"""Each node of a verified graph as ops of clnn: geometry in common, arithmetic by element type."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from clnn.apis.openvx.builder import TensorBuilder
from clnn.apis.openvx.enums import NormType, PoolType, SizeRounding
from clnn.apis.openvx.lower_elements import ELEMENTS
from clnn.apis.openvx.lowering import Lowering
from clnn.apis.openvx.shapes import pool_stride, single_input, stride, upscale
from clnn.apis.openvx.verify import Verified
from clnn.arith._base import FLOAT, Arithmetic
from clnn.arith.openvx import Format
from clnn.arith.openvx_device import LARGEST, VxAverage, VxMac, VxMatrix
from clnn.ops.conv.spec import Conv2d
from clnn.ops.elementwise.cast import Cast
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.pad import Pad
from clnn.ops.pool.spec import Pool
from clnn.ops.rows.lrn import Lrn
from clnn.ops.rows.openvx_norm import OpenVxNorm
from clnn.ops.rows.openvx_softmax import OpenVxSoftmax
from clnn.ops.rows.softmax import Softmax
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.types import I32

UNROLLED = 36  # taps up to which a window may be written out in a kernel


def mac(at: Lowering, weights: str, channels: bool) -> Arithmetic:
    """Return the arithmetic of a node with weights (oc, ...)."""
    if at.is_float("inputs"):
        return FLOAT
    x, w, out = at.format("inputs"), at.format("weights"), at.result
    shift, wrap, biased = x.fraction + w.fraction - out.fraction, at.wrap(), at.has("biases")
    own = out.dtype.itemsize * 8
    bits = own if at.conformance else min(at.node.values.get("accumulator_bits", 32), 62)
    wide = largest_sum(at.b, weights, out, shift, bits) >= 2**31
    if at.conformance:
        rounding = "biased" if at.even else "zero"
        return VxMac(out, shift, rounding, wrap, bits, out.low == 0, channels, True, biased, wide)
    rounding = "even" if at.even else "zero"
    return VxMac(out, shift, rounding, wrap, bits, False, False, False, biased, wide)


def largest_sum(b: TensorBuilder, weights: str, out: Format, shift: int, bits: int) -> int:
    """Return a bound of the magnitude of sums, bias included: of the weights where they are known."""
    terms = int(np.prod(b.shape(weights)[1:]))
    known = b.consts.get(weights)
    room = (terms + 2) << 16 if bits <= 16 else 2**63
    if known is None:
        return min(room, (terms + 2) * ((LARGEST[out.dtype] >> shift) + 1))
    top = max(-out.low, out.high)
    each = (np.abs(known.astype(np.int64)).reshape(len(known), -1) * top >> shift) + 1
    return min(room, int(each.sum(axis=1).max(initial=0)) + 2**16)


def biases(at: Lowering, shape: tuple[int, ...]) -> str | None:
    """Return the bias in the type that sums have, or None."""
    if not at.has("biases"):
        return None
    tensor = at.tensor("biases")
    if at.is_float("inputs"):
        return at.b.reshape(at.b.weights(tensor), shape)
    return at.b.int32(tensor, shape)


def filtered(
    at: Lowering, x: str, weights: str, window: Window, out: tuple[int, int], channels: bool
) -> str:
    """Return the convolution of x with weights that gives `out` rows and columns."""
    shape = at.b.shape(weights)
    bias = at.verified.meta(at.tensor("biases")).dims if at.has("biases") else ()
    bias_shape = (shape[0],) if len(bias) == 1 else (shape[0], *out)
    arith = mac(at, weights, channels)
    return at.b.add(Conv2d(window, arith=arith), x, weights, biases(at, bias_shape))


def window(
    kernel: tuple[int, int],
    strides: tuple[int, int],
    gaps: tuple[int, int],
    pads: tuple[int, int],
    ins: tuple[int, int],
    outs: tuple[int, int],
) -> Window:
    """Return the window over (h, w) that gives exactly `outs`, with padding behind as needed."""
    after = tuple(
        max(0, (outs[a] - 1) * strides[a] + gaps[a] * (kernel[a] - 1) + 1 - pads[a] - ins[a])
        for a in (0, 1)
    )
    return Window(kernel, strides, gaps, pads, after)


def strides_of(at: Lowering, reach: tuple[int, int], pads: tuple[int, int]) -> tuple[int, int]:
    """Return a convolution's strides along (y, x), which follow from the sizes."""
    ins, outs = at.meta("inputs").dims, at.meta("outputs").dims
    rounding = at.value("down_scale_size_rounding")
    ceil = rounding is SizeRounding.VX_CONVOLUTIONAL_NETWORK_DS_SIZE_ROUNDING_CEILING
    y, x = (stride(ins[1 - a], outs[1 - a], reach[a], pads[a], ceil) for a in (0, 1))
    assert y and x
    return y, x


def _convolution(at: Lowering) -> str:
    x, w = at.read("inputs"), at.b.weights(at.tensor("weights"))
    kernel = at.b.shape(w)[2:]
    gaps = (at.value("dilation_y") + 1, at.value("dilation_x") + 1)
    pads = (at.value("pad_y"), at.value("pad_x"))
    reach = (gaps[0] * (kernel[0] - 1) + 1, gaps[1] * (kernel[1] - 1) + 1)
    steps = strides_of(at, reach, pads)
    outs = at.meta("outputs").dims[1::-1]
    if at.conformance:
        pads = (pads[0] - gaps[0] + 1, pads[1] - gaps[1] + 1)
        x, pads = _cut_front(at.b, x, pads)
    ins = at.b.shape(x)[2:]
    around = window((kernel[0], kernel[1]), steps, gaps, pads, (ins[0], ins[1]), (outs[0], outs[1]))
    return filtered(at, x, w, around, (outs[0], outs[1]), True)


def _cut_front(b: TensorBuilder, x: str, pads: tuple[int, int]) -> tuple[str, tuple[int, int]]:
    """Return x without the rows and columns that negative pads take away, and the other pads."""
    shape = b.shape(x)
    starts = (0, 0, *(min(max(-p, 0), d - 1) for p, d in zip(pads, shape[2:], strict=True)))
    return b.cut(x, starts, shape), (max(pads[0], 0), max(pads[1], 0))


def _deconvolution(at: Lowering) -> str:
    b, x, w = at.b, at.read("inputs"), at.b.weights(at.tensor("weights"))
    kernel, ins = b.shape(w)[2:], b.shape(x)[2:]
    outs = at.meta("outputs").dims[1::-1]
    pads = (at.value("padding_y"), at.value("padding_x"))
    extra = (at.value("a_y"), at.value("a_x"))
    ups = [upscale(ins[a], outs[a], kernel[a], pads[a], extra[a]) or 1 for a in (0, 1)]
    x = spread(b, x, (ups[0], ups[1]), ins if at.conformance else None)
    size = b.shape(x)[2:]
    front = (kernel[0] - 1 - pads[0], kernel[1] - 1 - pads[1])
    around = window(
        (kernel[0], kernel[1]), (1, 1), (1, 1), front, (size[0], size[1]), (outs[0], outs[1])
    )
    stop = tuple(min(size[a], outs[a] + kernel[a] - 1 - front[a]) for a in (0, 1))
    x = b.cut(x, (0,) * 4, (*b.shape(x)[:2], *stop))
    return filtered(at, x, w, around, (outs[0], outs[1]), True)


def spread(b: TensorBuilder, x: str, ups: tuple[int, int], limit: tuple[int, ...] | None) -> str:
    """Return x with ups - 1 zeros between elements along (h, w); limit: no longer than this."""
    n, c, h, w = b.shape(x)
    if limit is not None:
        h, w = -(-h // ups[0]), -(-w // ups[1])
        x = b.cut(x, (0,) * 4, (n, c, h, w))
    if ups != (1, 1):
        after = (0, 0, 0, ups[0] - 1, 0, ups[1] - 1)
        wide = b.add(Pad((0,) * 6, after), b.reshape(x, (n, c, h, 1, w, 1)))
        x = b.reshape(wide, (n, c, h * ups[0], w * ups[1]))
        x = b.cut(x, (0,) * 4, (n, c, (h - 1) * ups[0] + 1, (w - 1) * ups[1] + 1))
    return x


def _fully_connected(at: Lowering) -> str:
    b, ins, pad = at.b, at.meta("inputs").dims, at.value("pad")
    weights, outs = at.meta("weights").dims, at.meta("outputs").dims
    core = single_input(ins, weights, outs, pad)
    assert core is not None
    single = ins[:core][::-1]
    terms, ofm = int(np.prod(single)), weights[-1]
    w = b.weights(at.tensor("weights"))
    if pad:
        size = tuple(d + 2 * pad if a >= core - 2 else d for a, d in enumerate(single))
        first = tuple((s - d) // 2 for s, d in zip(size, single, strict=True))
        stops = tuple(f + d for f, d in zip(first, single, strict=True))
        w = b.cut(b.reshape(w, (ofm, *size)), (0, *first), (ofm, *stops))
    count = int(np.prod(ins[core:]))
    w = b.reshape(w, (ofm, terms))
    x = b.reshape(at.read("inputs"), (count, terms))
    if at.is_float("inputs"):
        return b.add(Gemm(trans_b=True), x, w, biases(at, (ofm,)))
    point = Window((1, 1), (1, 1), (1, 1), (0, 0), (0, 0))
    x, w = b.reshape(x, (count, terms, 1, 1)), b.reshape(w, (ofm, terms, 1, 1))
    return b.add(Conv2d(point, arith=mac(at, w, False)), x, w, biases(at, (ofm,)))


def _normalization(at: Lowering) -> str:
    b, x, size = at.b, at.read("inputs"), at.value("norm_size")
    alpha, beta = at.number("alpha"), at.number("beta")
    across = at.value("type") is NormType.VX_CONVOLUTIONAL_NETWORK_NORM_ACROSS_MAPS
    if not at.is_float("inputs"):
        source, result = at.format("inputs"), at.result
        sample = at.conformance and source == result and source.fraction == 8
        return b.add(OpenVxNorm(size, alpha, beta, across, source, result, sample), x)
    if across:
        return b.add(Lrn(size, alpha, beta), x)
    sides = ((size - 1) // 2,) * 2, (size // 2,) * 2
    around = Window((size, size), (1, 1), (1, 1), *sides)
    squares = b.add(Eltwise((PostOp("square"),)), x)
    mean = b.add(Pool(around, "average", count_pad=True), squares)
    chain = (PostOp("mul", (alpha,)), PostOp("add", (1.0,)), PostOp("pow", (-beta,)))
    return b.add(Eltwise((*chain, PostOp("mul", operand=1))), mean, x)


def _pooling(at: Lowering) -> str:
    b, x = at.b, at.read("inputs")
    kernel = (at.value("pool_size_y"), at.value("pool_size_x"))
    pads = (at.value("pool_pad_y"), at.value("pool_pad_x"))
    ins, outs = b.shape(x)[2:], at.meta("outputs").dims[1::-1]
    ceil = at.value("rounding") is SizeRounding.VX_CONVOLUTIONAL_NETWORK_DS_SIZE_ROUNDING_CEILING
    down, right = (
        pool_stride(ins[a], outs[a], kernel[a], pads[a], ceil, at.conformance) for a in (0, 1)
    )
    assert down and right
    steps = (down, right)
    around = window(kernel, steps, (1, 1), pads, (ins[0], ins[1]), (outs[0], outs[1]))
    if at.value("pool_type") is PoolType.VX_CONVOLUTIONAL_NETWORK_POOLING_MAX:
        signed = at.is_float("inputs") or at.result.low < 0
        if signed and not at.conformance and any((*around.before, *around.after)):
            x = b.add(Pad((0, 0, *around.before), (0, 0, *around.after)), x)
            around = Window(kernel, steps, (1, 1), (0, 0), (0, 0))
        return b.add(Pool(around, "max"), x)
    if at.is_float("inputs"):
        return b.add(Pool(around, "average", count_pad=True), x)
    return _integer_average(at, x, around)


def _integer_average(at: Lowering, x: str, around: Window) -> str:
    b, taps = at.b, int(np.prod(around.kernel))
    n, c, h, w = b.shape(x)
    met = min(around.kernel[0], h) * min(around.kernel[1], w)
    arith = VxAverage(at.result, taps, met * 2**15 >= 2**31)
    if taps <= UNROLLED:
        ones = b.const(np.ones((c, 1, *around.kernel), np.int8))
        return b.add(Conv2d(around, c, arith=arith), x, ones)
    ones = b.const(np.ones((1, 1, *around.kernel), np.int8))
    return b.add(Conv2d(around, arith=arith), b.reshape(x, (n * c, 1, h, w)), ones)


def _softmax(at: Lowering) -> str:
    x = at.read("inputs")
    rank = len(at.b.shape(x))
    axis = rank - 3 if rank > 2 else rank - 1
    if at.is_float("inputs"):
        return at.b.add(Softmax((axis,)), x)
    spec = OpenVxSoftmax(axis, at.format("inputs"), at.result, at.conformance)
    return at.b.add(spec, x)


def _matrix_multiply(at: Lowering) -> str:
    b = at.b
    turned = [at.value(f"transpose_input{k}") for k in (1, 2, 3)]
    one, two = at.read("input1"), at.read("input2")
    three = at.tensor("input3") if at.has("input3") else None
    if at.is_float("input1"):
        c = None if three is None else _turned(b, b.read(three), turned[2])
        return b.add(Gemm(trans_a=turned[0], trans_b=turned[1]), one, two, c)
    one, two = _turned(b, one, turned[0]), _turned(b, two, not turned[1])
    (rows, terms), columns = b.shape(one), b.shape(two)[0]
    shift = at.format("input1").fraction + at.format("input2").fraction - at.result.fraction
    wide = terms * LARGEST[at.result.dtype] + 2 ** (15 + shift) >= 2**30
    bias = None
    if three is not None:
        wide_bias = b.add(Cast(I32), b.read(three))
        bias = b.reshape(_turned(b, wide_bias, not turned[2]), (columns, rows, 1))
    x = b.reshape(one, (1, rows, 1, terms))
    x = b.transpose(x, (0, 3, 1, 2))
    w = b.reshape(two, (columns, terms, 1, 1))
    point = Window((1, 1), (1, 1), (1, 1), (0, 0), (0, 0))
    y = b.add(Conv2d(point, arith=VxMatrix(at.result, shift, wide)), x, w, bias)
    return b.transpose(b.reshape(y, (columns, rows)), (1, 0))


def _turned(b: TensorBuilder, value: str, turn: bool) -> str:
    return b.transpose(value, (1, 0)) if turn else value


LOWERED: dict[str, Callable[[Lowering], str]] = {
    "convolution": _convolution,
    "deconvolution": _deconvolution,
    "fully_connected": _fully_connected,
    "normalization": _normalization,
    "pooling": _pooling,
    "softmax": _softmax,
    "matrix_multiply": _matrix_multiply,
    **ELEMENTS,
}


def lower(verified: Verified) -> TensorBuilder:
    """Return the builder of a whole graph."""
    build = TensorBuilder()
    for node in verified.order:
        at = Lowering(build, node, verified)
        build.write(at.output, LOWERED[node.kernel](at))
    return build

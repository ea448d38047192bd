"""Nodes that work element by element, as ops of clnn."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from clnn.apis.openvx.enums import Activation
from clnn.apis.openvx.lowering import Lowering
from clnn.apis.openvx.objects import Lut
from clnn.arith.openvx import ACTIVATIONS, Format, Scale, activation_table, depth_table
from clnn.arith.openvx_device import VxClamp, VxProduct, VxSum, VxTable
from clnn.ops.elementwise.cast import Cast
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.elementwise.fixed_map import FixedMap
from clnn.ops.shared.functions import PostOp
from clnn.types import F32


def _name(func: Activation) -> str:
    return ACTIVATIONS[list(Activation).index(func)]


def float_steps(name: str, a: float, b: float) -> tuple[PostOp, ...]:
    """Return an activation of float32 as post-ops."""
    return {
        "logistic": (PostOp("sigmoid"),),
        "tanh": (PostOp("mul", (b,)), PostOp("tanh"), PostOp("mul", (a,))),
        "relu": (PostOp("relu"),),
        "brelu": (PostOp("relu"), PostOp("min", (a,))),
        "softrelu": (PostOp("softplus"),),
        "abs": (PostOp("abs"),),
        "square": (PostOp("square"),),
        "sqrt": (PostOp("sqrt"),),
        "linear": (PostOp("mul", (a,)), PostOp("add", (b,))),
    }[name]


def clamped(name: str, a: float, source: Format, result: Format) -> VxClamp | None:
    """Return an activation that only clamps, where positions are equal, or None."""
    if source != result:
        return None
    if name == "relu":
        return VxClamp(result, 0, result.high)
    if name == "abs":
        return VxClamp(result, 0, result.high, True)
    if name == "brelu":
        top = min(max(int(a * 2**result.fraction), result.low), result.high)
        return VxClamp(result, min(top, 0), top)
    return None


def _activation(at: Lowering) -> str:
    name, a, b = _name(at.value("func")), float(at.value("a")), float(at.value("b"))
    x = at.read("inputs")
    if at.is_float("inputs"):
        return at.b.add(Eltwise(float_steps(name, a, b)), x)
    source, result = at.format("inputs"), at.result
    clamp = clamped(name, a, source, result)
    if clamp is not None:
        return at.b.add(FixedMap(clamp), x)
    table = activation_table(name, a, b, source, result, at.conformance)
    return at.b.add(FixedMap(VxTable.of(source.dtype, result.dtype, source.low, table)), x)


def _sum(at: Lowering, sign: int) -> str:
    one, two = at.read("in1"), at.read("in2")
    if at.is_float("in1"):
        return at.b.add(Eltwise((PostOp("add" if sign > 0 else "sub", operand=1),)), one, two)
    return at.b.add(FixedMap(VxSum(at.result, at.wrap("policy"), sign)), one, two)


def _multiply(at: Lowering) -> str:
    one, two, scale = at.read("in1"), at.read("in2"), at.number("scale")
    if at.is_float("in1"):
        return at.b.add(Eltwise((PostOp("mul", operand=1), PostOp("mul", (scale,)))), one, two)
    shift = at.format("in1").fraction + at.format("in2").fraction - at.result.fraction
    bits = 0
    if at.conformance:
        bits = 53 if at.result.dtype.itemsize == 2 else 24
    rule = VxProduct(at.result, Scale.of(scale), shift, at.wrap(), at.even, bits)
    return at.b.add(FixedMap(rule), one, two)


def _table_lookup(at: Lowering) -> str:
    lut = at.value("lut")
    assert isinstance(lut, Lut)
    at.b.watch(lambda: lut.version)
    x, kind = at.read("in1"), at.result.dtype
    rule = VxTable.of(kind, kind, -lut.offset, lut.array)
    if rule.whole:
        return at.b.add(FixedMap(rule), x)
    if at.output.virtual:
        kept = at.b.const(np.zeros((1,) * len(at.b.shape(x)), kind.numpy))
    else:
        kept = at.b.initial(at.output)
    return at.b.add(FixedMap(rule), x, kept)


def _transpose(at: Lowering) -> str:
    x = at.read("in")
    perm = list(range(len(at.b.shape(x))))
    one, two = (len(perm) - 1 - at.value(name) for name in ("dim1", "dim2"))
    perm[one], perm[two] = perm[two], perm[one]
    return at.b.transpose(x, perm)


def _convert_depth(at: Lowering) -> str:
    norm, offset = at.number("norm"), at.number("offset")
    x, to_float = at.read("input"), at.is_float("output")
    if at.is_float("input"):
        post_ops: tuple[PostOp, ...] = (PostOp("sub", (offset,)), PostOp("div", (norm,)))
        if to_float:
            return at.b.add(Eltwise(post_ops), x)
        result = at.result
        post_ops = (*post_ops, PostOp("mul", (2.0**result.fraction,)))
        if not at.wrap("policy"):
            post_ops = (*post_ops, PostOp("clip", (float(result.low), float(result.high))))
        return at.b.add(Cast(result.dtype), at.b.add(Eltwise(post_ops), x))
    source = at.format("input")
    if to_float:
        real = source.every().astype(np.float32) / np.float32(2.0**source.fraction)
        with np.errstate(all="ignore"):
            table = (real - np.float32(offset)) / np.float32(norm)
        return at.b.add(FixedMap(VxTable.of(source.dtype, F32, source.low, table)), x)
    table = depth_table(source, at.result, norm, offset, at.wrap("policy"), at.conformance)
    return at.b.add(FixedMap(VxTable.of(source.dtype, at.result.dtype, source.low, table)), x)


ELEMENTS: dict[str, Callable[[Lowering], str]] = {
    "activation": _activation,
    "add": lambda at: _sum(at, 1),
    "subtract": lambda at: _sum(at, -1),
    "multiply": _multiply,
    "table_lookup": _table_lookup,
    "transpose": _transpose,
    "convert_depth": _convert_depth,
}

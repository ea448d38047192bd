"""Shifts of bits, and remainders whose sign is that of the divisor."""

from __future__ import annotations

import numpy as np

from clnn.ops.composed.values import Value
from clnn.ops.elementwise.logic import Logic
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, Unsupported, onnx_op
from clnn.types import I8, I16, I32, I64, U8, U16, U32, U64

_UNSIGNED = {I8: U8, I16: U16, I32: U32, I64: U64}


@onnx_op("BitShift")
def _bit_shift(node: OnnxNode) -> Source:
    direction = str(node.attrs["direction"])
    if direction not in ("LEFT", "RIGHT"):
        raise Unsupported(f"direction {direction!r} is not LEFT or RIGHT")
    shift, kind = Logic(f"shift_{direction.lower()}"), node.type(0).dtype
    if kind not in _UNSIGNED:
        return Emit(shift, [0, 1])
    x, places = Value(0, node.type(0)), Value(1, node.type(1)).cast(_UNSIGNED[kind])
    if direction == "LEFT":
        return x.cast(_UNSIGNED[kind]).apply(shift, places).cast(kind).source
    # Bits of 1 come in from the left of a negative number: its complement is shifted.
    is_negative = x.apply(Logic("less"), Value.const(np.zeros((), kind.numpy)))
    bits = is_negative.apply(Logic("where"), x.apply(Logic("complement")), x)
    moved = bits.cast(_UNSIGNED[kind]).apply(shift, places).cast(kind)
    return is_negative.apply(Logic("where"), moved.apply(Logic("complement")), moved).source


_REAL_MOD = 28  # the operator set that says what a remainder with the sign of the divisor is


@onnx_op("Mod")
def _mod(node: OnnxNode) -> Source:
    real, truncates = node.type(0).dtype.is_float, bool(node.attr("fmod", 0))
    if real and not truncates:
        if node.opset < _REAL_MOD:
            raise Unsupported(f"Mod of real numbers needs fmod = 1 before operator set {_REAL_MOD}")
        return _floored(Value(0, node.type(0)), Value(1, node.type(1)))
    return Emit(Logic("fmod" if real else "rest" if truncates else "mod"), [0, 1])


def _floored(a: Value, b: Value) -> Source:
    """Return a - floor(a / b) * b of real numbers; a rest of 0 has the sign of b, too."""
    rest, below = a.apply(Logic("fmod"), b), b.apply(Logic("less"), _number(0.0, b))
    differs = rest.apply(Logic("less"), _number(0.0, a)).apply(Logic("xor"), below)
    moved = differs.apply(Logic("where"), rest.binary("add", b), rest)
    nothing = below.apply(Logic("where"), _number(-0.0, a), _number(0.0, a))
    return rest.apply(Logic("equal"), _number(0.0, a)).apply(Logic("where"), nothing, moved).source


def _number(number: float, like: Value) -> Value:
    return Value.const(np.array(number, like.type.dtype.numpy))

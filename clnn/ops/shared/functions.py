"""Elementwise functions: numpy meaning of each step that kernels can apply to a value.

The OpenCL text of the same names stands in kernels_cl/_common/epilogue.cl.mako. NaN propagates
through every function but thresholded_relu, as ONNX wants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from clnn.arith.quantised import fused
from clnn.records import dataclass
from clnn.types import Array

MOST_STEPS = 24  # of one kernel: each may bring an operand, and devices take few arguments


@dataclass(frozen=True)
class Function:
    """An elementwise function: `binary` ones take a second value (an operand or params[0]).

    of_bytes: operands are bytes of any signs, parameters float32 numbers that are data: kernels read them.
    looks_up: the operand is a table of 256 results, of all bytes in the order of their bits.
    """

    numpy: Callable[..., Any]
    binary: bool = False
    floats_only: bool = False
    of_bytes: bool = False
    looks_up: bool = False


@dataclass(frozen=True)
class PostOp:
    """One elementwise function applied to the running value.

    A binary function takes its second value from node input `operand`, or from params[0] when
    `operand` is None. `swapped`: the running value is the second one.
    """

    fn: str
    params: tuple[float, ...] = ()
    operand: int | None = None
    swapped: bool = False


def _erf(x: Array) -> Array:
    from math import erf

    return np.asarray(np.vectorize(erf, otypes=[np.float64])(x))


def _int_div(x: Array, y: Array) -> Array:
    """Return the quotient, of integers towards zero; by 0 it is what is divided."""
    if np.result_type(x, y).kind == "f":
        return np.asarray(x / y)
    by = np.where(y == 0, 1, y)
    quotient = np.floor_divide(x, by)
    short = (quotient * by != x) & ((x < 0) != (by < 0))
    return np.asarray(quotient + short.astype(x.dtype))


def _pow(x: Array, y: Array) -> Array:
    """Return the power; integers to a negative one are 1 or -1, or 0."""
    if np.result_type(x, y).kind == "f":
        return np.asarray(np.power(x, y))
    units = np.where(x == 1, 1, np.where(x == -1, 1 - 2 * (y % 2), 0))
    return np.where(y < 0, units, np.power(x, np.where(y < 0, 0, y)))


def _byte_sum(a: Array, b: Array, *params: np.float32) -> Array:
    """Return quantised_maps.QuantisedSum of its ratios, its offset, and the ends of the type."""
    ratio_a, ratio_b, offset, low, high = params
    steps = fused(a, ratio_a, fused(b, ratio_b, offset))
    return np.rint(np.where(steps > low, np.minimum(steps, high), low))


def _shifted_byte_sum(a: Array, b: Array, *params: np.float32) -> Array:
    """Return quantised_maps.QuantisedSum of int8 as uint8, of the same parameters."""
    ratio_a, ratio_b, offset, low, high = params
    shift = np.float32(128)
    a, b = (v.astype(np.float32) + shift for v in (a, b))
    steps = fused(a, ratio_a, fused(b, ratio_b, offset))
    low, high = low + shift, high + shift
    return np.rint(np.where(steps > low, np.minimum(steps, high), low)) - shift


def _byte_table(x: Array, table: Array) -> Array:
    """Return quantised_maps.ByteTable of these entries."""
    return np.asarray(table[x.view(np.uint8)])


def _byte_line(x: Array, *params: np.float32) -> Array:
    """Return quantised_maps.ByteLine of its ratio, its offset, its zero point, and the ends of the type."""
    ratio, offset, zero, low, high = params
    steps = fused(x.astype(np.float32), ratio, offset)
    return np.rint(np.where(steps > low - zero, np.minimum(steps, high - zero), low - zero)) + zero


def _written_sum(a: Array, b: Array, *params: np.float32) -> Array:
    """Return quantised_maps.WrittenBinary of a sum: zero and step of a, b and the result, and its limits."""
    zero_a, step_a, zero_b, step_b, zero, step, low, high = params
    real = [
        (v.astype(np.float32) - z) * s for v, z, s in ((a, zero_a, step_a), (b, zero_b, step_b))
    ]
    steps = (real[0] + real[1]) / step
    return np.rint(np.where(steps > low - zero, np.minimum(steps, high - zero), low - zero)) + zero


def _polynomial(factors: Sequence[float], x: Array) -> Array:
    """Return a polynomial in the type of x, a multiply-add rounded once."""
    wide = x.astype(np.float64)
    value = np.full(x.shape, factors[0], x.dtype)
    for factor in factors[1:]:
        value = (value * wide + float(x.dtype.type(factor))).astype(x.dtype)
    return value


@dataclass(frozen=True)
class Rational:
    """x times a polynomial of x squared, over another one, plus a shift; `ends` outside of -limit to limit.

    Coefficients from the highest power down.
    """

    limit: float
    ends: tuple[float, float]
    above: tuple[float, ...]
    below: tuple[float, ...]
    shift: float = 0.0

    def __call__(self, x: Array) -> Array:
        """Return the function with numpy; of float32 with each multiply-add rounded once, as kernels do."""
        held = np.clip(x, -self.limit, self.limit)
        over, under = (_polynomial(part, held * held) for part in (self.above, self.below))
        inside = np.clip(held * over / under + self.shift, *self.ends)
        inside = np.where(held <= -self.limit, self.ends[0], inside)
        return np.asarray(np.where(held >= self.limit, self.ends[1], inside).astype(x.dtype))


# The minimax approximations of ONNX Runtime (those of Eigen), which dynamic quantisation makes visible.
RATIONALS = {
    "sigmoid": Rational(
        18.0,
        (0.0, 1.0),
        (
            4.37031012579801e-11,
            1.15627324459942e-07,
            6.08574864600143e-05,
            8.51377133304701e-03,
            2.48287947061529e-01,
        ),
        (
            6.10247389755681e-13,
            5.76102136993427e-09,
            6.29106785017040e-06,
            1.70198817374094e-03,
            1.16817656904453e-01,
            9.93151921023180e-01,
        ),
        0.5,
    ),
    "tanh": Rational(
        9.0,
        (-1.0, 1.0),
        (
            -2.76076847742355e-16,
            2.00018790482477e-13,
            -8.60467152213735e-11,
            5.12229709037114e-08,
            1.48572235717979e-05,
            6.37261928875436e-04,
            4.89352455891786e-03,
        ),
        (
            1.19825839466702e-06,
            1.18534705686654e-04,
            2.26843463243900e-03,
            4.89352518554385e-03,
        ),
    ),
}


def rational(steps: tuple[PostOp, ...]) -> tuple[PostOp, ...]:
    """Return functions as ONNX Runtime rounds them, where they are rational there."""
    return tuple(replace(s, fn=f"rational_{s.fn}") if s.fn in RATIONALS else s for s in steps)


FUNCTIONS: dict[str, Function] = {
    "relu": Function(lambda x: np.where(x < 0, 0, x)),
    "leaky_relu": Function(lambda x, a: np.where(x < 0, a * x, x), floats_only=True),
    "elu": Function(
        lambda x, a: np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x), floats_only=True
    ),
    "celu": Function(
        lambda x, a: np.where(x < 0, a * np.expm1(np.minimum(x, 0) / a), x), floats_only=True
    ),
    "selu": Function(
        lambda x, a, g: g * np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x), floats_only=True
    ),
    "thresholded_relu": Function(lambda x, a: np.where(x > a, x, 0), floats_only=True),
    "sigmoid": Function(lambda x: 1 / (1 + np.exp(-x)), floats_only=True),
    "rational_sigmoid": Function(RATIONALS["sigmoid"], floats_only=True),
    "rational_swish": Function(lambda x: x * RATIONALS["sigmoid"](x), floats_only=True),
    "rational_tanh": Function(RATIONALS["tanh"], floats_only=True),
    "hard_sigmoid": Function(lambda x, a, b: np.clip(a * x + b, 0, 1), floats_only=True),
    "hard_swish": Function(lambda x: x * np.clip(x / 6 + 0.5, 0, 1), floats_only=True),
    "swish": Function(lambda x, a: x / (1 + np.exp(-a * x)), floats_only=True),
    "shrink": Function(
        lambda x, t, b: np.where(x < -t, x + b, np.where(x > t, x - b, 0)), floats_only=True
    ),
    "softplus": Function(lambda x: np.logaddexp(x, 0), floats_only=True),
    "softsign": Function(lambda x: x / (1 + np.abs(x)), floats_only=True),
    "gelu": Function(lambda x: 0.5 * x * (1 + _erf(x / np.sqrt(2))), floats_only=True),
    "gelu_tanh": Function(
        lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
        floats_only=True,
    ),
    "mish": Function(lambda x: x * np.tanh(np.logaddexp(x, 0)), floats_only=True),
    "tanh": Function(np.tanh, floats_only=True),
    "erf": Function(_erf, floats_only=True),
    "exp": Function(np.exp, floats_only=True),
    "log": Function(np.log, floats_only=True),
    "sqrt": Function(np.sqrt, floats_only=True),
    "square": Function(np.square),
    "reciprocal": Function(lambda x: 1 / x, floats_only=True),
    "floor": Function(np.floor, floats_only=True),
    "ceil": Function(np.ceil, floats_only=True),
    "round": Function(np.rint, floats_only=True),
    "sin": Function(np.sin, floats_only=True),
    "cos": Function(np.cos, floats_only=True),
    "tan": Function(np.tan, floats_only=True),
    "asin": Function(np.arcsin, floats_only=True),
    "acos": Function(np.arccos, floats_only=True),
    "atan": Function(np.arctan, floats_only=True),
    "sinh": Function(np.sinh, floats_only=True),
    "cosh": Function(np.cosh, floats_only=True),
    "asinh": Function(np.arcsinh, floats_only=True),
    "acosh": Function(np.arccosh, floats_only=True),
    "atanh": Function(np.arctanh, floats_only=True),
    "abs": Function(np.abs),
    "neg": Function(np.negative),
    "sign": Function(np.sign),
    "clip": Function(lambda x, lo, hi: np.minimum(np.maximum(x, lo), hi)),
    "at_least": Function(lambda x, lo: np.maximum(x, lo)),
    "at_most": Function(lambda x, hi: np.minimum(x, hi)),
    "add": Function(np.add, binary=True),
    "sub": Function(np.subtract, binary=True),
    "mul": Function(np.multiply, binary=True),
    "div": Function(_int_div, binary=True),
    "pow": Function(_pow, binary=True),
    "min": Function(np.minimum, binary=True),
    "max": Function(np.maximum, binary=True),
    "prelu": Function(lambda x, s: np.where(x < 0, s * x, x), binary=True),
    # The operand where it is below infinity, whatever the value is there.
    "replace": Function(lambda x, s: np.where(s < np.inf, s, x), binary=True, floats_only=True),
    "byte_sum": Function(_byte_sum, binary=True, of_bytes=True),
    "shifted_byte_sum": Function(_shifted_byte_sum, binary=True, of_bytes=True),
    "byte_line": Function(_byte_line, of_bytes=True),
    "byte_table": Function(_byte_table, binary=True, of_bytes=True, looks_up=True),
    "written_sum": Function(_written_sum, binary=True, of_bytes=True),
}


def apply_post_ops(
    value: Array, post_ops: Sequence[PostOp], inputs: Sequence[Array | None]
) -> Array:
    """Return `value` after `post_ops` with numpy; `inputs` are the node's inputs (for operands)."""
    kind = value.dtype
    with np.errstate(all="ignore"):
        for post_op in post_ops:
            function = FUNCTIONS[post_op.fn]
            scalar = np.float32 if function.of_bytes else kind.type
            params = [scalar(p) for p in post_op.params]
            args: list[Any] = [value]
            if function.binary:
                operand = post_op.operand
                args.append(params.pop(0) if operand is None else inputs[operand])
            if post_op.swapped:
                args.reverse()
            value = np.asarray(function.numpy(*args, *params)).astype(kind)
    return value

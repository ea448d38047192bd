"""Comparisons, truth values, bits, remainders and choices: elementwise, with broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from clnn.errors import DTypeError, ShapeError
from clnn.ops.elementwise.mapped_launch import map_variant
from clnn.ops.launch import Variant
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, onnx_op
from clnn.ops.problem import Problem
from clnn.ops.spec import OpSpec
from clnn.records import dataclass
from clnn.types import BOOL, Array, TensorType, broadcast_shapes


def _shift(move: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    def shift(a: Array, b: Array) -> Array:
        bits = 8 * a.dtype.itemsize
        return np.where(b >= bits, 0, move(a, b % bits)).astype(a.dtype)

    return shift


def _power(a: Array, b: Array) -> Array:
    """Return integers to the power of real numbers, towards zero; exact for whole exponents."""
    with np.errstate(all="ignore"):
        return np.trunc(np.power(a.astype(np.float64), b)).astype(a.dtype)


def _remainder(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    def remainder(a: Array, b: Array) -> Array:
        return np.where(b == 0, 0, function(a, np.where(b == 0, 1, b))).astype(a.dtype)

    return remainder


@dataclass(frozen=True)
class Rule:
    """A function: its meaning in numpy, the kinds of its operands ("b", "i", "f"), its result.

    truth: the result is bool, else of the last operand's type (mixed: of the first's, the others'
    types may differ).
    """

    numpy: Callable[..., Array]
    kinds: str = "biuf"
    truth: bool = False
    mixed: bool = False
    vectors: bool = True


RULES: dict[str, Rule] = {
    "equal": Rule(np.equal, truth=True),
    "greater": Rule(np.greater, "iuf", truth=True),
    "greater_or_equal": Rule(np.greater_equal, "iuf", truth=True),
    "less": Rule(np.less, "iuf", truth=True),
    "less_or_equal": Rule(np.less_equal, "iuf", truth=True),
    "is_nan": Rule(np.isnan, "f", truth=True),
    "is_inf": Rule(np.isinf, "f", truth=True),
    "is_inf_positive": Rule(np.isposinf, "f", truth=True),
    "is_inf_negative": Rule(np.isneginf, "f", truth=True),
    "and": Rule(np.bitwise_and, "biu"),
    "or": Rule(np.bitwise_or, "biu"),
    "xor": Rule(np.bitwise_xor, "biu"),
    "not": Rule(np.logical_not, "b"),
    "complement": Rule(np.bitwise_not, "iu"),
    "shift_left": Rule(_shift(np.left_shift), "u"),
    "shift_right": Rule(_shift(np.right_shift), "u"),
    "mod": Rule(_remainder(np.mod), "iu"),
    "rest": Rule(_remainder(np.fmod), "iu"),
    "fmod": Rule(np.fmod, "f"),
    "where": Rule(np.where),
    "pow_real": Rule(_power, "iu", mixed=True, vectors=False),
}


@dataclass(frozen=True)
class Logic(OpSpec):
    """Function `fn` of RULES applied to broadcast operands; "where" takes a condition first."""

    fn: str

    kind = "logic"
    layout_rule = "same"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the broadcast type. Raises ShapeError or DTypeError where operands do not fit."""
        operands = [t for t in inputs if t is not None]
        if not operands:
            raise ShapeError(f"{self.fn} needs operands.")
        rule = RULES[self.fn]
        same = operands[1:] if self.fn == "where" else operands[:1] if rule.mixed else operands
        names = ", ".join(t.dtype.name for t in operands)
        if self.fn == "where" and operands[0].dtype != BOOL:
            raise DTypeError(f"where of {names}: the condition must be bool.")
        if any(t.dtype != same[0].dtype for t in same):
            raise DTypeError(f"{self.fn} of {names}: operands must be of one type.")
        if same[0].dtype.numpy.kind not in rule.kinds:
            raise DTypeError(f"{self.fn} of {names} is not defined.")
        shape = broadcast_shapes(*(t.shape for t in operands))
        return (TensorType(shape, BOOL if rule.truth else same[0].dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return the function of numpy."""
        with np.errstate(all="ignore"):
            return (np.asarray(RULES[self.fn].numpy(*inputs)),)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return the one kernel, for any layouts."""
        return [map_variant(problem, "logic", self.fn, RULES[self.fn].vectors)]


_BINARY = {
    "Equal": "equal",
    "Greater": "greater",
    "GreaterOrEqual": "greater_or_equal",
    "Less": "less",
    "LessOrEqual": "less_or_equal",
    "And": "and",
    "Or": "or",
    "Xor": "xor",
    "BitwiseAnd": "and",
    "BitwiseOr": "or",
    "BitwiseXor": "xor",
}
_UNARY = {"Not": "not", "BitwiseNot": "complement", "IsNaN": "is_nan"}


@onnx_op(*_BINARY)
def _binary(node: OnnxNode) -> Source:
    return Emit(Logic(_BINARY[node.op_type]), [0, 1])


@onnx_op(*_UNARY)
def _unary(node: OnnxNode) -> Source:
    return Emit(Logic(_UNARY[node.op_type]), [0])


@onnx_op("IsInf")
def _is_inf(node: OnnxNode) -> Source:
    wanted = bool(node.attr("detect_negative", 1)), bool(node.attr("detect_positive", 1))
    if not any(wanted):
        return Emit(Logic("xor"), [Emit(Logic("is_inf"), [0])] * 2)
    fn = {(True, True): "is_inf", (True, False): "is_inf_negative"}.get(wanted, "is_inf_positive")
    return Emit(Logic(fn), [0])


@onnx_op("Where")
def _where(node: OnnxNode) -> Source:
    return Emit(Logic("where"), [0, 1, 2])

"""ONNX operators that become post-ops: activations, arithmetic, Clip, Min and others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from clnn.errors import ShapeError
from clnn.ops.elementwise.cast import cast_to
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.elementwise.logic import Logic
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, Unsupported, onnx_op
from clnn.ops.shared.functions import PostOp
from clnn.types import Array


def unary(fn: str, *params: float) -> Emit:
    """Return a node that applies one unary function to ONNX input 0."""
    return Emit(Eltwise((PostOp(fn, tuple(float(p) for p in params)),)), [0])


_PLAIN = {
    "Relu": "relu",
    "Sigmoid": "sigmoid",
    "HardSwish": "hard_swish",
    "Softplus": "softplus",
    "Softsign": "softsign",
    "Mish": "mish",
    "Tanh": "tanh",
    "Erf": "erf",
    "Exp": "exp",
    "Log": "log",
    "Sqrt": "sqrt",
    "Reciprocal": "reciprocal",
    "Floor": "floor",
    "Ceil": "ceil",
    "Round": "round",
    "Sin": "sin",
    "Cos": "cos",
    "Abs": "abs",
    "Neg": "neg",
    "Sign": "sign",
    "Tan": "tan",
    "Asin": "asin",
    "Acos": "acos",
    "Atan": "atan",
    "Sinh": "sinh",
    "Cosh": "cosh",
    "Asinh": "asinh",
    "Acosh": "acosh",
    "Atanh": "atanh",
}


@onnx_op(*_PLAIN)
def _plain(node: OnnxNode) -> Source:
    return unary(_PLAIN[node.op_type])


_WITH_PARAMS: dict[str, tuple[str, tuple[tuple[str, float], ...]]] = {
    "LeakyRelu": ("leaky_relu", (("alpha", 0.01),)),
    "Elu": ("elu", (("alpha", 1.0),)),
    "Celu": ("celu", (("alpha", 1.0),)),
    "Selu": ("selu", (("alpha", 1.67326319217681884765625), ("gamma", 1.05070102214813232421875))),
    "ThresholdedRelu": ("thresholded_relu", (("alpha", 1.0),)),
    "HardSigmoid": ("hard_sigmoid", (("alpha", 0.2), ("beta", 0.5))),
    "Swish": ("swish", (("alpha", 1.0),)),
    "Shrink": ("shrink", (("lambd", 0.5), ("bias", 0.0))),
}


@onnx_op(*_WITH_PARAMS)
def _with_params(node: OnnxNode) -> Source:
    fn, attrs = _WITH_PARAMS[node.op_type]
    return unary(fn, *(node.attr(name, default) for name, default in attrs))


@onnx_op("Gelu")
def _gelu(node: OnnxNode) -> Source:
    return unary("gelu_tanh" if node.attr("approximate", "none") == "tanh" else "gelu")


@onnx_op("Clip")
def _clip(node: OnnxNode) -> Source:
    low, high = _limit(node, 1, "min"), _limit(node, 2, "max")
    if isinstance(low, int) or isinstance(high, int):  # indices of inputs that are not constant
        limits = [(fn, at) for at, fn in ((1, "max"), (2, "min")) if node.has(at)]
        post_ops = tuple(PostOp(fn, operand=place) for place, (fn, _) in enumerate(limits, 1))
        return Emit(Eltwise(post_ops), [0, *(at for _, at in limits)])
    params = tuple(v.item() for v in (low, high) if v is not None)
    if not params:
        return 0
    fn = "clip" if len(params) == 2 else "at_least" if low is not None else "at_most"
    return Emit(Eltwise((PostOp(fn, params),)), [0])


def _limit(node: OnnxNode, index: int, name: str) -> Array | int | None:
    """Return a limit of Clip: a constant, the index of the input that holds it, or None."""
    if node.opset < 11:
        value = node.attr(name)
        return None if value is None else np.asarray(value, np.float32)
    if not node.has(index):
        return None
    if node.type(index).size != 1:
        raise ShapeError(f"Clip: {name} has shape {node.type(index).shape}, must be a scalar.")
    return node.consts.get(index, index)


def binary(fn: str) -> Callable[[OnnxNode], Source]:
    """Return an importer for a function of two broadcast inputs."""

    def build(node: OnnxNode) -> Source:
        return Emit(Eltwise((PostOp(fn, operand=1),)), [0, 1])

    return build


for _name, _fn in {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div"}.items():
    onnx_op(_name)(binary(_fn))


@onnx_op("Pow")
def _pow(node: OnnxNode) -> Source:
    base, exponent = node.type(0).dtype, node.type(1).dtype
    known = node.consts.get(1)
    if known is not None and known.size == 1 and known.item() == 2 and node.type(1).rank == 0:
        return unary("square")
    if not base.is_float and exponent.is_float:
        return Emit(Logic("pow_real"), [0, 1])
    return Emit(Eltwise((PostOp("pow", operand=1),)), [0, cast_to(base, node.type(1), 1)])


@onnx_op("PRelu")
def _prelu(node: OnnxNode) -> Source:
    return Emit(Eltwise((PostOp("prelu", operand=1),)), [0, 1])


@onnx_op("Min", "Max", "Sum")
def _variadic(node: OnnxNode) -> Source:
    return _folded({"Min": "min", "Max": "max", "Sum": "add"}[node.op_type], len(node.inputs))


@onnx_op("Mean")
def _mean(node: OnnxNode) -> Source:
    count = len(node.inputs)
    return _folded("add", count, (PostOp("div", (float(count),)),))


def _folded(fn: str, count: int, last: tuple[PostOp, ...] = ()) -> Source:
    """Return `count` inputs joined by `fn` from left to right, then `last`; a single one as it is."""
    if count == 1:
        return 0
    steps = tuple(PostOp(fn, operand=k) for k in range(1, count))
    return Emit(Eltwise(steps + last), list(range(count)))


@onnx_op("Identity")
def _identity(node: OnnxNode) -> Source:
    return 0


@onnx_op("Dropout")
def _dropout(node: OnnxNode) -> Source | list[Source]:
    if node.has(2) and bool(node.const(2, "training mode").item()):
        raise Unsupported("Dropout in training mode")
    kind = bool if node.opset >= 10 else node.type(0).dtype.numpy
    return [0, np.broadcast_to(np.ones((), kind), node.type(0).shape)] if node.n_outputs > 1 else 0

"""Elementwise chains: one primary input, steps applied in a register, operands broadcast."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from clnn.errors import DTypeError, ShapeError
from clnn.layout import TensorLayout
from clnn.ops._base import (
    Array,
    In,
    Launch,
    OpSpec,
    Out,
    Problem,
    Target,
    Variant,
    grid,
    vector_width,
)
from clnn.ops._functions import FUNCTIONS, Step, apply_steps
from clnn.ops._loops import Loops, collapse, even_chunk
from clnn.ops._registry import Emit, OnnxNode, Source, Unsupported, onnx_op
from clnn.types import TensorType, broadcast_shapes

RESULT = Out(0)
CHUNK = 2048  # elements that one CPU work-item walks
SHORT = 16  # an innermost loop below this gives way to a longer one, if it has no vectors


@dataclass(frozen=True)
class Eltwise(OpSpec):
    """Steps applied to input 0, which is broadcast with the operands to the output's shape."""

    steps: tuple[Step, ...] = ()

    kind = "eltwise"
    layout_rule = "same"
    fuses_steps = True

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the broadcast type. Raises DTypeError where operands differ in type."""
        given = [t for t in inputs if t is not None]
        if any(t.dtype != given[0].dtype for t in given):
            names = ", ".join(t.dtype.name for t in given)
            raise DTypeError(f"elementwise operands have types {names}: they must be equal.")
        for step in self.steps:
            if FUNCTIONS[step.fn].floats_only and not given[0].dtype.is_float:
                raise DTypeError(f"{step.fn} of {given[0].dtype.name}: it needs a float type.")
        return (TensorType(broadcast_shapes(*(t.shape for t in given)), given[0].dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return the chain's result with numpy."""
        given = [x for x in inputs if x is not None]
        shape = np.broadcast_shapes(*(x.shape for x in given))
        first = np.broadcast_to(given[0], shape)
        return (np.broadcast_to(apply_steps(first, self.steps, inputs), shape),)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return the one kernel, which walks any layouts."""
        return [walk("eltwise", problem, self.steps)]

    def flops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        """One operation per step and element."""
        return len(self.steps) * outputs[0].size


def walk(name: str, problem: Problem, steps: Sequence[Step]) -> Variant:
    """Return the variant that applies `steps` to input 0 under the problem's layouts."""
    used = sorted({0, *(s.operand for s in steps if s.operand is not None)})
    out = problem.outputs[0]
    if not out.type.size:
        return Variant(name, ())
    layouts = [problem.input(k).layout.broadcast(out.type.shape) for k in used]
    named = move_type(out.type.dtype) if not steps else out.type.dtype.cl
    require(problem.target, name, named)
    ctypes = (named,) * (len(used) + 1)
    operands = {k: place for place, k in enumerate(used)}
    launch = walk_launch(name, [*layouts, out.layout], ctypes, steps, operands, problem.target,
                         tuple(In(k) for k in used))  # fmt: skip
    return Variant(name, (launch,))


def walk_launch(
    name: str,
    layouts: Sequence[TensorLayout],
    ctypes: tuple[str, ...],
    steps: Sequence[Step],
    operands: dict[int, int],
    target: Target,
    sources: tuple[In | Out, ...],
    result: Out = RESULT,
) -> Launch:
    """Return one launch of the eltwise template over layouts of equal shape, the last written."""
    loops = collapse(layouts)
    vec = _width(loops, target)
    if vec == 1 and loops.inner < SHORT and len(loops.extents) > 1:
        longest = max(range(len(loops.extents)), key=lambda k: (loops.extents[k], k))
        loops = loops.with_inner(longest)
        vec = _width(loops, target)
    loops = loops.padded(2)
    chunk = even_chunk(loops.inner, CHUNK, vec) if target.is_cpu else vec
    middle = loops.extents[-2]
    rows = even_chunk(middle, max(1, CHUNK // chunk)) if target.is_cpu else 1
    global_size, local = grid(
        target, loops.inner // chunk * (middle // rows), math.prod(loops.extents[:-2])
    )
    params = {
        "name": name, "ctypes": ctypes, "outer": loops.extents[:-2] or (1,),
        "pitches": tuple(p[:-2] or (0,) for p in loops.pitches), "inner": loops.inner,
        "chunk": chunk, "inner_pitches": loops.inner_pitches, "middle": middle, "rows": rows,
        "middle_pitches": tuple(p[-2] for p in loops.pitches), "steps": tuple(steps),
        "operands": operands, "wg": local, "vec": vec,
    }  # fmt: skip
    return Launch("eltwise.cl.mako", params, (*sources, result), global_size, local)


def _width(loops: Loops, target: Target) -> int:
    """Return the vector width along the innermost loop: 1 where the result has gaps there."""
    if loops.inner_pitches[-1] != 1:
        return 1
    return vector_width(loops.inner, target.vector, [(0, p) for p in loops.inner_pitches])


def unary(fn: str, *params: float) -> Emit:
    """Return a node that applies one unary function to ONNX input 0."""
    return Emit(Eltwise((Step(fn, tuple(float(p) for p in params)),)), [0])


_PLAIN = {
    "Relu": "relu", "Sigmoid": "sigmoid", "HardSwish": "hard_swish", "Softplus": "softplus",
    "Softsign": "softsign", "Mish": "mish", "Tanh": "tanh", "Erf": "erf", "Exp": "exp",
    "Log": "log", "Sqrt": "sqrt", "Reciprocal": "reciprocal", "Floor": "floor", "Ceil": "ceil",
    "Round": "round", "Sin": "sin", "Cos": "cos", "Abs": "abs", "Neg": "neg", "Sign": "sign",
    "Tan": "tan", "Asin": "asin", "Acos": "acos", "Atan": "atan", "Sinh": "sinh", "Cosh": "cosh",
    "Asinh": "asinh", "Acosh": "acosh", "Atanh": "atanh",
}  # fmt: skip


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
        given = [(fn, at) for at, fn in ((1, "max"), (2, "min")) if node.has(at)]
        steps = tuple(Step(fn, operand=place) for place, (fn, _) in enumerate(given, 1))
        return Emit(Eltwise(steps), [0, *(at for _, at in given)])
    params = tuple(v.item() for v in (low, high) if v is not None)
    if not params:
        return 0
    fn = "clip" if len(params) == 2 else "at_least" if low is not None else "at_most"
    return Emit(Eltwise((Step(fn, params),)), [0])


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
        return Emit(Eltwise((Step(fn, operand=1),)), [0, 1])

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
    return Emit(Eltwise((Step("pow", operand=1),)), [0, cast_to(base, node.type(1), 1)])


@onnx_op("PRelu")
def _prelu(node: OnnxNode) -> Source:
    return Emit(Eltwise((Step("prelu", operand=1),)), [0, 1])


@onnx_op("Min", "Max", "Sum")
def _variadic(node: OnnxNode) -> Source:
    fn = {"Min": "min", "Max": "max", "Sum": "add"}[node.op_type]
    count = len(node.inputs)
    if count == 1:
        return 0
    return Emit(Eltwise(tuple(Step(fn, operand=k) for k in range(1, count))), list(range(count)))


@onnx_op("Mean")
def _mean(node: OnnxNode) -> Source:
    count = len(node.inputs)
    if count == 1:
        return 0
    steps = [Step("add", operand=k) for k in range(1, count)] + [Step("div", (float(count),))]
    return Emit(Eltwise(tuple(steps)), list(range(count)))


@onnx_op("Identity")
def _identity(node: OnnxNode) -> Source:
    return 0


@onnx_op("Dropout")
def _dropout(node: OnnxNode) -> Source | list[Source]:
    if node.has(2) and bool(node.const(2, "training mode").item()):
        raise Unsupported("Dropout in training mode")
    kind = bool if node.opset >= 10 else node.type(0).dtype.numpy
    return [0, np.ones(node.type(0).shape, kind)] if node.n_outputs > 1 else 0

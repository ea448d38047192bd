"""Elementwise chains: one primary input, steps applied in a register, operands broadcast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from clnn.errors import DTypeError
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
from clnn.ops._registry import Emit, OnnxNode, Source, onnx_op
from clnn.types import TensorType, broadcast_shapes

CHUNK = 2048  # elements that one CPU work-item walks


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
    layouts = [problem.input(k).layout.broadcast(out.type.shape) for k in used]
    ctypes = (*(problem.input(k).type.dtype.cl for k in used), out.type.dtype.cl)
    operands = {k: place for place, k in enumerate(used)}
    launch = walk_launch(name, [*layouts, out.layout], ctypes, steps, operands, problem.target,
                         tuple(In(k) for k in used))  # fmt: skip
    return Variant(name, (launch,) if out.type.size else ())


def walk_launch(
    name: str,
    layouts: Sequence[TensorLayout],
    ctypes: tuple[str, ...],
    steps: Sequence[Step],
    operands: dict[int, int],
    target: Target,
    sources: tuple[In | Out, ...],
    result: Out | In = Out(0),
) -> Launch:
    """Return one launch of the eltwise template over layouts of equal shape, the last written."""
    loops = collapse(layouts)
    vec = vector_width(loops.inner, target.vector, [(0, p) for p in loops.inner_pitches])
    if loops.inner_pitches[-1] != 1:
        vec = 1
    chunk = even_chunk(loops.inner, CHUNK, vec) if target.is_cpu else vec
    outer = Loops(loops.extents[:-1], tuple(p[:-1] for p in loops.pitches))
    rows = int(np.prod(outer.extents, dtype=np.int64)) if outer.extents else 1
    global_size, local = grid(target, loops.inner // chunk, rows)
    params = {
        "name": name, "ctypes": ctypes, "outer": outer.extents or (1,),
        "pitches": tuple(p or (0,) for p in outer.pitches), "inner": loops.inner, "chunk": chunk,
        "inner_pitches": loops.inner_pitches, "steps": tuple(steps), "operands": operands,
        "wg": local, "vec": vec,
    }  # fmt: skip
    return Launch("eltwise.cl.mako", params, (*sources, result), global_size, local)


def unary(fn: str, *params: float) -> Emit:
    """Return a node that applies one unary function to ONNX input 0."""
    return Emit(Eltwise((Step(fn, tuple(float(p) for p in params)),)), [0])


_PLAIN = {
    "Relu": "relu", "Sigmoid": "sigmoid", "HardSwish": "hard_swish", "Softplus": "softplus",
    "Softsign": "softsign", "Mish": "mish", "Tanh": "tanh", "Erf": "erf", "Exp": "exp",
    "Log": "log", "Sqrt": "sqrt", "Reciprocal": "reciprocal", "Floor": "floor", "Ceil": "ceil",
    "Round": "round", "Sin": "sin", "Cos": "cos", "Abs": "abs", "Neg": "neg", "Sign": "sign",
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
    if node.opset < 11:
        low, high = node.attr("min"), node.attr("max")
    else:
        low = node.const(1, "minimum").item() if node.has(1) else None
        high = node.const(2, "maximum").item() if node.has(2) else None
    if low is not None and high is not None:
        return unary("clip", low, high)
    if low is not None:
        return unary("at_least", low)
    return unary("at_most", high) if high is not None else 0


def binary(fn: str) -> Callable[[OnnxNode], Source]:
    """Return an importer for a function of two broadcast inputs."""

    def build(node: OnnxNode) -> Source:
        return Emit(Eltwise((Step(fn, operand=1),)), [0, 1])

    return build


for _name, _fn in {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Pow": "pow"}.items():
    onnx_op(_name)(binary(_fn))


@onnx_op("PRelu")
def _prelu(node: OnnxNode) -> Source:
    return Emit(Eltwise((Step("prelu", operand=1),)), [0, 1])


@onnx_op("Min", "Max", "Sum")
def _variadic(node: OnnxNode) -> Source:
    fn = {"Min": "min", "Max": "max", "Sum": "add"}[node.op_type]
    count = len(node.inputs)
    return Emit(Eltwise(tuple(Step(fn, operand=k) for k in range(1, count))), list(range(count)))


@onnx_op("Mean")
def _mean(node: OnnxNode) -> Source:
    count = len(node.inputs)
    steps = [Step("add", operand=k) for k in range(1, count)] + [Step("mul", (1 / count,))]
    return Emit(Eltwise(tuple(steps)), list(range(count)))


@onnx_op("Identity", "Dropout")
def _identity(node: OnnxNode) -> Source | list[Source]:
    if node.n_outputs == 1:
        return 0
    return [0, np.ones(node.type(0).shape, dtype=bool)]

"""Reductions over any axes: sum, mean, extremes, products and norms, with fused post-ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from clnn.errors import DTypeError, ShapeError
from clnn.layout import TensorLayout
from clnn.ops.launch import Arg, In, Launch, Out, Scratch, Variant
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, Unsupported, onnx_op
from clnn.ops.problem import Problem
from clnn.ops.rows.rows import Rows, make_rows, without
from clnn.ops.shared.epilogue import operand_args, operand_layouts
from clnn.ops.shared.functions import PostOp, apply_post_ops
from clnn.ops.spec import OpSpec, batched
from clnn.types import F32, F64, Array, TensorType, normalise_axis


@dataclass(frozen=True)
class Fold:
    """How a reduction is computed: of each element, of two, and at the end; and with numpy."""

    value: str
    op: str
    finish: str
    numpy: Callable[..., Array]
    floats_only: bool = False


def _log_sum_exp(x: Array, axis: tuple[int, ...], p: float) -> Array:
    top = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    top = np.where(np.isinf(top), 0, top)
    return np.asarray(np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True)) + top)


def _mean(x: Array, axis: tuple[int, ...], p: float) -> Array:
    total, count = np.sum(x, axis=axis, keepdims=True), prod(x.shape[a] for a in axis)
    if x.dtype.kind == "f":
        return np.asarray(total / x.dtype.type(count))
    return np.asarray(np.sign(total) * (np.abs(total) // max(count, 1)))


def _extreme(x: Array, axis: tuple[int, ...], op: str) -> Array:
    if x.dtype.kind == "f":
        edge = -np.inf if op == "max" else np.inf
    elif x.dtype.kind == "b":
        edge = op == "min"
    else:
        edge = np.iinfo(x.dtype).min if op == "max" else np.iinfo(x.dtype).max
    function = np.max if op == "max" else np.min
    return np.asarray(function(x, axis=axis, keepdims=True, initial=x.dtype.type(edge)))


FOLDS: dict[str, Fold] = {
    "sum": Fold("none", "sum", "none", lambda x, a, p: np.sum(x, axis=a, keepdims=True)),
    "mean": Fold("none", "sum", "mean", _mean),
    "prod": Fold("none", "prod", "none", lambda x, a, p: np.prod(x, axis=a, keepdims=True)),
    "max": Fold("none", "max", "none", lambda x, a, p: _extreme(x, a, "max")),
    "min": Fold("none", "min", "none", lambda x, a, p: _extreme(x, a, "min")),
    "l1": Fold("abs", "sum", "none", lambda x, a, p: np.sum(np.abs(x), axis=a, keepdims=True)),
    "sum_square": Fold(
        "square", "sum", "none", lambda x, a, p: np.sum(np.square(x), axis=a, keepdims=True)
    ),
    "l2": Fold(
        "square",
        "sum",
        "sqrt",
        lambda x, a, p: np.sqrt(np.sum(np.square(x), axis=a, keepdims=True)),
        True,
    ),
    "lp": Fold(
        "power",
        "sum",
        "root",
        lambda x, a, p: np.sum(np.abs(x) ** p, axis=a, keepdims=True) ** (1 / p),
        True,
    ),
    "log_sum": Fold(
        "none", "sum", "log", lambda x, a, p: np.log(np.sum(x, axis=a, keepdims=True)), True
    ),
    "log_sum_exp": Fold("none", "log_sum_exp", "none", _log_sum_exp, True),
}


@dataclass(frozen=True)
class Reduce(OpSpec):
    """Input 0 folded over `axes` (0 <= axis, ascending) by one of FOLDS, then `post_ops`.

    keepdims: the axes stay with extent 1. power: the p of "lp".
    """

    fn: str
    axes: tuple[int, ...]
    keepdims: bool = True
    power: float = 2.0
    post_ops: tuple[PostOp, ...] = ()

    kind = "reduce"
    layout_rule = "same"
    fuses_post_ops = True
    supports_narrow_storage = True

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the output type. Raises ShapeError for axes that are not there, DTypeError."""
        x = inputs[0]
        if x is None or any(not 0 <= a < x.rank for a in self.axes):
            shown = None if x is None else x.shape
            raise ShapeError(f"reduction over axes {self.axes} of {shown}: each must be an axis.")
        floats = (F32, F64)
        if x.dtype not in floats and (FOLDS[self.fn].floats_only or x.dtype.is_float):
            raise DTypeError(f"{self.fn} over {x.dtype.name}: it needs float32 or float64.")
        if x.dtype.numpy.kind == "b" and self.fn not in ("max", "min"):
            raise DTypeError(f"{self.fn} over bool: only max and min are defined for it.")
        return (TensorType(self._result(x.shape), x.dtype),)

    def _result(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if self.keepdims:
            return tuple(1 if a in self.axes else d for a, d in enumerate(shape))
        return tuple(d for a, d in enumerate(shape) if a not in self.axes)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return numpy's reduction."""
        x = inputs[0]
        assert x is not None
        with np.errstate(all="ignore"):
            y = np.asarray(FOLDS[self.fn].numpy(x, self.axes, self.power)).astype(x.dtype)
        return (apply_post_ops(y.reshape(self._result(x.shape)), self.post_ops, inputs),)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return a vector kernel (in two launches where rows are few and long), and a plain one."""
        if not problem.outputs[0].type.size:
            return [Variant("empty", ())]
        found = [_variant(self, problem, plain=False)]
        plain = _variant(self, problem, plain=True)
        return found if plain.name == found[0].name else [*found, plain]

    def split_batch(
        self, inputs: Sequence[TensorType | None], count: int
    ) -> tuple[OpSpec, tuple[int, ...]] | None:
        """Return the op as it is, for some images, where the first axis is not reduced."""
        x = inputs[0]
        if x is None or 0 in self.axes:
            return None
        return self, (0, *batched(inputs, len(self._result(x.shape)), 1))

    def flops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        """One operation per input element."""
        return 0 if inputs[0] is None else inputs[0].size

    def tolerance(self, inputs: Sequence[TensorType | None]) -> float:
        """Return a bound that grows slowly with the elements of a row: sums are blocked."""
        x = inputs[0]
        count = 1 if x is None else prod(x.shape[a] for a in self.axes)
        return 1e-5 if self.fn != "prod" else max(1e-5, 1.2e-7 * count)


def _variant(spec: Reduce, problem: Problem, plain: bool) -> Variant:
    """Return the variant for rows walked by vectors, or plainly."""
    x, out = problem.input(0), problem.outputs[0]
    shape = x.type.shape
    extras = [
        without(layout, spec.axes, shape)
        for _, layout in operand_layouts(problem, spec.post_ops).values()
    ]
    layouts = [x.layout.unpadded(), *extras, without(out.layout, spec.axes, shape)]
    can_split = not plain and FOLDS[spec.fn].op != "log_sum_exp"
    rows = make_rows(
        layouts,
        spec.axes,
        problem.target,
        x.type.dtype.itemsize,
        plain=plain,
        split=can_split,
        share=True,
    )
    name = f"reduce_{spec.fn}_{x.label}_{rows.label}"
    if rows.parts == 1:
        return Variant(name, (_whole(spec, problem, rows, name),))
    name += f"_p{rows.parts}"
    return Variant(name, _two(spec, problem, rows, name, layouts))


def _launch(
    spec: Reduce, problem: Problem, rows: Rows, name: str, first: bool, second: bool
) -> Launch:
    """Return one launch; first of two: into scratch, second of two: from scratch."""
    x, fold = problem.input(0), FOLDS[spec.fn]
    global_size, local = rows.sizes(problem.target)
    post_ops = () if first else spec.post_ops
    places = {k: place + 1 for k, (place, _) in operand_layouts(problem, post_ops).items()}
    params = {
        "name": name,
        "ctype": x.type.dtype.cl if second else x.ctype,
        "result": x.type.dtype.cl if first else problem.outputs[0].ctype,
        "rows": rows,
        "value": "none" if second else fold.value,
        "op": fold.op,
        "finish": "none" if first else fold.finish,
        "power": spec.power,
        "post_ops": post_ops,
        "count": prod(x.type.shape[a] for a in spec.axes),
        "operands": places,
        "from_scratch": second,
        "to_scratch": first,
        "wg": local,
        "own_exp": problem.target.is_cpu and x.type.dtype == F32,
    }
    scratch = Scratch("parts", rows.parts * rows.count * x.type.dtype.itemsize) if first else None
    return Launch("rows/reduce.cl.mako", params, (In(0), scratch or Out(0)), global_size, local)


def _whole(spec: Reduce, problem: Problem, rows: Rows, name: str) -> Launch:
    launch = _launch(spec, problem, rows, name, False, False)
    args: tuple[Arg, ...] = (In(0), *operand_args(problem, spec.post_ops), Out(0))
    return Launch(launch.template, launch.params, args, launch.global_size, launch.local_size)


def _two(
    spec: Reduce, problem: Problem, rows: Rows, name: str, layouts: Sequence[TensorLayout]
) -> tuple[Launch, Launch]:
    """Return the launch that folds parts of rows into scratch and the one that folds those."""
    first = _launch(spec, problem, rows, f"{name}_parts", True, False)
    shape = (rows.parts, *rows.outer.extents, rows.lanes)
    zero = (0,) * len(shape)
    seen = [TensorLayout.make(shape)]
    for k in range(1, len(layouts)):
        pitches = (0, *rows.outer.pitches[k], rows.lane_pitches[k] if rows.across else 0)
        seen.append(TensorLayout(shape, pitches, zero, zero, 0, 0))
    last = make_rows(seen, (0,), problem.target, problem.input(0).type.dtype.itemsize, share=True)
    second = _launch(spec, problem, last, name, False, True)
    args = (first.args[1], *operand_args(problem, spec.post_ops), Out(0))
    return first, Launch(
        second.template, second.params, args, second.global_size, second.local_size
    )


def axes_of(node: OnnxNode) -> tuple[int, ...]:
    """Return the axes of a reduction, from its attribute or its second input; none given: all."""
    rank = node.type(0).rank
    axes = node.attr("axes")
    if axes is None and node.has(1):
        axes = node.const(1, "axes").reshape(-1)
    if axes is None or len(axes) == 0:
        return () if node.attr("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted({normalise_axis(int(a), rank) for a in axes}))


_REDUCTIONS = {
    "ReduceSum": "sum",
    "ReduceMean": "mean",
    "ReduceProd": "prod",
    "ReduceMax": "max",
    "ReduceMin": "min",
    "ReduceL1": "l1",
    "ReduceL2": "l2",
    "ReduceSumSquare": "sum_square",
    "ReduceLogSum": "log_sum",
    "ReduceLogSumExp": "log_sum_exp",
}


@onnx_op(*_REDUCTIONS)
def _reduce(node: OnnxNode) -> Source:
    spec = Reduce(_REDUCTIONS[node.op_type], axes_of(node), bool(node.attr("keepdims", 1)))
    return Emit(spec, [0])


_GLOBAL = {"GlobalAveragePool": "mean", "GlobalMaxPool": "max", "GlobalLpPool": "lp"}


@onnx_op(*_GLOBAL)
def _global_pool(node: OnnxNode) -> Source:
    rank = node.type(0).rank
    if rank < 3:
        raise Unsupported(f"global pooling of {rank} axes; it needs batch, channels and an image")
    return over_image(_GLOBAL[node.op_type], rank, float(node.attr("p", 2)))


def over_image(fn: str, rank: int, power: float) -> Emit:
    """Return the node that folds the image of each channel of input 0; power: the p of "lp"."""
    if fn == "lp" and power in (1.0, 2.0):
        fn = "l1" if power == 1 else "l2"
    return Emit(Reduce(fn, tuple(range(2, rank)), True, power), [0])

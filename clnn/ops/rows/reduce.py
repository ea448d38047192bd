"""Reductions over any axes: sum, mean, extremes, products and norms, with fused post-ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

import numpy as np

from clnn.errors import DTypeError, ShapeError
from clnn.layout import TensorLayout
from clnn.ops.launch import Arg, In, Launch, Out, Scratch, Variant
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, Unsupported, onnx_op
from clnn.ops.problem import Problem, required
from clnn.ops.rows.rows import Rows, and_plain, make_rows, operands_of, repeated, with_row_axes
from clnn.ops.shared.epilogue import operand_args
from clnn.ops.shared.functions import PostOp, apply_post_ops
from clnn.ops.spec import OpSpec, batched
from clnn.records import dataclass
from clnn.traced import is_open
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
    total = np.sum(x, axis=axis, keepdims=True, dtype=x.dtype)
    count = prod(x.shape[a] for a in axis)
    if x.dtype.kind == "f":
        return np.asarray(total / x.dtype.type(count))
    down, rest = np.divmod(total, x.dtype.type(max(count, 1)))
    return np.asarray(down + ((rest != 0) & (total < 0)).astype(x.dtype))


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
        x = required(inputs)
        if any(not 0 <= a < x.rank for a in self.axes):
            raise ShapeError(f"reduction over axes {self.axes} of {x.shape}: each must be an axis.")
        if x.dtype not in (F32, F64) and (FOLDS[self.fn].floats_only or x.dtype.is_float):
            raise DTypeError(f"{self.fn} over {x.dtype.name}: it needs float32 or float64.")
        if x.dtype.numpy.kind == "b" and self.fn not in ("max", "min"):
            raise DTypeError(f"{self.fn} over bool: only max and min are defined for it.")
        if self.fn == "mean" and not x.dtype.is_float and x.dtype.itemsize < 4:
            raise DTypeError(f"mean over {x.dtype.name}: integers of fewer than 32 bits have none.")
        return (TensorType(self._result(x.shape), x.dtype),)

    def _result(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if self.keepdims:
            return tuple(1 if a in self.axes else d for a, d in enumerate(shape))
        return tuple(d for a, d in enumerate(shape) if a not in self.axes)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return numpy's reduction."""
        x = required(inputs)
        with np.errstate(all="ignore"):
            y = np.asarray(FOLDS[self.fn].numpy(x, self.axes, self.power)).astype(x.dtype)
        return (apply_post_ops(y.reshape(self._result(x.shape)), self.post_ops, inputs),)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return a vector kernel (in two launches where rows are few and long), and a plain one."""
        return and_plain(partial(_variant, self, problem))

    def repeat(self, problem: Problem, variant: Variant) -> Variant | None:
        """Return the one of the variants that has the same name."""
        return repeated(partial(_variant, self, problem), variant)

    def split_batch(
        self, inputs: Sequence[TensorType | None], count: int
    ) -> tuple[OpSpec, tuple[int, ...]] | None:
        """Return the op as it is, for some images, where the first axis is not reduced."""
        if 0 in self.axes:
            return None
        x = required(inputs)
        return self, (0, *batched(inputs, len(self._result(x.shape)), 1))

    def flops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        """One operation per input element."""
        return required(inputs).size

    def tolerance(self, inputs: Sequence[TensorType | None]) -> float:
        """Return a bound that grows slowly with the elements of a row: sums are blocked."""
        shape = required(inputs).shape
        count = prod(shape[a] for a in self.axes)
        return 1e-5 if self.fn != "prod" else max(1e-5, 1.2e-7 * count)


def _variant(spec: Reduce, problem: Problem, plain: bool) -> Variant:
    """Return the variant for rows walked by vectors, or plainly."""
    x, out = problem.input(0), problem.outputs[0]
    shape = x.type.shape
    _, extras = operands_of(problem, spec.post_ops)
    per_row = [with_row_axes(layout, spec.axes, shape) for layout in (*extras, out.layout)]
    rows = make_rows(
        [x.layout.unpadded(), *per_row],
        spec.axes,
        problem.target,
        x.type.dtype.itemsize,
        plain=plain,
        split=not plain and FOLDS[spec.fn].op != "log_sum_exp",
        share=True,
    )
    name = f"reduce_{spec.fn}_{x.label}_{rows.label}"
    finish: tuple[Arg, ...] = (*operand_args(problem, spec.post_ops), Out(0))
    if not rows.divided:
        return Variant(name, (_launch(spec, problem, rows, name, (In(0), *finish)),))
    name += "_parts" if is_open(rows.parts) else f"_p{rows.parts}"
    parts = Scratch("parts", rows.parts * rows.count * x.type.dtype.itemsize)
    first = _launch(spec, problem, rows, f"{name}_parts", (In(0), parts))
    second = _launch(spec, problem, _rows_of_parts(rows, problem), name, (parts, *finish))
    return Variant(name, (first, second))


def _launch(spec: Reduce, problem: Problem, rows: Rows, name: str, args: tuple[Arg, ...]) -> Launch:
    """Return one launch: of all, or from or to parts of rows in scratch memory."""
    x, fold = problem.input(0), FOLDS[spec.fn]
    from_scratch, to_scratch = isinstance(args[0], Scratch), isinstance(args[-1], Scratch)
    global_size, local = rows.sizes(problem.target)
    post_ops = () if to_scratch else spec.post_ops
    params = {
        "name": name,
        "ctype": x.type.dtype.cl if from_scratch else x.ctype,
        "result": x.type.dtype.cl if to_scratch else problem.outputs[0].ctype,
        "rows": rows,
        "value": "none" if from_scratch else fold.value,
        "op": fold.op,
        "finish": "none" if to_scratch else fold.finish,
        "power": spec.power,
        "post_ops": post_ops,
        "count": prod(x.type.shape[a] for a in spec.axes),
        "operands": operands_of(problem, post_ops)[0],
        "from_scratch": from_scratch,
        "to_scratch": to_scratch,
        "wg": local,
        "own_exp": problem.target.is_cpu and x.type.dtype == F32,
    }
    return Launch("rows/reduce.cl.mako", params, args, global_size, local)


def _rows_of_parts(rows: Rows, problem: Problem) -> Rows:
    """Return the geometry of the launch that folds the parts of `rows` in scratch memory."""
    shape = (rows.parts, *rows.outer.extents, rows.lanes)
    layouts = [TensorLayout.make(shape)]
    for outer, lane in list(zip(rows.outer.pitches, rows.lane_pitches, strict=True))[1:]:
        layouts.append(TensorLayout.of_pitches(shape, (0, *outer, lane if rows.across else 0)))
    itemsize = problem.input(0).type.dtype.itemsize
    return make_rows(layouts, (0,), problem.target, itemsize, share=True)


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

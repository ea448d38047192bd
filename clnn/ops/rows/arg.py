"""Where the largest or smallest element of a row is: ArgMax, ArgMin and Hardmax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from clnn.errors import DTypeError, ShapeError
from clnn.layout import TensorLayout, row_major
from clnn.ops.launch import In, Launch, Out, Variant
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, onnx_op
from clnn.ops.problem import Problem, required
from clnn.ops.rows.rows import Rows, and_plain, make_rows, with_row_axes
from clnn.ops.rows.softmax import softmax_axes
from clnn.ops.spec import OpSpec
from clnn.records import dataclass
from clnn.traced import other
from clnn.types import F16, I64, Array, TensorType, normalise_axis

LEAST_ALONG = 64  # elements of a row from which on CPUs gain by vectors along it
LANES = ("float", "int", "uint")  # types whose comparisons are as wide as the index


@dataclass(frozen=True)
class ArgExtreme(OpSpec):
    """Index along `axis` of the largest (else smallest) element, int64.

    latest: of equal elements the last one counts, else the first. A NaN is beyond all numbers.
    """

    largest: bool
    axis: int
    keepdims: bool = True
    latest: bool = False

    kind = "arg"
    layout_rule = "same"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the type of the indices. Raises ShapeError for an empty axis of which one is asked for."""
        x = _checked(inputs)
        axis = normalise_axis(self.axis, x.rank)
        others = (d for a, d in enumerate(x.shape) if a != axis)
        if x.shape[axis] == 0 and 0 not in others:
            raise ShapeError(f"axis {axis} of {x.shape} has no elements: none is the largest.")
        if self.keepdims:
            return (TensorType(tuple(1 if a == axis else d for a, d in enumerate(x.shape)), I64),)
        return (TensorType(tuple(d for a, d in enumerate(x.shape) if a != axis), I64),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return numpy's argmax or argmin."""
        x = required(inputs)
        if not x.size:  # numpy wants an element of each row, though there are no rows
            return (np.asarray(np.count_nonzero(x, axis=self.axis, keepdims=self.keepdims)),)
        turned = np.flip(x, self.axis) if self.latest else x
        index = np.asarray((np.argmax if self.largest else np.argmin)(turned, axis=self.axis))
        if self.latest:
            index = x.shape[self.axis] - 1 - index
        return (np.expand_dims(index, self.axis) if self.keepdims else index,)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return a kernel with a row per lane or per work-group, and a plain one."""
        axes, shape = (self.axis,), problem.input(0).type.shape
        result = with_row_axes(problem.outputs[0].layout, axes, shape)
        what = "argmax" if self.largest else "argmin"
        order = {"largest": self.largest, "latest": self.latest}
        return and_plain(partial(_variant, problem, axes, result, what, order))


@dataclass(frozen=True)
class Hardmax(OpSpec):
    """One at the first of the largest elements over `axes` taken together, zero elsewhere."""

    axes: tuple[int, ...]

    kind = "hardmax"
    layout_rule = "same"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the input's type. Raises DTypeError for what is not float."""
        x = _checked(inputs)
        if any(not 0 <= a < x.rank for a in self.axes):
            raise ShapeError(f"hardmax over axes {self.axes} of {x.shape}: each must be an axis.")
        if not x.dtype.is_float:
            raise DTypeError(f"hardmax of {x.dtype.name}: it needs a float type.")
        return (x,)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return numpy's argmax over the axes, as ones among zeros."""
        x = required(inputs)
        if not x.size:
            return (x,)
        kept = [a for a in range(x.ndim) if a not in self.axes]
        moved = np.transpose(x, (*kept, *self.axes))
        flat = moved.reshape(*(x.shape[a] for a in kept), prod(x.shape[a] for a in self.axes))
        hot = np.arange(flat.shape[-1]) == np.argmax(flat, axis=-1)[..., None]
        back = hot.reshape(moved.shape).astype(x.dtype)
        return (np.transpose(back, np.argsort((*kept, *self.axes))),)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return a kernel with a row per lane or per work-group, and a plain one."""
        result = problem.outputs[0].layout.unpadded()
        order = {"largest": True, "latest": False}
        return and_plain(partial(_variant, problem, self.axes, result, "hardmax", order))


def _checked(inputs: Sequence[TensorType | None]) -> TensorType:
    x = required(inputs)
    if x.dtype == F16 or x.dtype.numpy.kind == "b":
        raise DTypeError(f"index of the largest element of {x.dtype.name}: not a type for it.")
    return x


def _places(shape: tuple[int, ...], axes: tuple[int, ...]) -> TensorLayout:
    """Return a layout whose element offset is the index within a row, axes in logical order."""
    inner = iter(row_major([shape[a] for a in axes]))
    pitches = tuple(next(inner) if a in axes else 0 for a in range(len(shape)))
    return TensorLayout.of_pitches(shape, pitches)


def _variant(
    problem: Problem,
    axes: tuple[int, ...],
    result: TensorLayout,
    what: str,
    order: Mapping[str, bool],
    plain: bool,
) -> Variant:
    """Return the variant for rows walked by vectors, or plainly; order: which element is sought."""
    x = problem.input(0)
    rows = _rows(problem, [x.layout.unpadded(), result, _places(x.type.shape, axes)], axes, plain)
    global_size, local = rows.sizes(problem.target)
    name = f"{what}_{x.type.dtype.cl}_{rows.label}"
    params = {
        "name": name,
        "ctype": x.type.dtype.cl,
        "rows": rows,
        **order,
        "ordered": len(axes) == 1,
        "one_hot": what == "hardmax",
        "wg": local,
    }
    launch = Launch("rows/arg.cl.mako", params, (In(0), Out(0)), global_size, local)
    return Variant(name, (launch,))


def _rows(
    problem: Problem, layouts: Sequence[TensorLayout], axes: tuple[int, ...], plain: bool
) -> Rows:
    """Return rows in which an index is kept for each lane."""
    dtype, target = problem.input(0).type.dtype, problem.target
    row = other(prod(layouts[0].shape[a] for a in axes))
    along = not target.is_cpu or row >= LEAST_ALONG
    rows = make_rows(layouts, axes, target, dtype.itemsize, plain=plain, along=along)
    if (rows.across or target.is_cpu) and (rows.vw == 1 or dtype.cl in LANES):
        return rows
    if rows.group > 1:
        return replace(rows, vw=1, nv=1)
    return make_rows(layouts, axes, target, dtype.itemsize, plain=True)


@onnx_op("ArgMax", "ArgMin")
def _arg(node: OnnxNode) -> Source:
    axis = normalise_axis(int(node.attr("axis", 0)), node.type(0).rank)
    keepdims, latest = bool(node.attr("keepdims", 1)), bool(node.attr("select_last_index", 0))
    return Emit(ArgExtreme(node.op_type == "ArgMax", axis, keepdims, latest), [0])


@onnx_op("Hardmax")
def _hardmax(node: OnnxNode) -> Source:
    return Emit(Hardmax(softmax_axes(node)), [0])

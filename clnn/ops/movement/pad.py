"""Padding as an op of its own: constant, reflect, edge and wrap; negative pads crop."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from clnn.errors import ShapeError
from clnn.layout import TensorLayout
from clnn.ops.launch import In, Launch, Out, Variant, grid
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, Unsupported, onnx_op
from clnn.ops.problem import Problem, required
from clnn.ops.shared.element_types import move_type, move_value
from clnn.ops.shared.loops import GRAIN, run_width
from clnn.ops.spec import OpSpec
from clnn.records import dataclass
from clnn.traced import alike, divides, greatest, is_one, least
from clnn.types import Array, TensorType, normalise_axis

MODES = ("constant", "reflect", "edge", "wrap")


@dataclass(frozen=True)
class Pad(OpSpec):
    """`before` and `after` elements added on each side of each axis, or taken away where negative.

    Elements are taken away first: the modes repeat what is left.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    mode: str = "constant"
    value: float = 0.0

    kind = "pad"
    layout_rule = "same"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the padded type. Raises ShapeError for pads that do not fit."""
        x = required(inputs)
        if len(self.before) != x.rank or len(self.after) != x.rank:
            raise ShapeError(f"pads {self.before}, {self.after} do not fit shape {x.shape}.")
        shape = []
        for axis, extent in enumerate(x.shape):
            low, high = self.before[axis], self.after[axis]
            left = extent + min(low, 0) + min(high, 0)
            if left < 0 or max(low, high) > self._most(left):
                raise ShapeError(
                    f"{self.mode} pads {low} and {high} do not fit axis {axis} of {x.shape}."
                )
            shape.append(extent + low + high)
        return (TensorType(tuple(shape), x.dtype),)

    def _most(self, left: int) -> float:
        """Return how much may be added on one side of an axis of extent `left`."""
        if self.mode == "reflect":
            return max(left - 1, 0)
        return math.inf if left > 0 or self.mode == "constant" else 0

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return numpy's pad after cropping."""
        x = required(inputs)
        if not x.ndim:
            return (x,)
        rows = list(zip(self.before, self.after, x.shape, strict=True))
        crop = tuple(slice(max(-low, 0), extent - max(-high, 0)) for low, high, extent in rows)
        grow = [(max(low, 0), max(high, 0)) for low, high, _ in rows]
        if self.mode == "constant":
            return (np.pad(x[crop], grow, constant_values=x.dtype.type(self.value)),)
        return (np.pad(x[crop], grow, mode=self.mode),)  # type: ignore[call-overload]

    def indices_of(self, shape: Sequence[int]) -> dict[int, Array]:
        """Return axis -> the input's index for each of the output's, -1 for `value`, of axes that change."""
        found = {}
        mode = {"constant_values": -1} if self.mode == "constant" else {}
        for axis, (low, high) in enumerate(zip(self.before, self.after, strict=True)):
            kept = np.arange(shape[axis])[max(-low, 0) : shape[axis] - max(-high, 0)]
            if low or high:
                grow = (max(low, 0), max(high, 0))
                found[axis] = np.pad(kept, grow, mode=self.mode, **mode)  # type: ignore[call-overload]
        return found

    def variants(self, problem: Problem) -> list[Variant]:
        """Return a kernel that walks rows and one that finds each element, for any layouts."""
        by_rows, by_elements = _rows(self, problem), _elements(self, problem)
        return [by_rows, by_elements] if problem.target.is_cpu else [by_elements, by_rows]


def _cropped(spec: Pad, layout: TensorLayout) -> TensorLayout:
    """Return what is left of the input where pads are negative."""
    layout = layout.unpadded()
    for axis, extent in enumerate(layout.shape):
        low, high = max(-spec.before[axis], 0), max(-spec.after[axis], 0)
        if low or high:
            layout = layout.slice(axis, low, extent - low - high)
    return layout


def _axes(spec: Pad, src: TensorLayout, dst: TensorLayout) -> tuple[list[int], int, int]:
    """Return the outer axes, the axis of rows and the elements of one position of a row.

    The axis of rows is the innermost padded one in dst; what lies inside it is one position where
    it is contiguous on both sides.
    """
    order = [a for a in dst.order if not (is_one(src.shape[a]) and is_one(dst.shape[a]))] or [0]
    padded = [a for a in order if src.shape[a] != dst.shape[a]] or order[-1:]
    row = padded[-1]
    inside = order[order.index(row) + 1 :]
    inner = 1
    for axis in reversed(inside):
        if not alike(src.pitches[axis], inner) or not alike(dst.pitches[axis], inner):
            return [a for a in order if a != row], row, 1
        inner *= dst.shape[axis]
    return [a for a in order if a != row and a not in inside], row, inner


def _common(
    spec: Pad, problem: Problem, src: TensorLayout, axes: Sequence[int]
) -> dict[str, object]:
    dst, dtype = problem.outputs[0].layout, problem.outputs[0].type.dtype
    return {
        "ctype": move_type(dtype),
        "value": move_value(spec.value, dtype),
        "mode": spec.mode,
        "extents": tuple(dst.shape[a] for a in axes),
        "sources": tuple(src.shape[a] for a in axes),
        "before": tuple(max(spec.before[a], 0) for a in axes),
        "src_pitches": tuple(src.pitches[a] for a in axes),
        "dst_pitches": tuple(dst.pitches[a] for a in axes),
    }


def _shift(problem: Problem, src: TensorLayout) -> In:
    return In(0, src.offset - problem.input(0).layout.offset)


def _rows(spec: Pad, problem: Problem) -> Variant:
    dst = problem.outputs[0].layout
    src = _cropped(spec, problem.input(0).layout)
    if dst.rank == 0:
        return _elements(spec, problem)
    outer, row, inner = _axes(spec, src, dst)
    common = _common(spec, problem, src, outer)
    low, high = max(spec.before[row], 0), max(spec.after[row], 0)
    pitches = (src.pitches[row], dst.pitches[row])
    joined = all(alike(pitch, inner) for pitch in pitches)
    run = inner * src.shape[row] if joined else inner
    rows = math.prod(dst.shape[a] for a in outer)
    vw = run_width(run, problem.target) if not is_one(inner) or joined else 1
    per_row = inner * dst.shape[row]
    fitting = GRAIN // greatest(per_row, 1)
    band = greatest(1, least(fitting, rows // (8 * problem.target.compute_units)))
    global_size, local = grid(problem.target, -(-rows // band))
    name = f"pad_{spec.mode}_rows_{common['ctype']}_v{vw}"
    params = {
        **common,
        "name": name,
        "row": (src.shape[row], low, high),
        "row_pitches": pitches,
        "inner": inner,
        "vw": vw,
        "band": band,
        "wg": local,
    }
    args = (_shift(problem, src), Out(0))
    return Variant(name, (Launch("movement/pad_rows.cl.mako", params, args, global_size, local),))


def _elements(spec: Pad, problem: Problem) -> Variant:
    dst = problem.outputs[0].layout
    src = _cropped(spec, problem.input(0).layout)
    axes = list(dst.order)
    last = axes[-1] if axes else 0
    plain = bool(axes) and src.shape[last] == dst.shape[last]
    vw = 1
    if plain and is_one(src.pitches[last]) and is_one(dst.pitches[last]):
        while vw < problem.target.vector and divides(2 * vw, dst.shape[last]):
            vw *= 2
    common = _common(spec, problem, src, axes)
    if not axes:
        common |= {
            "extents": (1,),
            "sources": (1,),
            "before": (0,),
            "src_pitches": (0,),
            "dst_pitches": (0,),
        }
    global_size, local = grid(problem.target, problem.outputs[0].type.size // vw)
    name = f"pad_{spec.mode}_{common['ctype']}_v{vw}"
    params = {**common, "name": name, "vw": vw, "wg": local}
    args = (_shift(problem, src), Out(0))
    return Variant(name, (Launch("movement/pad.cl.mako", params, args, global_size, local),))


@onnx_op("Pad")
def _pad(node: OnnxNode) -> Source:
    rank = node.type(0).rank
    mode = str(node.attr("mode", "constant"))
    if mode not in MODES:
        raise Unsupported(f"mode {mode!r} is not one of {', '.join(MODES)}")
    value: float = node.attr("value", 0.0)
    if node.opset < 11:
        pads = [int(p) for p in node.attrs["pads" if "pads" in node.attrs else "paddings"]]
    else:
        pads = [int(p) for p in node.const(1, "pads").reshape(-1)]
        if node.has(2):
            value = node.const(2, "value").item()
    axes = list(range(rank))
    if node.has(3):
        axes = [normalise_axis(int(a), rank) for a in node.const(3, "axes").reshape(-1)]
    if len(pads) != 2 * len(axes) or len(set(axes)) != len(axes):
        raise ShapeError(f"Pad of {node.type(0).shape}: pads {pads} do not fit axes {axes}.")
    before, after = [0] * rank, [0] * rank
    for place, axis in enumerate(axes):
        before[axis], after[axis] = pads[place], pads[len(axes) + place]
    if not any(pads):
        return 0
    return Emit(Pad(tuple(before), tuple(after), mode, value), [0])

"""Padding as an op of its own: constant, reflect, edge and wrap; negative pads crop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clnn.errors import ShapeError
from clnn.ops._base import Array, In, Launch, OpSpec, Out, Problem, Variant, grid
from clnn.ops._registry import Emit, OnnxNode, Source, Unsupported, onnx_op
from clnn.types import TensorType, normalise_axis

MODES = ("constant", "reflect", "edge", "wrap")


@dataclass(frozen=True)
class Pad(OpSpec):
    """`before` and `after` elements added on each side of each axis (taken away where negative)."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    mode: str = "constant"
    value: float = 0.0

    kind = "pad"
    layout_rule = "same"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the padded type. Raises ShapeError for pads that do not fit."""
        x = inputs[0]
        assert x is not None
        if len(self.before) != x.rank or len(self.after) != x.rank:
            raise ShapeError(f"pads {self.before}, {self.after} do not fit shape {x.shape}.")
        rows = zip(self.before, x.shape, self.after, strict=True)
        shape = tuple(lo + d + hi for lo, d, hi in rows)
        if min(shape, default=0) < 0:
            raise ShapeError(f"pads {self.before}, {self.after} leave nothing of {x.shape}.")
        if self.mode == "reflect" and any(
            max(lo, hi) > max(d - 1, 0)
            for lo, hi, d in zip(self.before, self.after, x.shape, strict=True)
        ):
            raise ShapeError(f"reflect pads {self.before}, {self.after} are too large for {x.shape}.")
        return (TensorType(shape, x.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return numpy's pad after cropping."""
        x = inputs[0]
        assert x is not None
        crop = tuple(
            slice(max(-lo, 0), d - max(-hi, 0))
            for lo, hi, d in zip(self.before, self.after, x.shape, strict=True)
        )
        grow = [(max(lo, 0), max(hi, 0)) for lo, hi in zip(self.before, self.after, strict=True)]
        if self.mode == "constant":
            return (np.pad(x[crop], grow, constant_values=x.dtype.type(self.value)),)
        return (np.pad(x[crop], grow, mode=self.mode),)  # type: ignore[call-overload]

    def variants(self, problem: Problem) -> list[Variant]:
        """Return the one kernel, for any layout and rank."""
        x, out = problem.input(0), problem.outputs[0]
        if not out.type.size:
            return [Variant("empty", ())]
        global_size, local = grid(problem.target, out.type.size)
        params = {
            "name": f"pad_{self.mode}", "ctype": x.type.dtype.cl, "src": x.layout,
            "dst": out.layout, "before": self.before, "after": self.after, "mode": self.mode,
            "value": self.value, "wg": local, "count": out.type.size,
        }  # fmt: skip
        launch = Launch("pad.cl.mako", params, (In(0), Out(0)), global_size, local)
        return [Variant(f"pad_{self.mode}", (launch,))]


@onnx_op("Pad")
def _pad(node: OnnxNode) -> Source:
    rank = node.type(0).rank
    mode = str(node.attr("mode", "constant"))
    if mode not in MODES:
        raise Unsupported(f"mode {mode!r} is not one of {', '.join(MODES)}")
    value = float(node.attr("value", 0.0))
    if node.opset < 11:
        pads = [int(p) for p in node.attrs.get("pads", node.attrs.get("paddings"))]
    else:
        pads = [int(p) for p in node.const(1, "pads")]
        if node.has(2):
            value = float(node.const(2, "value").item())
    axes = list(range(rank))
    if node.has(3):
        axes = [normalise_axis(int(a), rank) for a in node.const(3, "axes")]
    before, after = [0] * rank, [0] * rank
    for place, axis in enumerate(axes):
        before[axis], after[axis] = pads[place], pads[len(axes) + place]
    return Emit(Pad(tuple(before), tuple(after), mode, value), [0])

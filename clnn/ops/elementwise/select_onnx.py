"""ONNX operators that choose between two values by a condition known at import: Trilu, OneHot."""

from __future__ import annotations

import numpy as np

from clnn.budget import take_table
from clnn.errors import ShapeError
from clnn.ops.elementwise.cast import cast_to
from clnn.ops.elementwise.logic import Logic
from clnn.ops.movement.views import Reshape, slice_of
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, onnx_op
from clnn.types import I64, normalise_axis


@onnx_op("Trilu")
def _trilu(node: OnnxNode) -> Source:
    x = node.type(0)
    if x.rank < 2:
        raise ShapeError(f"Trilu of {x.shape}: it needs matrices.")
    k = int(node.const(1, "k").item()) if node.has(1) else 0
    take_table(x.shape[-2] * x.shape[-1], f"Trilu of {x.shape}")
    rows = np.arange(x.shape[-2])[:, None] + k
    kept = (
        np.arange(x.shape[-1]) >= rows if node.attr("upper", 1) else np.arange(x.shape[-1]) <= rows
    )
    return Emit(Logic("where"), [kept, 0, np.zeros((), x.dtype.numpy)])


@onnx_op("OneHot")
def _one_hot(node: OnnxNode) -> Source:
    indices = node.type(0)
    depth = int(node.const(1, "depth").item())
    axis = normalise_axis(int(node.attr("axis", -1)), indices.rank + 1)
    if depth < 1:
        raise ShapeError(f"OneHot: depth is {depth}, must be at least 1.")
    if node.type(2).shape != (2,):
        raise ShapeError(f"OneHot: values have shape {node.type(2).shape}, must be (2,).")
    take_table(2 * depth * np.dtype(np.int64).itemsize, f"OneHot of depth {depth}")
    behind = indices.rank - axis
    number = np.arange(depth).reshape(depth, *(1,) * behind)
    element = indices.dtype
    if not element.is_float and element.itemsize < 4 and depth > 127:  # which it cannot count to
        element = I64
    wide, kind = cast_to(element, indices), element.numpy
    spread = Emit(Reshape((*indices.shape[:axis], 1, *indices.shape[axis:])), [wide])
    chosen: Source = Emit(Logic("equal"), [spread, number.astype(kind)])
    if kind.kind != "u":  # negative indices count from the end
        below = (number - depth).astype(kind)
        chosen = Emit(Logic("or"), [chosen, Emit(Logic("equal"), [spread, below])])
    off, on = (Emit(Reshape(()), [Emit(slice_of((2,), 0, k, 1), [2])]) for k in (0, 1))
    return Emit(Logic("where"), [chosen, on, off])

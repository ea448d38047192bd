"""ONNX operators that choose between two values by a condition known at import: Trilu, OneHot."""

from __future__ import annotations

import numpy as np

from clnn.errors import ShapeError
from clnn.ops.elementwise.logic import Logic
from clnn.ops.movement.views import Reshape, slice_of
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, onnx_op
from clnn.types import normalise_axis

MAX_DEPTH = 2**24  # of OneHot: its numbers become a constant


@onnx_op("Trilu")
def _trilu(node: OnnxNode) -> Source:
    x = node.type(0)
    if x.rank < 2:
        raise ShapeError(f"Trilu of {x.shape}: it needs matrices.")
    k = int(node.const(1, "k").item()) if node.has(1) else 0
    rows, columns = np.indices(x.shape[-2:])
    kept = columns - rows >= k if node.attr("upper", 1) else columns - rows <= k
    return Emit(Logic("where"), [kept, 0, np.zeros((), x.dtype.numpy)])


@onnx_op("OneHot")
def _one_hot(node: OnnxNode) -> Source:
    indices = node.type(0)
    depth = int(node.const(1, "depth").item())
    axis = normalise_axis(int(node.attr("axis", -1)), indices.rank + 1)
    if not 1 <= depth <= MAX_DEPTH:
        raise ShapeError(f"OneHot: depth is {depth}, must be from 1 to {MAX_DEPTH}.")
    if node.type(2).shape != (2,):
        raise ShapeError(f"OneHot: values have shape {node.type(2).shape}, must be (2,).")
    behind = indices.rank - axis
    number = np.arange(depth).reshape(depth, *(1,) * behind)
    spread = Emit(Reshape((*indices.shape[:axis], 1, *indices.shape[axis:])), [0])
    chosen: Source = Emit(Logic("equal"), [spread, number.astype(indices.dtype.numpy)])
    if indices.dtype.numpy.kind != "u":  # negative indices count from the end
        below = (number - depth).astype(indices.dtype.numpy)
        chosen = Emit(Logic("or"), [chosen, Emit(Logic("equal"), [spread, below])])
    off, on = (Emit(Reshape(()), [Emit(slice_of((2,), 0, k, 1), [2])]) for k in (0, 1))
    return Emit(Logic("where"), [chosen, on, off])

"""TensorScatter: new keys or values written into a cache of them."""

from __future__ import annotations

import numpy as np

from clnn.errors import ShapeError
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.elementwise.logic import Logic
from clnn.ops.movement.scatter import ScatterElements
from clnn.ops.movement.views import Expand, Reshape
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, Unsupported, onnx_op
from clnn.ops.shared.functions import PostOp
from clnn.types import normalise_axis


@onnx_op("TensorScatter")
def _tensor_scatter(node: OnnxNode) -> Source:
    """Updates of sample b go to places write_indices[b], + 1, ... of the cache, or round in it."""
    cache, update = node.type(0), node.type(1)
    axis = normalise_axis(int(node.attr("axis", -2)), cache.rank)
    mode = str(node.attr("mode", "linear"))
    if mode not in ("linear", "circular") or axis == 0:
        raise Unsupported(f"mode {mode} along axis {axis}")
    others = [a for a in range(cache.rank) if a != axis]
    fits = cache.rank == update.rank and all(cache.shape[a] == update.shape[a] for a in others)
    if not fits or update.shape[axis] > cache.shape[axis]:
        raise ShapeError(f"TensorScatter of {update.shape} into {cache.shape} along axis {axis}.")
    length = update.shape[axis]
    steps = np.arange(length).reshape([length if a == axis else 1 for a in range(cache.rank)])
    index: Source = steps
    if node.has(2):
        if node.type(2).shape != cache.shape[:1]:
            raise ShapeError(
                f"TensorScatter into {cache.shape} from {node.type(2).shape} places on."
            )
        begin = Emit(Reshape((cache.shape[0], *[1] * (cache.rank - 1))), [2])
        index = Emit(Eltwise((PostOp("add", operand=1),)), [begin, steps])
        if mode == "circular":
            index = Emit(Logic("mod"), [index, np.array(cache.shape[axis])])
    return Emit(ScatterElements(axis), [0, Emit(Expand(update.shape), [index]), 1])

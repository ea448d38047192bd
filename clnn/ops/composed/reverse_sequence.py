"""ReverseSequence: the first elements of each sequence of a batch from the last to the first, by a gather."""

from __future__ import annotations

import numpy as np

from clnn.errors import ShapeError
from clnn.ops.composed.values import Value
from clnn.ops.elementwise.cast import Cast
from clnn.ops.elementwise.logic import Logic
from clnn.ops.movement.gather import Gather
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, onnx_op
from clnn.types import I32


@onnx_op("ReverseSequence")
def _reverse_sequence(node: OnnxNode) -> Source:
    x, lengths = Value.of(node, 0), node.type(1)
    axes = int(node.attr("batch_axis", 1)), int(node.attr("time_axis", 0))
    if x.type.rank < 2 or sorted(axes) != [0, 1]:
        raise ShapeError(f"ReverseSequence of {x.shape}: axes {axes} must be 0 and 1.")
    batch, steps = (x.shape[axis] for axis in axes)
    if lengths.shape != (batch,):
        raise ShapeError(f"ReverseSequence: lengths are {lengths.shape}, must be ({batch},).")
    column, row = ((-1, 1), (1, -1)) if axes[0] == 0 else ((1, -1), (-1, 1))
    step = np.arange(steps, dtype=np.int32).reshape(row)
    pace = (steps, 1) if axes[0] == 0 else (1, batch)  # flat distances of batch and time
    begin = (np.arange(batch, dtype=np.int32) * np.int32(pace[0])).reshape(column)
    flat = x.reshape((batch * steps, *x.shape[2:]))
    places = _places(node, step, column, steps)
    if isinstance(places, np.ndarray):
        picked: Source = (places * np.int32(pace[1]) + begin).astype(np.int32)
    else:
        scaled = places.binary("mul", Value.const(np.array(pace[1], np.int32)))
        picked = scaled.binary("add", Value.const(begin)).source
    return Emit(Gather(0), [flat.source, picked])


def _places(
    node: OnnxNode, step: np.ndarray, column: tuple[int, int], steps: int
) -> np.ndarray | Value:
    """Return at which step each output lies in the input: int32, lengths along one axis of two."""
    known = node.consts.get(1)
    if known is not None:
        if known.size and not 0 <= known.min() <= known.max() <= steps:
            raise ShapeError(f"ReverseSequence: lengths {known.tolist()} must be 0 to {steps}.")
        turned = known.astype(np.int32).reshape(column) - 1 - step
        return np.where(turned >= 0, turned, step)
    given = Value(1, node.type(1)).apply(Cast(I32)).unary("at_most", steps)
    count = given.reshape([d if d == 1 else given.shape[0] for d in column])
    turned_back = count.binary("sub", Value.const(step + np.int32(1)))
    zero = Value.const(np.zeros((), np.int32))
    is_turned = zero.apply(Logic("less_or_equal"), turned_back)
    return is_turned.apply(Logic("where"), turned_back, Value.const(step))

"""Gather, GatherElements and GatherND: elements picked by an index tensor.

Constant indices at even distances become views; others are looked up on the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from clnn.errors import DTypeError, ShapeError
from clnn.layout import TensorLayout
from clnn.ops.launch import In, Launch, Out, Variant
from clnn.ops.movement.views import Expand, Reshape, Slice
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, onnx_op
from clnn.ops.problem import Problem, required
from clnn.ops.shared.element_types import move_type
from clnn.ops.shared.loops import collapse, run_work
from clnn.ops.spec import OpSpec
from clnn.recorded import is_recorded
from clnn.recorded_arrays import RecordedArray, is_made
from clnn.records import dataclass
from clnn.types import Array, TensorType, normalise_axis

Pick = tuple[int, int, int]  # place of an index value, extent that it counts in, pitch in the data


@dataclass(frozen=True)
class Gather(OpSpec):
    """Inputs: data, indices. Output: data with `axis` replaced by the axes of the indices."""

    axis: int

    kind = "gather"
    supports_narrow_storage = True
    layout_rule = "same"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the output type. Raises ShapeError or DTypeError."""
        data, indices = _operands(inputs)
        if not 0 <= self.axis < data.rank:
            raise ShapeError(f"gather along axis {self.axis} of {data.shape}: no such axis.")
        _not_empty(data.shape[self.axis], indices, data)
        shape = (*data.shape[: self.axis], *indices.shape, *data.shape[self.axis + 1 :])
        return (TensorType(shape, data.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return numpy's take."""
        data, indices = required(inputs, 0), required(inputs, 1)
        return (np.take(data, indices, axis=self.axis),)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return the one kernel, for any layouts."""
        data, indices = problem.input(0).layout, problem.input(1).layout
        before, after = data.pitches[: self.axis], data.pitches[self.axis + 1 :]
        src = (*before, *(0 for _ in indices.shape), *after)
        index = (*(0 for _ in before), *indices.pitches, *(0 for _ in after))
        picks = [(0, data.shape[self.axis], data.pitches[self.axis])]
        return [_kernel("gather", problem, src, index, picks)]


@dataclass(frozen=True)
class GatherElements(OpSpec):
    """Inputs: data, indices of the same rank. Each output takes its index along `axis` only."""

    axis: int

    kind = "gather_elements"
    supports_narrow_storage = True
    layout_rule = "same"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the output type. Raises ShapeError or DTypeError."""
        data, indices = _operands(inputs)
        rows = list(enumerate(zip(indices.shape, data.shape, strict=False)))
        if data.rank != indices.rank or any(i > d for a, (i, d) in rows if a != self.axis):
            raise ShapeError(
                f"gather of elements of {data.shape} with indices {indices.shape} along axis "
                f"{self.axis}: ranks must be equal, and no other axis of the indices longer."
            )
        _not_empty(data.shape[self.axis], indices, data)
        return (TensorType(indices.shape, data.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return numpy's take_along_axis."""
        data, indices = required(inputs, 0), required(inputs, 1)
        cut = tuple(
            slice(None) if a == self.axis else slice(d) for a, d in enumerate(indices.shape)
        )
        return (np.take_along_axis(data[cut], indices.astype(np.int64), self.axis),)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return the one kernel, for any layouts."""
        data, indices = problem.input(0).layout, problem.input(1).layout
        src = tuple(0 if a == self.axis else p for a, p in enumerate(data.pitches))
        picks = [(0, data.shape[self.axis], data.pitches[self.axis])]
        return [_kernel("gather_elements", problem, src, indices.pitches, picks)]


@dataclass(frozen=True)
class GatherND(OpSpec):
    """Inputs: data, indices whose last axis holds index tuples into data's axes from `batch` on."""

    batch: int = 0

    kind = "gather_nd"
    supports_narrow_storage = True

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the output type. Raises ShapeError or DTypeError."""
        data, indices = _operands(inputs)
        depth = indices.shape[-1] if indices.rank else 0
        fits = indices.rank > self.batch and 1 <= depth <= data.rank - self.batch
        if not fits or indices.shape[: self.batch] != data.shape[: self.batch]:
            raise ShapeError(
                f"gather of tuples {indices.shape} from {data.shape} with {self.batch} batch axes: "
                "batch axes must be equal and tuples as long as some of the axes behind them."
            )
        for axis in range(self.batch, self.batch + depth):
            _not_empty(data.shape[axis], indices, data)
        return (TensorType((*indices.shape[:-1], *data.shape[self.batch + depth :]), data.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return numpy's indexing with tuples, batch by batch."""
        data, indices = required(inputs, 0), required(inputs, 1)
        batches = indices.shape[: self.batch]
        shape = (*indices.shape[:-1], *data.shape[self.batch + indices.shape[-1] :])
        result = np.empty(shape, data.dtype)
        for at in np.ndindex(*batches):
            result[at] = data[at][tuple(np.moveaxis(indices[at], -1, 0))]
        return (result,)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return the one kernel, for any layouts."""
        data, indices = problem.input(0).layout, problem.input(1).layout
        depth = indices.shape[-1]
        tail = data.pitches[self.batch + depth :]
        middle = indices.rank - 1 - self.batch
        src = (*data.pitches[: self.batch], *(0,) * middle, *tail)
        index = (*indices.pitches[:-1], *(0 for _ in tail))
        picks = [
            (k * indices.pitches[-1], data.shape[self.batch + k], data.pitches[self.batch + k])
            for k in range(depth)
        ]
        return [_kernel("gather_nd", problem, src, index, picks)]


def _operands(inputs: Sequence[TensorType | None]) -> tuple[TensorType, TensorType]:
    data, indices = required(inputs, 0), required(inputs, 1)
    if indices.dtype.numpy.kind not in "iu":
        raise DTypeError(f"gather indices are {indices.dtype.name}: they must be integers.")
    return data, indices


def _not_empty(extent: int, indices: TensorType, data: TensorType) -> None:
    if extent == 0 and indices.size:
        raise ShapeError(f"gather of {indices.shape} elements from an empty axis of {data.shape}.")


def _kernel(
    name: str, problem: Problem, src: Sequence[int], index: Sequence[int], picks: Sequence[Pick]
) -> Variant:
    """Return the variant that walks the output; src, index: pitches on the output's axes."""
    out = problem.outputs[0]
    views = [TensorLayout.of_pitches(out.type.shape, pitches) for pitches in (src, index)]
    loops = collapse([*views, out.layout.unpadded()])
    contiguous = loops.has_inner_pitches(1, 0, 1)
    work, global_size, local = run_work(loops, problem.target, contiguous)
    indices, ctype = problem.input(1), move_type(out.memory)
    label = f"{name}_{ctype}_v{work['vw']}"
    params = {
        "name": label,
        "ctype": ctype,
        "index_type": indices.type.dtype.cl,
        "picks": tuple(picks),
        "checked": not in_range(indices.const, picks),
        "wg": local,
        **work,
    }
    args = (In(0), In(1), Out(0))
    return Variant(label, (Launch("movement/gather.cl.mako", params, args, global_size, local),))


def in_range(indices: Array | None, picks: Sequence[Pick]) -> bool:
    """Whether indices are constant and valid as they are."""
    if indices is None:
        return False
    limits = np.array([extent for _, extent, _ in picks])
    return bool((indices >= 0).all() and (indices < limits).all())


def constant_indices(node: OnnxNode, limits: Sequence[int]) -> Array | None:
    """Return constant indices as int32, counted from the front; None where they are not constant.

    limits: the extent that they count in, or one extent for each place on their last axis. Indices that
    follow from noted extents stay so. Raises ShapeError for an index outside of them.
    """
    if 1 not in node.consts:
        return None
    indices: Any = node.consts[1]
    given = node.op_type, indices, *limits
    if not is_made(indices):
        return _counted(*given)
    made: Any = RecordedArray(_counted(*map(_today, given)), indices.shape, _counted, given)
    return made  # type: ignore[no-any-return]


def _today(value: Any) -> Any:
    """Return an array or a number as it is, without notes of its use."""
    if is_made(value):
        return value.array
    return value.value if is_recorded(value) else value


def _counted(op: str, indices: Array, *limits: int) -> Array:
    """Return indices of an op counted from the front."""
    wide = indices.astype(np.int64)
    bound = np.array(limits if len(limits) > 1 else limits[0])
    wrong = (wide < -bound) | (wide >= bound)
    if wrong.any():
        index = int(wide[wrong].reshape(-1)[0])
        raise ShapeError(f"{op}: index {index} is outside of extent {[int(n) for n in limits]}.")
    return np.where(wide < 0, wide + bound, wide).astype(np.int32)


@onnx_op("Gather")
def _gather(node: OnnxNode) -> Source:
    data = node.type(0)
    axis = normalise_axis(int(node.attr("axis", 0)), data.rank)
    view = _as_view(data, axis, node.consts[1]) if 1 in node.consts else None
    if view is not None:
        return view
    indices = constant_indices(node, [data.shape[axis]])
    if indices is None:
        return Emit(Gather(axis), [0, 1])
    row: Any = indices
    even = row.asked(_evenly) if is_made(indices) else _evenly(indices)
    if even is None:
        return Emit(Gather(axis), [0, indices])
    start, step = even
    return _strided(data, axis, start, step, indices.shape)


def _evenly(indices: Array) -> tuple[int, int] | None:
    """Return the first of evenly spaced indices and their distance, None of others."""
    flat = indices.reshape(-1)
    step = _common_step(flat)
    return None if step is None else (int(flat[0]) if flat.size else 0, step)


def _common_step(indices: Array) -> int | None:
    """Return the distance between neighbours where it is the same for all."""
    if indices.size < 2:
        return 1
    steps = np.diff(indices)
    return int(steps[0]) if (steps == steps[0]).all() else None


def _as_view(data: TensorType, axis: int, indices: Any) -> Source | None:
    """Return evenly spaced indices of one sign as a view that holds for other extents, too, else None."""
    extent, step, first = data.shape[axis], 1, 0
    if is_made(indices):
        if indices.items is None or indices.items.size != 1:
            return None
        first = lowest = highest = indices.items.item()
    elif indices.size:
        flat = indices.astype(np.int64).reshape(-1)
        first, lowest, highest = int(flat[0]), int(flat.min()), int(flat.max())
        even = _common_step(flat)
        if even is None or lowest < 0 <= highest:
            return None
        step = even
    if indices.size and not (-extent <= lowest and highest < extent):
        return None
    return _strided(data, axis, first + extent if first < 0 else first, step, indices.shape)


def _strided(data: TensorType, axis: int, start: int, step: int, shape: tuple[int, ...]) -> Source:
    """Return evenly spaced indices of some shape along an axis as a slice, stretched and reshaped as needed."""

    def along(value: int, others: Sequence[int]) -> tuple[int, ...]:
        return (*others[:axis], value, *others[axis + 1 :])

    count = math.prod(shape)
    taken = 1 if step == 0 else count
    part = Slice(
        along(start, (0,) * data.rank), along(taken, data.shape), along(step or 1, (1,) * data.rank)
    )
    view = Emit(part, [0])
    if taken != count:
        view = Emit(Expand(along(count, data.shape)), [view])
    if len(shape) != 1:
        view = Emit(Reshape((*data.shape[:axis], *shape, *data.shape[axis + 1 :])), [view])
    return view


@onnx_op("GatherElements")
def _gather_elements(node: OnnxNode) -> Source:
    axis = normalise_axis(int(node.attr("axis", 0)), node.type(0).rank)
    indices = constant_indices(node, [node.type(0).shape[axis]])
    return Emit(GatherElements(axis), [0, 1 if indices is None else indices])


@onnx_op("GatherND")
def _gather_nd(node: OnnxNode) -> Source:
    batch = int(node.attr("batch_dims", 0))
    depth = node.type(1).shape[-1] if node.type(1).rank else 0
    limits = node.type(0).shape[batch : batch + depth]
    if not 0 <= batch < node.type(1).rank or len(limits) != depth or not depth:
        return Emit(GatherND(max(batch, 0)), [0, 1])
    indices = constant_indices(node, limits)
    return Emit(GatherND(batch), [0, 1 if indices is None else indices])

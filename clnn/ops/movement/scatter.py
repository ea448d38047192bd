"""ScatterElements and ScatterND: a tensor some elements of which are written, or added to, by indices.

Updates come in their order in memory as ONNX has it, along each line by one work-item: of equal indices
the last one wins, and sums are the same in each run.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from clnn.errors import DTypeError, ShapeError
from clnn.layout import TensorLayout
from clnn.ops.launch import In, Launch, Out, Variant, grid
from clnn.ops.movement.gather import Pick, constant_indices, in_range
from clnn.ops.movement.views import Concat, Reshape, Slice, copy_launch
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, onnx_op
from clnn.ops.problem import Problem, required
from clnn.ops.shared.element_types import move_type, require
from clnn.ops.shared.loops import GRAIN, Loops, collapse, run_work
from clnn.ops.spec import OpSpec
from clnn.recorded import is_recorded
from clnn.recorded_arrays import is_made
from clnn.records import dataclass
from clnn.target import Target
from clnn.traced import greatest, is_one, least
from clnn.types import BOOL, Array, TensorType, normalise_axis

REDUCTIONS = ("none", "add", "mul", "max", "min")
GPU_ITEMS = 1 << 14  # work-items that keep a GPU busy
_WRAPS = {"int": "uint", "long": "ulong"}  # sums and products wrap
_UFUNC = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
Walk = tuple[int, int, int]  # extent of an axis of updates, its pitch in updates and in indices


@dataclass(frozen=True)
class ScatterElements(OpSpec):
    """Inputs: data, indices, updates of the indices' shape. Each update goes to its index on `axis`.

    reduction: none, or add, mul, max, min with what is there. Of NaN and another number, max and min
    take the update.
    """

    axis: int
    reduction: str = "none"

    kind = "scatter_elements"
    layout_rule = "same"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the type of the data. Raises ShapeError or DTypeError."""
        data, indices, updates = _operands(inputs, self.reduction)
        others = zip(indices.shape, data.shape, strict=False)
        fits = data.rank == indices.rank and 0 <= self.axis < data.rank
        if not fits or any(i > d for a, (i, d) in enumerate(others) if a != self.axis):
            raise ShapeError(
                f"scatter of elements to {data.shape} with indices {indices.shape} along axis "
                f"{self.axis}: ranks must be equal, and no other axis of the indices longer."
            )
        if updates.shape != indices.shape:
            raise ShapeError(f"scatter of updates {updates.shape} by indices {indices.shape}.")
        _not_empty(data.shape[self.axis], indices, data)
        return (data,)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return numpy's assignment, or its unbuffered operation, in the order of the updates."""
        data, indices, updates = (required(inputs, k) for k in range(3))
        place: list[Array] = list(np.indices(indices.shape, sparse=True))
        place[self.axis] = indices.astype(np.int64)
        return (_written(data, tuple(place), updates, self.reduction),)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return the one kernel, for any layouts."""
        dst, indices, updates = _layouts(problem)
        shape, axis = indices.shape, self.axis
        across = [a for a in range(len(shape)) if a != axis]

        def line(layout: TensorLayout) -> TensorLayout:
            extents, pitches = (tuple(row[a] for a in across) for row in (shape, layout.pitches))
            return TensorLayout.of_pitches(extents, pitches)

        loops = collapse([line(updates), line(indices), line(dst)])
        walk = [(shape[axis], updates.pitches[axis], indices.pitches[axis])]
        picks = [(0, dst.shape[axis], dst.pitches[axis])]
        return [_variant(self.kind, self.reduction, problem, loops, walk, picks)]


@dataclass(frozen=True)
class ScatterND(OpSpec):
    """Inputs: data, indices whose last axis holds index tuples into data's first axes, updates.

    Each update, a slice along data's other axes, goes where its tuple says. reduction: as in
    ScatterElements.
    """

    reduction: str = "none"

    kind = "scatter_nd"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the type of the data. Raises ShapeError or DTypeError."""
        data, indices, updates = _operands(inputs, self.reduction)
        depth = indices.shape[-1] if indices.rank else 0
        if not indices.rank or depth > data.rank:
            raise ShapeError(
                f"scatter of tuples {indices.shape} to {data.shape}: they must be as long as some of "
                "its first axes."
            )
        want = (*indices.shape[:-1], *data.shape[depth:])
        if updates.shape != want:
            raise ShapeError(
                f"scatter of updates {updates.shape} by tuples {indices.shape} to {data.shape}: they "
                f"must be {want}."
            )
        for extent in data.shape[:depth]:
            _not_empty(extent, indices, data)
        return (data,)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return numpy's assignment, or its unbuffered operation, in the order of the updates."""
        data, indices, updates = (required(inputs, k) for k in range(3))
        depth = indices.shape[-1]
        rest = updates.shape[indices.ndim - 1 :]
        flat = indices.reshape(prod(indices.shape[:-1]), depth).astype(np.int64)
        tail = np.indices(rest, sparse=True)
        place = [flat[:, k].reshape(-1, *(1 for _ in rest)) for k in range(depth)]
        rows = updates.reshape(len(flat), *rest)
        if depth:
            return (_written(data, (*place, *tail), rows, self.reduction),)
        every = np.zeros((len(flat), *(1 for _ in rest)), np.int64)
        whole = _written(data[None], (every, *tail), rows, self.reduction)
        return (whole[0],)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return the one kernel, for any layouts."""
        dst, indices, updates = _layouts(problem)
        depth, before = indices.shape[-1], len(indices.shape) - 1
        rest = dst.shape[depth:]
        rows = (updates.pitches[before:], (0,) * len(rest), dst.pitches[depth:])
        loops = collapse([TensorLayout.of_pitches(rest, pitches) for pitches in rows])
        axes = zip(indices.shape[:-1], updates.pitches, indices.pitches, strict=False)
        walk = [row for row in axes if not is_one(row[0])]
        step = indices.pitches[-1]
        picks = [(k * step, dst.shape[k], dst.pitches[k]) for k in range(depth)]
        return [_variant(self.kind, self.reduction, problem, loops, walk, picks)]


def _operands(
    inputs: Sequence[TensorType | None], reduction: str
) -> tuple[TensorType, TensorType, TensorType]:
    data, indices, updates = (required(inputs, k) for k in range(3))
    if reduction not in REDUCTIONS:
        raise ShapeError(f"scatter with reduction {reduction!r}: one of {', '.join(REDUCTIONS)}.")
    if indices.dtype.numpy.kind not in "iu":
        raise DTypeError(f"scatter indices are {indices.dtype.name}: they must be integers.")
    if updates.dtype != data.dtype:
        raise DTypeError(f"scatter of {updates.dtype.name} to {data.dtype.name}.")
    if data.dtype == BOOL and reduction in ("max", "min"):
        raise DTypeError(f"scatter with reduction {reduction} of bool is not defined.")
    return data, indices, updates


def _not_empty(extent: int, indices: TensorType, data: TensorType) -> None:
    if extent == 0 and indices.size:
        raise ShapeError(f"scatter of {indices.shape} elements to an empty axis of {data.shape}.")


def _layouts(problem: Problem) -> tuple[TensorLayout, TensorLayout, TensorLayout]:
    return problem.outputs[0].layout, problem.input(1).layout, problem.input(2).layout


def _written(data: Array, place: Any, updates: Array, reduction: str) -> Array:
    out = np.array(data)
    place = tuple(np.broadcast_to(p, updates.shape) for p in place)
    if reduction == "none":
        out[place] = updates
        return out
    either = out.dtype.kind == "f" and bool(np.isnan(out).any() or np.isnan(updates).any())
    if reduction in ("max", "min") and either:
        for at, update in zip(
            zip(*(p.flat for p in place), strict=True), updates.flat, strict=True
        ):
            keep = out[at] > update if reduction == "max" else out[at] < update
            out[at] = out[at] if keep else update
        return out
    _UFUNC[reduction].at(out, place, updates)
    return out


def _variant(
    kind: str,
    reduction: str,
    problem: Problem,
    loops: Loops,
    walk: Sequence[Walk],
    picks: Sequence[Pick],
) -> Variant:
    """Return the copy of the data and the kernel that walks the updates of each line.

    loops: over the lines, of updates, indices and output.
    """
    out, indices, target = problem.outputs[0], problem.input(1), problem.target
    dtype = out.type.dtype
    ctype = move_type(out.memory) if reduction == "none" else dtype.cl
    require(target, f"scatter with reduction {reduction}", ctype)
    if reduction in ("add", "mul"):
        ctype = _WRAPS.get(ctype, ctype)
    shared = loops.has_inner_pitches(1, 0, 1)
    work, lines = _work(loops, target, shared, prod(extent for extent, _, _ in walk))
    places = prod(extent for _, extent, _ in picks)
    segments = 1 if target.is_cpu else least(places, greatest(1, GPU_ITEMS // prod(lines)))
    global_size, local = grid(target, *lines, greatest(1, segments))
    name = f"{kind}_{reduction}_{ctype}_v{work['vw']}"
    params = {
        "name": name,
        "ctype": ctype,
        "index_type": indices.type.dtype.cl,
        "reduction": reduction,
        "logical": dtype == BOOL,
        "walk": tuple(walk),
        "picks": tuple(picks),
        "checked": not in_range(indices.const, picks),
        "segment": 0 if target.is_cpu else -(-places // greatest(1, segments)),
        "shared": shared,
        "wg": local,
        **work,
    }
    args = (In(1), In(2), Out(0))
    launch = Launch("movement/scatter.cl.mako", params, args, global_size, local)
    return Variant(name, (copy_launch(problem, 0, problem.input(0).layout, out.layout), launch))


def _work(
    loops: Loops, target: Target, shared: bool, updates: int
) -> tuple[dict[str, Any], tuple[int, int]]:
    """Return how lines are walked, as run_work does, and (shares of the inner loop, of the rest)."""
    work, _, _ = run_work(loops, target, shared)
    inner, rows = loops.inner, prod(loops.extents[:-1])
    if not shared:
        chunk = least(inner, greatest(1, GRAIN // greatest(1, updates))) if target.is_cpu else 1
        work |= {"chunk": chunk, "last": (-(-inner // chunk) - 1) * chunk, "band": 1}
    return work, (work["last"] // work["chunk"] + 1, -(-rows // work["band"]))


@onnx_op("ScatterElements", "Scatter")
def _scatter_elements(node: OnnxNode) -> Source:
    axis = normalise_axis(int(node.attr("axis", 0)), node.type(0).rank)
    indices = constant_indices(node, [node.type(0).shape[axis]])
    spec = ScatterElements(axis, str(node.attr("reduction", "none")))
    return Emit(spec, [0, 1 if indices is None else indices, 2])


@onnx_op("ScatterND")
def _scatter_nd(node: OnnxNode) -> Source:
    depth = node.type(1).shape[-1] if node.type(1).rank else 0
    limits, spec = node.type(0).shape[:depth], ScatterND(str(node.attr("reduction", "none")))
    if not depth or len(limits) != depth:
        return Emit(spec, [0, 1, 2])
    indices = constant_indices(node, limits)
    if indices is None:
        return Emit(spec, [0, 1, 2])
    spec.infer([node.type(k) for k in range(3)])
    box = _box(node, indices) if spec == ScatterND() else None
    return Emit(spec, [0, indices, 2]) if box is None else _assigned(node.type(0).shape, *box)


def _box(node: OnnxNode, indices: Array) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return where a part of the data begins, and its extents, if constant tuples name all of it in order.

    None for other tuples, and for those that are others where the network has other extents.
    """
    shapes = (node.type(k).shape for k in range(3))
    if is_made(indices) or 1 in node.varying or any(is_recorded(d) for s in shapes for d in s):
        return None
    tuples, rest = indices.reshape(-1, indices.shape[-1]), node.type(0).shape[indices.shape[-1] :]
    if not len(tuples):
        return None
    first = tuples[0]
    extents = tuple(int(d) for d in tuples[-1] - first + 1)
    if min(extents) < 1 or prod(extents) != len(tuples):
        return None
    places = tuples.reshape(*extents, len(extents))
    for axis, (start, extent) in enumerate(zip(first, extents, strict=True)):
        shape = [extent if a == axis else 1 for a in range(len(extents))]
        if not (places[..., axis] == np.arange(start, start + extent).reshape(shape)).all():
            return None
    return (*map(int, first), *(0 for _ in rest)), (*extents, *rest)


def _assigned(shape: tuple[int, ...], starts: Sequence[int], extents: tuple[int, ...]) -> Source:
    """Return data in which updates take the place of a part, joined of what stays and the updates."""
    made: Source = Emit(Reshape(extents), [2])
    inside = list(extents)
    for axis in reversed(range(len(shape))):
        end = starts[axis] + inside[axis]
        members = [made]
        for place, (start, extent) in enumerate(((0, starts[axis]), (end, shape[axis] - end))):
            if extent:
                begin = [*starts[:axis], start, *(0 for _ in shape[axis + 1 :])]
                size = [*inside[:axis], extent, *shape[axis + 1 :]]
                stays = Slice(tuple(begin), tuple(size), (1,) * len(shape))
                members.insert(place * len(members), Emit(stays, [0]))
        inside[axis] = shape[axis]
        made = Emit(Concat(axis), members) if len(members) > 1 else made
    return made

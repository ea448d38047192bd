"""Ops that only rename elements: views where geometry allows, one strided copy elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np

from clnn.errors import DTypeError, ShapeError
from clnn.layout import TensorLayout, reshape_groups
from clnn.ops.launch import In, Launch, Out, Variant, grid
from clnn.ops.problem import Problem, required
from clnn.ops.shared.element_types import move_type
from clnn.ops.shared.elementwise_launch import Walked, walk_launch
from clnn.ops.spec import OpSpec, ViewSpec
from clnn.records import dataclass
from clnn.traced import alike, is_open, other
from clnn.types import Array, TensorType, broadcast_shapes


def copy_variant(problem: Problem, source: TensorLayout, result: TensorLayout) -> Variant:
    """Return the variant that copies input 0, seen as `source`, into output 0, seen as `result`."""
    if problem.outputs[0].aliased or problem.input(0).aliased:
        return Variant("view", ())
    return Variant("copy", (copy_launch(problem, 0, source, result),))


def copy_launch(problem: Problem, index: int, source: TensorLayout, result: TensorLayout) -> Launch:
    """Return the launch that copies input `index`, seen as `source`, into `result` of output 0."""
    out, ctype = problem.outputs[0], move_type(problem.outputs[0].memory)
    read = In(index, source.offset - problem.input(index).layout.offset)
    written = Out(0, result.offset - out.layout.offset)
    walked = Walked(read, source, ctype), Walked(written, result, ctype)
    return walk_launch("copy", walked[:1], walked[1], problem.target)


@dataclass(frozen=True)
class Copy(ViewSpec):
    """The same tensor in another layout."""

    kind = "copy"
    layout_rule = "same"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the input's type."""
        return (required(inputs),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return the input."""
        return (required(inputs),)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return one strided copy."""
        return [copy_variant(problem, problem.input(0).layout, problem.outputs[0].layout)]


@dataclass(frozen=True)
class Transpose(ViewSpec):
    """Axis i of the output is axis perm[i] of the input."""

    perm: tuple[int, ...]

    kind = "transpose"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the permuted type. Raises ShapeError where perm does not fit the rank."""
        source = required(inputs)
        if sorted(self.perm) != list(range(source.rank)):
            raise ShapeError(f"perm {self.perm} does not fit shape {source.shape}.")
        return (TensorType(tuple(source.shape[a] for a in self.perm), source.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return numpy's transpose."""
        return (np.transpose(required(inputs), self.perm),)

    def forward(self, source: TensorLayout) -> TensorLayout | None:
        """Return the permuted view."""
        return source.transpose(self.perm)

    def inside(self, inputs: Sequence[TensorType | None]) -> Sequence[ViewSpec | None]:
        """Return the view of the output with the axes back in the input's order."""
        return (Transpose(tuple(int(a) for a in np.argsort(self.perm))),)

    def split_batch(
        self, inputs: Sequence[TensorType | None], count: int
    ) -> tuple[OpSpec, tuple[int, ...]] | None:
        """Return the op as it is, where the first axis keeps its place."""
        return (self, (0,)) if self.perm[:1] == (0,) else None

    def variants(self, problem: Problem) -> list[Variant]:
        """Return one strided copy."""
        source = problem.input(0).layout.transpose(self.perm)
        return [copy_variant(problem, source, problem.outputs[0].layout)]


@dataclass(frozen=True)
class Reshape(ViewSpec):
    """The same elements in row-major order under another shape."""

    shape: tuple[int, ...]

    kind = "reshape"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the type with the new shape. Raises ShapeError where element counts differ."""
        source = required(inputs)
        if math.prod(self.shape) != source.size:
            raise ShapeError(f"cannot reshape {source.shape} to {self.shape}: counts differ.")
        return (TensorType(self.shape, source.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return numpy's reshape."""
        return (required(inputs).reshape(self.shape),)

    def forward(self, source: TensorLayout) -> TensorLayout | None:
        """Return the view, or None where elements are not evenly spaced."""
        return source.reshape(self.shape)

    def inside(self, inputs: Sequence[TensorType | None]) -> Sequence[ViewSpec | None]:
        """Return the output seen with the input's shape."""
        return (Reshape(required(inputs).shape),)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return a strided copy over the common refinement, else one that decodes flat indices."""
        source, out = problem.input(0), problem.outputs[0]
        fine = refine(source.type.shape, self.shape)
        if fine is not None:
            seen = source.layout.unpadded().reshape(fine)
            written = out.layout.unpadded().reshape(fine)
            if seen is not None and written is not None:
                return [copy_variant(problem, seen, written)]
        if out.aliased or source.aliased:
            return [Variant("view", ())]
        return [_flat_copy(problem)]


def refine(old: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the shape that both split into, or None where the cuts do not nest."""
    if 0 in old:
        return None
    fine = _refine(old, new)
    if fine is None and any(map(is_open, (*old, *new))):
        return _refine([*map(int, old)], [*map(int, new)])
    return fine


def _refine(old: Sequence[int], new: Sequence[int]) -> tuple[int, ...] | None:
    """Return that of extents where it is the same at the network's other shape."""
    fine: list[int] = []
    for olds, news in reshape_groups(old, new):
        left, right = list(olds), list(news)
        cuts = {1: 1}  # by what they are at the other shape
        for shape, axes in ((old, left), (new, right)):
            run = 1
            for axis in reversed(axes):
                run *= shape[axis]
                cuts.setdefault(other(run), run)
        ordered = [cuts[there] for there in sorted(cuts)]
        steps = [b // a for a, b in pairwise(ordered) if alike(b % a, 0)]
        if len(steps) != len(ordered) - 1:
            return None
        fine += reversed(steps)
    return tuple(fine) if math.prod(fine) == math.prod(old) else None


def _flat_copy(problem: Problem) -> Variant:
    source, out = problem.input(0), problem.outputs[0]
    global_size, local = grid(problem.target, source.type.size)
    params = {
        "name": "copy_flat",
        "ctype": move_type(out.memory),
        "src": source.layout,
        "dst": out.layout,
        "count": source.type.size,
        "wg": local,
    }
    launch = Launch("movement/copy_flat.cl.mako", params, (In(0), Out(0)), global_size, local)
    return Variant("copy_flat", (launch,))


@dataclass(frozen=True)
class Slice(ViewSpec):
    """Along each axis: `extents` indices from `starts` on, `steps` (maybe negative) apart."""

    starts: tuple[int, ...]
    extents: tuple[int, ...]
    steps: tuple[int, ...]

    kind = "slice"
    layout_rule = "same"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the type of the part. Raises ShapeError where it leaves the tensor."""
        source = required(inputs)
        view = TensorLayout.make(source.shape)
        for axis in range(source.rank):
            view = view.slice(axis, self.starts[axis], self.extents[axis], self.steps[axis])
        return (TensorType(self.extents, source.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return the part by index arrays."""
        x = required(inputs)
        for axis, (start, extent, step) in enumerate(
            zip(self.starts, self.extents, self.steps, strict=True)
        ):
            x = np.take(x, start + step * np.arange(extent), axis=axis)
        return (x,)

    def forward(self, source: TensorLayout) -> TensorLayout | None:
        """Return the sliced view."""
        whole = tuple((0, extent, 1) for extent in source.shape)
        parts = zip(self.starts, self.extents, self.steps, strict=True)
        for axis, part in enumerate(parts):
            if part != whole[axis]:
                source = source.slice(axis, *part)
        return source

    def split_batch(
        self, inputs: Sequence[TensorType | None], count: int
    ) -> tuple[OpSpec, tuple[int, ...]] | None:
        """Return the op for some images, where it takes all of them as they are."""
        source = required(inputs)
        if not source.rank or (self.starts[0], self.extents[0]) != (0, source.shape[0]):
            return None
        return replace(self, extents=(count, *self.extents[1:])), (0,)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return one strided copy."""
        view = self.forward(problem.input(0).layout)
        assert view is not None
        return [copy_variant(problem, view, problem.outputs[0].layout)]


@dataclass(frozen=True)
class Expand(ViewSpec):
    """The input broadcast to `shape`; reads of a stretched axis meet the same element."""

    shape: tuple[int, ...]

    kind = "expand"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the broadcast type. Raises ShapeError where it does not broadcast to shape."""
        source = required(inputs)
        if broadcast_shapes(source.shape, self.shape) != self.shape:
            raise ShapeError(f"cannot expand {source.shape} to {self.shape}.")
        return (TensorType(self.shape, source.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return numpy's broadcast."""
        return (np.broadcast_to(required(inputs), self.shape),)

    def forward(self, source: TensorLayout) -> TensorLayout | None:
        """Return the view with pitch 0 on stretched axes."""
        return source.broadcast(self.shape)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return one strided copy."""
        view = problem.input(0).layout.broadcast(self.shape)
        return [copy_variant(problem, view, problem.outputs[0].layout)]


@dataclass(frozen=True)
class Concat(ViewSpec):
    """Inputs one after the other along `axis`; an input placed inside the output is not copied.

    mixed: inputs of equal extents take turns instead, index k of input i becomes k * inputs + i: a
    concatenation with a channel shuffle behind it.
    """

    axis: int
    mixed: bool = False

    kind = "concat"
    layout_rule = "same"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the joined type. Raises ShapeError or DTypeError where inputs do not fit."""
        first = required(inputs)
        total = 0
        for place, member in enumerate(t for t in inputs if t is not None):
            rest = [d for a, d in enumerate(member.shape) if a != self.axis]
            if rest != [d for a, d in enumerate(first.shape) if a != self.axis]:
                raise ShapeError(
                    f"concat along axis {self.axis}: input {place} is {member.shape}, input 0 is "
                    f"{first.shape}; all other axes must be equal."
                )
            if member.dtype != first.dtype:
                raise DTypeError(f"concat of {first.dtype.name} and {member.dtype.name}.")
            if self.mixed and member.shape != first.shape:
                raise ShapeError(
                    f"mixed concat of {first.shape} and {member.shape}: must be equal."
                )
            total += member.shape[self.axis]
        shape = (*first.shape[: self.axis], total, *first.shape[self.axis + 1 :])
        return (TensorType(shape, first.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return numpy's concatenate, or stack between the indices along the axis where mixed."""
        members = [x for x in inputs if x is not None]
        if not self.mixed:
            return (np.concatenate(members, axis=self.axis),)
        shape = list(members[0].shape)
        shape[self.axis] *= len(members)
        return (np.stack(members, axis=self.axis + 1).reshape(shape),)

    def split_batch(
        self, inputs: Sequence[TensorType | None], count: int
    ) -> tuple[OpSpec, tuple[int, ...]] | None:
        """Return the op as it is, for some images of all inputs, along another axis than theirs."""
        return (self, tuple(range(len(inputs)))) if self.axis else None

    def inside(self, inputs: Sequence[TensorType | None]) -> Sequence[ViewSpec | None]:
        """Return the slice of the output that each input is."""
        (result,) = self.infer(inputs)
        extents = [0 if t is None else t.shape[self.axis] for t in inputs]
        count = len(extents)
        starts = range(count) if self.mixed else accumulate(extents[:-1], initial=0)
        step = count if self.mixed else 1
        return [
            slice_of(result.shape, self.axis, start, extent, step)
            for start, extent in zip(starts, extents, strict=True)
        ]

    def variants(self, problem: Problem) -> list[Variant]:
        """Return one copy for each input that does not lie inside the output already."""
        if all(o is None or o.aliased for o in problem.inputs):
            return [Variant("view", ())]
        places = self.inside([None if o is None else o.type for o in problem.inputs])
        launches = []
        for index, (operand, view) in enumerate(zip(problem.inputs, places, strict=True)):
            if operand is None or operand.aliased or not operand.type.size or view is None:
                continue
            place = view.forward(problem.outputs[0].layout)
            assert place is not None
            launches.append(copy_launch(problem, index, operand.layout, place))
        return [Variant("concat" if launches else "view", tuple(launches))]


def slice_of(shape: tuple[int, ...], axis: int, start: int, extent: int, step: int = 1) -> Slice:
    """Return the Slice of `extent` indices from `start` on along one axis, `step` apart."""

    def along(value: int, others: Sequence[int]) -> tuple[int, ...]:
        return (*others[:axis], value, *others[axis + 1 :])

    rank = len(shape)
    return Slice(along(start, (0,) * rank), along(extent, shape), along(step, (1,) * rank))

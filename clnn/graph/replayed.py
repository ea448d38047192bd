"""The graphs of one network at many extents: read once, and built from notes of that for others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar
from weakref import WeakMethod

import numpy as np

from clnn.graph.ir import Graph
from clnn.recorded import is_recorded
from clnn.recorded_arrays import is_made
from clnn.records import changed
from clnn.replays import Later, Replays, at_once
from clnn.settings import setting
from clnn.types import Array

T = TypeVar("T")
Shapes = Mapping[str, tuple[int, ...]]
Dims = Mapping[str, "tuple[int | str, ...] | None"]


class OfShapes(Generic[T]):
    """A function of inputs' shapes, whose results are built from notes (clnn.recorded).

    dims: of each input, numbers and names, as the model has them. The function is given extents that
    are noted, and depends on shapes and limits alone. later: as in clnn.replays.Replays.
    """

    def __init__(self, make: Callable[[Shapes], T], dims: Dims, later: Later) -> None:
        self._make, self._dims, self._later = make, dims, later
        self._replays: dict[object, Replays[T]] = {}

    def __call__(self, shapes: Shapes) -> T:
        """Return what the function does. Raises as that does."""
        return self._of(shapes)(_extents(shapes))

    def note(self, shapes: Shapes) -> None:
        """Take notes at once of the way that the function goes for shapes."""
        self._of(shapes).record(_extents(shapes))

    def _of(self, shapes: Shapes) -> Replays[T]:
        ranks = tuple((name, len(shape)) for name, shape in shapes.items())
        replays = self._replays.get(key := (setting("CLNN_MAX_BYTES"), ranks))
        if replays is None:
            replays = Replays(lambda numbers: self._made(ranks, numbers), self._later)
            self._replays = {key: replays}
        return replays

    def _made(self, ranks: Sequence[tuple[str, int]], numbers: Sequence[int]) -> T:
        """Return the result for extents in the order of inputs, of which open ones may be noted."""
        extents, shapes = iter(numbers), {}
        for name, rank in ranks:
            dims = self._dims.get(name) or ("",) * rank
            shapes[name] = tuple(
                next(extents) if isinstance(dim, str) else int(next(extents)) for dim in dims
            )
        return self._make(shapes)


class Graphs:
    """What `make` returns for shapes of inputs, which depends on them alone.

    The first graph is made as it is; notes are taken from the second on. Constants that graphs of
    several ways have alike are kept once.
    """

    def __init__(self, make: Callable[[Shapes], Graph], dims: Dims) -> None:
        self._make, self.dims = make, dims
        self._deferred: Callable[[], Later | None] = lambda: at_once
        self._of_shapes = OfShapes(self._made, dims, self.later)
        self._consts: Mapping[str, Array] | None = None

    def at(self, shapes: Shapes) -> Graph:
        """Return the graph for inputs of these shapes, of which extents may be noted. Raises as `make` does."""
        if self._consts is not None:
            return (self._made if _is_noted(shapes) else self._of_shapes)(shapes)
        graph = self._make(shapes)
        self._consts = graph.consts
        return graph

    def note(self, shapes: Shapes) -> None:
        """Take notes at once of the way that is gone for shapes."""
        if self._consts is not None:
            self._of_shapes.note(shapes)

    def defer(self, later: Later) -> None:
        """Have notes taken by a method of an object, for as long as that is there."""
        self._deferred = WeakMethod(later)

    def later(self, work: Callable[[], None]) -> None:
        """Have notes taken: now, or as `defer` says."""
        if (later := self._deferred()) is not None:
            later(work)

    def forget(self) -> None:
        """Forget all notes."""
        self._of_shapes = OfShapes(self._made, self.dims, self.later)

    def _made(self, shapes: Shapes) -> Graph:
        graph, known = self._make(shapes), self._consts or {}
        if not _is_noted(shapes):
            return graph
        consts = {name: _same(array, known.get(name)) for name, array in graph.consts.items()}
        return changed(graph, consts=consts)


def _extents(shapes: Shapes) -> list[int]:
    return [extent for shape in shapes.values() for extent in shape]


def _is_noted(shapes: Shapes) -> bool:
    return any(map(is_recorded, _extents(shapes)))


def _same(array: Array, known: Array | None) -> Array:
    """Return the array that is known where it has the same bytes."""
    if known is None or known is array or is_made(array):
        return array
    is_alike = known.dtype == array.dtype and known.shape == array.shape
    return known if is_alike and np.array_equal(_bytes(known), _bytes(array)) else array


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)

"""The graphs of one network at many extents: read once, and built from notes of that for others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from clnn.graph.ir import Graph
from clnn.recorded import Replays, is_recorded
from clnn.records import changed
from clnn.settings import setting
from clnn.types import Array

Shapes = Mapping[str, tuple[int, ...]]
Dims = Mapping[str, "tuple[int | str, ...] | None"]


class Graphs:
    """What `make` returns for shapes of inputs, which depends on them alone.

    dims: of each input, numbers and names, as the model has them. The first graph is made as it is;
    notes are taken from the second on. Constants that graphs of several ways have alike are kept once.
    """

    def __init__(self, make: Callable[[Shapes], Graph], dims: Dims) -> None:
        self._make, self._dims = make, dims
        self._replays: dict[object, Replays[Graph]] = {}
        self._consts: Mapping[str, Array] | None = None

    def at(self, shapes: Shapes) -> Graph:
        """Return the graph for inputs of these shapes. Raises as `make` does."""
        if self._consts is None:
            graph = self._make(shapes)
            self._consts = graph.consts
            return graph
        ranks = tuple((name, len(shape)) for name, shape in shapes.items())
        replays = self._replays.get(key := (setting("CLNN_MAX_BYTES"), ranks))
        if replays is None:
            replays = Replays(lambda numbers: self._graph(ranks, numbers))
            self._replays = {key: replays}
        return replays([extent for shape in shapes.values() for extent in shape])

    def forget(self) -> None:
        """Forget all notes."""
        self._replays = {}

    def _graph(self, ranks: Sequence[tuple[str, int]], numbers: Sequence[int]) -> Graph:
        """Return the graph for extents in the order of inputs; those that are open may be noted."""
        extents, shapes = iter(numbers), {}
        for name, rank in ranks:
            dims = self._dims.get(name) or ("",) * rank
            shapes[name] = tuple(
                next(extents) if isinstance(dim, str) else int(next(extents)) for dim in dims
            )
        graph = self._make(shapes)
        if not any(map(is_recorded, numbers)):
            return graph
        known = self._consts or {}
        return changed(
            graph, consts={k: _same(array, known.get(k)) for k, array in graph.consts.items()}
        )


def _same(array: Array, known: Array | None) -> Array:
    """Return the array that is known where it has the same bytes."""
    if known is None or known is array:
        return array
    is_alike = known.dtype == array.dtype and known.shape == array.shape
    return known if is_alike and np.array_equal(_bytes(known), _bytes(array)) else array


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)

"""Tensors and their views as values of a graph: who wrote which box, joined where it is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from clnn.apis.openvx.tensor import NUMPY, Box, Store, Tensor
from clnn.apis.openvx.topology import overlap
from clnn.graph.builder import GraphBuilder
from clnn.ops.elementwise.cast import Cast
from clnn.ops.movement.views import Concat, Slice
from clnn.types import I32, Array, TensorType, dtype_of

Watch = tuple[Callable[[], Any], Any]
IMAGE = 4  # axes of a value that holds a tensor of three dimensions


def shape_of(dims: Sequence[int]) -> tuple[int, ...]:
    """Return the shape that a graph holds a tensor in: of three dimensions, as (1, c, h, w)."""
    shape = tuple(dims[::-1])
    return (1, *shape) if len(shape) == IMAGE - 1 else shape


def extents(box: Box) -> tuple[int, ...]:
    """Return the extents of a box, innermost first."""
    return tuple(end - start for start, end in box)


class TensorBuilder(GraphBuilder):
    """A builder that knows which value each box of a store holds in the course of the graph.

    sources: what feeds each input. outputs: for each public name, the value and the tensor that it
    goes to. pieces: for each store, the boxes written so far and their values. watches: what
    constants were made from: a function that gives its present state, and the state that was used.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sources: dict[str, tuple[Store, Box]] = {}
        self.outputs: dict[str, tuple[str, Tensor]] = {}
        self.pieces: dict[Store, list[tuple[Box, str]]] = {}
        self.watches: list[Watch] = []

    def watch(self, state: Callable[[], Any]) -> Any:
        """Return the present state of something that a constant is made from, and note it."""
        now = state()
        self.watches.append((state, now))
        return now

    def cut(self, value: str, starts: tuple[int, ...], stops: tuple[int, ...]) -> str:
        """Return a part of a value."""
        shape = self.shape(value)
        if stops == shape and not any(starts):
            return value
        if value in self.consts:
            cut = tuple(slice(a, b) for a, b in zip(starts, stops, strict=True))
            return self.const(self.consts[value][cut])
        sizes = tuple(b - a for a, b in zip(starts, stops, strict=True))
        return self.add(Slice(starts, sizes, (1,) * len(shape)), value)

    def fixed(self, tensor: Tensor) -> Array | None:
        """Return a tensor's elements where no node of the graph writes any of them, else None."""
        pieces = self.pieces.get(tensor.store, ())
        if tensor.virtual or any(overlap(tensor.place, box) for box, _ in pieces):
            return None
        store = tensor.store
        self.watch(lambda: store.version)
        return store.part(tensor.place).copy()

    def read(self, tensor: Tensor) -> str:
        """Return a tensor's elements as they are now in the course of the graph."""
        return self._compose(tensor.store, tensor.place)

    def initial(self, tensor: Tensor) -> str:
        """Return the elements that a non-virtual tensor holds when the graph starts."""
        return self._feed(tensor.store, tensor.place)

    def write(self, tensor: Tensor, value: str) -> None:
        """Let a tensor be `value` from now on; a tensor that is not virtual becomes an output."""
        value = self.reshape(value, shape_of(tensor.dims))
        if not tensor.virtual:
            self.outputs[f"o{len(self.outputs)}"] = (value, tensor)
        self.pieces.setdefault(tensor.store, []).append((tensor.place, value))

    def _feed(self, store: Store, box: Box) -> str:
        for value, source in self.sources.items():
            if source == (store, box):
                return value
        value = self.input("in", TensorType(shape_of(extents(box)), dtype_of(NUMPY[store.kind])))
        self.sources[value] = (store, box)
        return value

    def _compose(self, store: Store, box: Box) -> str:
        """Return the value of a box, joined from what was written and what was there before."""
        pieces = [(b, v) for b, v in self.pieces.get(store, ()) if overlap(b, box)]
        if not pieces:
            return self._feed(store, box)
        piece, value = pieces[0]
        pairs = list(zip(piece, box, strict=True))
        if all(low <= start and end <= high for (low, high), (start, end) in pairs):
            stops = shape_of([end - low for (low, _), (_, end) in pairs])
            starts = [start - low for (low, _), (start, _) in pairs]
            starts += [0] * (len(stops) - len(starts))
            return self.cut(value, tuple(starts[::-1]), stops)
        axis, places = best_cuts(box, [b for b, _ in pieces])
        edges = [box[axis][0], *places, box[axis][1]]
        parts = [
            self._compose(store, (*box[:axis], (a, b), *box[axis + 1 :]))
            for a, b in pairwise(edges)
        ]
        return self.add(Concat(len(shape_of(extents(box))) - 1 - axis), *parts)

    def int32(self, tensor: Tensor, shape: tuple[int, ...]) -> str:
        """Return a tensor as int32 under another shape: a constant where it can be one."""
        array = self.fixed(tensor)
        if array is not None:
            return self.const(array.astype(np.int32).reshape(shape))
        return self.reshape(self.add(Cast(I32), self.read(tensor)), shape)

    def weights(self, tensor: Tensor) -> str:
        """Return a tensor as a constant where it can be one, else as it is computed."""
        array = self.fixed(tensor)
        return self.read(tensor) if array is None else self.const(array)


def best_cuts(box: Box, parts: list[Box]) -> tuple[int, list[int]]:
    """Return a dimension and the places along it where a box is cut, so that few parts are.

    Some part must overlap the box and not hold all of it.
    """
    best: tuple[int, int, list[int]] | None = None
    for axis, (start, end) in enumerate(box):
        edges = sorted({e for part in parts for e in part[axis] if start < e < end})
        for place in edges:
            crossed = sum(part[axis][0] < place < part[axis][1] for part in parts)
            if best is None or crossed < best[0]:
                best = (crossed, axis, [place])
            elif crossed == 0 == best[0] and axis == best[1]:
                best[2].append(place)
    assert best is not None, "a part holds the whole box"
    return best[1], best[2]

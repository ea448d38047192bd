"""Input data for comparisons and measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from clnn.errors import ShapeError
from clnn.graph.ir import Graph
from clnn.records import dataclass
from clnn.runtime.run.open_ports import OpenTensorInfo
from clnn.types import Array


class Input(Protocol):
    """What is asked of an input: name, shape and numpy dtype."""

    @property
    def name(self) -> str:
        """Name of the input."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of its axes."""

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Element type."""


@dataclass(frozen=True)
class InputOf:
    """An input of a graph."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]


def inputs_of(graph: Graph) -> list[InputOf]:
    """Return the inputs of a graph."""
    types = [(name, graph.types[name]) for name in graph.inputs]
    return [InputOf(name, t.shape, t.dtype.numpy) for name, t in types]


def closed_inputs(infos: Sequence[OpenTensorInfo], known: Mapping[str, Array]) -> list[InputOf]:
    """Return the inputs that are not `known`. Raises ShapeError where one of them is open."""
    found = []
    for info in infos:
        if info.name in known:
            continue
        shape = tuple(d for d in info.shape or () if isinstance(d, int))
        if info.dtype is None or info.shape is None or len(shape) < len(info.shape):
            raise ShapeError(
                f"input {info.name!r} is {info.shape}: give the extents that are open in `shapes`, or "
                "the input in `feeds`."
            )
        found.append(InputOf(info.name, shape, info.dtype))
    return found


def random_feeds(
    inputs: Sequence[Input], seed: int = 0, known: Mapping[str, Array] | None = None
) -> dict[str, Array]:
    """Return an array for every input: the `known` one, else a random one.

    Random floats come from a normal distribution; 8-bit integers cover their range, wider ones
    are 0 or 1 (they are mostly indices and masks). Names in `known` that are no inputs stay.
    """
    feeds = dict(known or {})
    for number, port in enumerate(inputs):
        if port.name not in feeds:
            rng = np.random.default_rng([seed, number])
            feeds[port.name] = _random(rng, port.shape, port.dtype)
    return feeds


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    if dtype.itemsize == 1 and dtype.kind in "iu":
        low, high = (-128, 127) if dtype.kind == "i" else (0, 255)
        return rng.integers(low, high, shape, endpoint=True).astype(dtype)
    return rng.integers(0, 2, shape).astype(dtype)

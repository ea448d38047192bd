"""Open extents of random networks: names for axes of inputs, and feeds of other extents, call after call.

Extents grow, shrink to 1, and a batch may be empty; two axes of one extent may have one name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from drawing import Feeds

Dims = dict[tuple[str, int], str]  # input and axis -> name
MOST = 13


def names(feeds: Feeds, chance: np.random.Generator) -> Dims:
    """Return names for some axes of images and rows, never for channels; one at least for each input.

    The axes of an image that is a square have one name, at times.
    """
    dims: Dims = {}
    for name, array in feeds.items():
        axes = [axis for axis in range(array.ndim) if axis != 1]
        picked = [axis for axis in axes if chance.random() < 0.7] or axes[:1]
        square = array.shape[2:3] == array.shape[3:4] and chance.random() < 0.7
        for axis in picked:
            dims[name, axis] = f"{name}_side" if square and axis >= 2 else f"{name}_{axis}"
    return dims


def square(feeds: Feeds) -> Feeds:
    """Return feeds with images cut or repeated to squares."""
    return {
        name: a if a.ndim < 4 else np.resize(a, (*a.shape[:2], *[a.shape[2]] * 2))
        for name, a in feeds.items()
    }


def with_names(model: onnx.ModelProto, dims: Mapping[tuple[str, int], str]) -> onnx.ModelProto:
    """Return a model whose inputs have these axes open, and whose outputs have no shape."""
    opened = onnx.ModelProto.FromString(model.SerializeToString())
    for value in opened.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if (value.name, axis) in dims:
                dim.dim_param = dims[value.name, axis]
    for value in opened.graph.output if dims else ():
        value.type.tensor_type.ClearField("shape")
    return opened


def feeds_of_others(
    first: Feeds, dims: Dims, chance: np.random.Generator, takes: Callable[[Feeds], bool]
) -> list[Feeds]:
    """Return feeds of larger extents, of ones, of an empty batch, of any: those that `takes` takes."""
    extents = {dim: first[name].shape[axis] for (name, axis), dim in dims.items()}
    batches = {dim for (_, axis), dim in dims.items() if axis == 0}
    rows = [
        {dim: extent + int(chance.integers(1, 9)) for dim, extent in extents.items()},
        {dim: 1 if chance.random() < 0.7 else extent for dim, extent in extents.items()},
        {dim: 0 if dim in batches else extent for dim, extent in extents.items()},
        {dim: int(chance.integers(1, MOST)) for dim in extents},
    ]
    return [feeds for row in rows if takes(feeds := _numbers(first, dims, row, chance))]


def _numbers(
    first: Feeds, dims: Dims, extents: Mapping[str, int], chance: np.random.Generator
) -> Feeds:
    """Return multiples of 1/8 of other extents."""
    made: Feeds = {}
    for name, array in first.items():
        sizes = [
            extents[dims[name, axis]] if (name, axis) in dims else extent
            for axis, extent in enumerate(array.shape)
        ]
        made[name] = np.asarray(chance.integers(-16, 17, sizes) / 8, array.dtype)
    return made

"""Inputs and outputs of a model with open dimensions: which shapes fit them, and how the cache has them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clnn.errors import ShapeError
from clnn.records import dataclass


@dataclass(frozen=True)
class OpenTensorInfo:
    """An input or output of a model with open dimensions: numbers, and names of open ones.

    shape, dtype: None where the model does not say it.
    """

    name: str
    shape: tuple[int | str, ...] | None
    dtype: np.dtype[Any] | None


def check_shapes(inputs: Sequence[OpenTensorInfo], shapes: Sequence[tuple[int, ...]]) -> None:
    """Raise ShapeError where shapes of inputs do not fit the model or each other."""
    extents: dict[str, tuple[int, str]] = {}
    for info, shape in zip(inputs, shapes, strict=True):
        if info.shape is None:
            continue
        if len(shape) != len(info.shape):
            raise ShapeError(
                f"input {info.name!r} is {shape}, model wants {info.shape}: it has {len(shape)} "
                f"axes, must have {len(info.shape)}."
            )
        for axis, (got, want) in enumerate(zip(shape, info.shape, strict=True)):
            if isinstance(want, int) and got != want:
                raise ShapeError(
                    f"input {info.name!r} is {shape}, model wants {info.shape}: axis {axis} is "
                    f"{got}, must be {want}."
                )
            if isinstance(want, str) and extents.setdefault(want, (got, info.name))[0] != got:
                other, where = extents[want]
                raise ShapeError(
                    f"dimension {want!r} is {got} in input {info.name!r} and {other} in input "
                    f"{where!r}. One dimension has one extent."
                )


@dataclass(frozen=True)
class KnownPorts:
    """Inputs and outputs of a model, and the shapes of inputs at which its kernels were chosen.

    deciding: inputs whose values decide what runs.
    """

    inputs: Sequence[OpenTensorInfo]
    outputs: Sequence[OpenTensorInfo]
    first: Mapping[str, tuple[int, ...]]
    deciding: Sequence[str] = ()

    def written(self) -> bytes:
        """Return them as bytes."""
        sides = self.inputs, self.outputs
        rows = [[[p.name, p.shape, p.dtype and p.dtype.name] for p in side] for side in sides]
        return json.dumps([*rows, self.first, self.deciding]).encode()

    @staticmethod
    def read(data: bytes) -> KnownPorts | None:
        """Return what `written` wrote, None for anything else."""
        try:
            *sides, first, deciding = json.loads(data)
            inputs, outputs = ([_port(*row) for row in side] for side in sides)
            shapes = {n: tuple(map(int, s)) for n, s in first.items()}
            return KnownPorts(inputs, outputs, shapes, [*map(str, deciding)])
        except (ValueError, TypeError, AttributeError):
            return None


def _port(name: str, shape: Sequence[int | str] | None, dtype: str | None) -> OpenTensorInfo:
    dims = None if shape is None else tuple(n if isinstance(n, int) else str(n) for n in shape)
    return OpenTensorInfo(str(name), dims, None if dtype is None else _dtype(dtype))


def _dtype(name: Any) -> np.dtype[Any]:
    if name == "bfloat16":
        from ml_dtypes import bfloat16

        name = bfloat16
    made: np.dtype[Any] = np.dtype(name)
    return made

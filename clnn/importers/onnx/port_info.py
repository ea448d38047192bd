"""What a model says of its inputs and outputs, as records that the cache has between processes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clnn.records import dataclass

Dims = tuple["int | str | None", ...]


@dataclass(frozen=True)
class PortInfo:
    """An input or output. kind: "tensor", "sequence", "optional", "map" or "sparse_tensor".

    type: such as "tensor(float)". dims: numbers, names, None for unknown; None where no shape is
    given. dtype: of a tensor, or of the tensors in a sequence; None where numpy has no such type.
    """

    name: str
    kind: str
    type: str
    dims: Dims | None
    dtype: np.dtype[Any] | None
    elem_type: int = 0
    denotations: tuple[str, ...] = ()


@dataclass(frozen=True)
class Interface:
    """A model's ports and head data. overridable: inputs that have a default in the file."""

    inputs: tuple[PortInfo, ...]
    outputs: tuple[PortInfo, ...]
    overridable: tuple[PortInfo, ...]
    metadata: Mapping[str, str]
    head: Mapping[str, Any]


@dataclass(frozen=True)
class Known:
    """An interface that was read and checked, and its outputs with shapes inferred from nodes."""

    interface: Interface
    outputs: tuple[PortInfo, ...]

    def written(self) -> bytes:
        """Return it as bytes."""
        i = self.interface
        sides = [
            [*map(_row, ports)] for ports in (i.inputs, i.outputs, i.overridable, self.outputs)
        ]
        return json.dumps([sides, dict(i.metadata), dict(i.head)]).encode()

    @staticmethod
    def read(data: bytes) -> Known | None:
        """Return what `written` wrote, None for anything else."""
        try:
            sides, metadata, head = json.loads(data)
            ins, outs, free, inferred = (tuple(map(_port, side)) for side in sides)
            return Known(Interface(ins, outs, free, metadata, head), inferred)
        except (ValueError, TypeError):
            return None


def _row(port: PortInfo) -> list[Any]:
    dtype = None if port.dtype is None else port.dtype.name
    return [port.name, port.kind, port.type, port.dims, dtype, port.elem_type, port.denotations]


def _port(row: Sequence[Any]) -> PortInfo:
    name, kind, text, dims, dtype, elem, denoted = row
    shape = None if dims is None else tuple(dims)
    return PortInfo(name, kind, text, shape, _dtype(dtype), elem, tuple(denoted))


def _dtype(name: str | None) -> np.dtype[Any] | None:
    """Return a type by name. Raises TypeError, also for types that others than numpy define."""
    return None if name is None else np.dtype(name)

"""What parting knows of each value of a graph: where it is, from when on, and its type."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import field

import onnx
from onnx import numpy_helper

from clnn.importers.onnx.stages.program import StageInput
from clnn.importers.onnx.tensors import TensorReader
from clnn.records import dataclass
from clnn.types import Array

LARGE = 2**22  # bytes
SMALL = 64  # elements of a constant that a loop begins with and the host may carry


@dataclass(frozen=True)
class Known:
    """One value.

    place: "const"; "shape" (arithmetic on shapes: it can be had wherever these are known); "host"
    (numpy made it); "fed" (given from outside); "device". level: number of the device stage that
    makes it, or after which the host does. leaves: of "shape", the values whose shapes it is from.
    """

    place: str
    level: int = 0
    leaves: frozenset[str] = frozenset()
    type: StageInput | None = None

    @property
    def is_here(self) -> bool:
        """Whether the host has it without a read of device memory."""
        return self.place != "device"

    @property
    def is_large(self) -> bool:
        """Whether it is known to be too large to be read back where that can be avoided."""
        if self.type is None or not self.type.is_static:
            return False
        extents = [int(d) for d in self.type.shape or ()]
        return bool(math.prod(extents) * self.type.dtype.itemsize > LARGE)

    @property
    def has_shape(self) -> bool:
        """Whether arithmetic on shapes may begin with it."""
        return self.place in ("host", "fed", "device")


@dataclass
class Constants:
    """Constants of a graph and of those around it, as arrays and as tensors of a model."""

    reader: TensorReader
    tensors: dict[str, onnx.TensorProto] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)
    parent: Constants | None = None
    hidden: frozenset[str] = frozenset()

    def knows(self, name: str) -> bool:
        """Whether a name stands for a constant here."""
        if name in self.tensors or name in self.arrays:
            return True
        return name not in self.hidden and self.parent is not None and self.parent.knows(name)

    def array(self, name: str) -> Array:
        """Return a constant's data."""
        if name in self.arrays:
            return self.arrays[name]
        if name in self.tensors:
            self.arrays[name] = self.reader.array(self.tensors[name])
            return self.arrays[name]
        assert self.parent is not None, name
        return self.parent.array(name)

    def tensor(self, name: str) -> onnx.TensorProto:
        """Return a constant as a tensor with its data inside."""
        found = self.tensors.get(name)
        if found is not None and found.data_location != onnx.TensorProto.EXTERNAL:
            return found
        if found is None and name not in self.arrays and self.parent is not None:
            return self.parent.tensor(name)
        return numpy_helper.from_array(self.array(name), name)

    def is_text(self, name: str) -> bool:
        """Whether a constant is text."""
        tensor = self.tensors.get(name)
        if tensor is not None:
            return bool(tensor.data_type == onnx.TensorProto.STRING)
        if name not in self.arrays and self.parent is not None:
            return self.parent.is_text(name)
        return self.array(name).dtype.kind == "O"

    def size(self, name: str) -> int:
        """Return how many elements a constant has."""
        return int(self.array(name).size)


def leaves_of(names: Iterable[str], values: Mapping[str, Known]) -> frozenset[str]:
    """Return the values whose shapes arithmetic on `names` comes from."""
    found: frozenset[str] = frozenset()
    for name in names:
        if name:
            found |= values[name].leaves
    return found

"""A node with all that kernels are made from: operands with layouts and borders, and the target."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import cached_property
from typing import TypeVar

import numpy as np

from clnn.errors import ShapeError
from clnn.layout import TensorLayout
from clnn.ops.launch import Const
from clnn.records import dataclass
from clnn.target import Target
from clnn.types import Array, DType, TensorType, dtype_of, narrow

T = TypeVar("T")

# id -> array and its largest magnitude: plans for other extents have the same weights.
_known: dict[int, tuple[weakref.ref[Array], float]] = {}


def _largest(array: Array) -> float:
    place = id(array)
    found = _known.get(place)
    if found is not None and found[0]() is array:
        return found[1]
    largest = float(np.maximum(array.max(), -array.min()))
    _known[place] = weakref.ref(array, lambda gone: _known.pop(place, None)), largest
    return largest


def required(inputs: Sequence[T | None], index: int = 0) -> T:
    """Return input `index`: its type, array or operand. Raises ShapeError where it is left out."""
    value = inputs[index] if index < len(inputs) else None
    if value is None:
        raise ShapeError(f"input {index} is missing: this op needs it.")
    return value


@dataclass(frozen=True)
class Border:
    """Padding that an op wants around an input: elements before and after each axis, and its value.

    `fill` None means that any value will do (the memory is read but does not matter).
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    fill: float | None = 0.0

    def covers(self, other: Border) -> bool:
        """Whether a tensor with this border serves a consumer that wants `other`."""
        if not (any(other.before) or any(other.after)):
            return True
        big = all(a >= b for a, b in zip(self.before, other.before, strict=True))
        big = big and all(a >= b for a, b in zip(self.after, other.after, strict=True))
        return big and other.fill in (None, self.fill)


@dataclass(frozen=True)
class Operand:
    """One input or output of a node, placed: type, layout, padding value and constant data.

    aliased: in a ViewSpec's problem, that no data has to move for this operand. stored: the type
    that its float32 values have in memory, None where they lie there as they are.
    """

    type: TensorType
    layout: TensorLayout
    fill: float | None = None
    aliased: bool = False
    const: Array | None = field(default=None, compare=False, hash=False)
    stored: DType | None = None

    @property
    def memory(self) -> DType:
        """The type of elements in memory."""
        return self.stored or self.type.dtype

    @property
    def ctype(self) -> str:
        """The type as templates take it; a clnn.types.Stored where `stored`."""
        return self.memory.cl

    @property
    def plain(self) -> DType:
        """The type of elements in memory, as numbers by themselves."""
        return dtype_of(self.memory.numpy)

    @property
    def label(self) -> str:
        """The type in names of kernels."""
        return self.stored.name if self.stored else self.type.dtype.cl

    def packed(self, make: Callable[[], Array]) -> Const:
        """Return make()'s float32 array, a form of this constant, as the operand is stored."""
        stored = self.stored
        return Const(make) if stored is None else Const(lambda: narrow(make(), stored))

    @cached_property
    def largest(self) -> float:
        """The largest magnitude among a constant's floats: infinite or NaN where one of them is.

        0 where there is no constant, or its data is on a device alone.
        """
        if (
            not isinstance(self.const, np.ndarray)
            or self.const.dtype.kind != "f"
            or not self.const.size
        ):
            return 0.0
        return _largest(self.const)

    @property
    def border(self) -> Border:
        """The padding around this operand."""
        return Border(self.layout.before, self.layout.after, self.fill)


@dataclass(frozen=True)
class Problem:
    """A node with everything that kernel generation depends on."""

    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand, ...]
    target: Target

    def input(self, index: int) -> Operand:
        """Return input `index`, which must be there."""
        return required(self.inputs, index)

    def has(self, index: int) -> bool:
        """Whether optional input `index` is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    @property
    def uses_narrow_storage(self) -> bool:
        """Whether any operand lies in memory in another type."""
        return any(o is not None and o.stored for o in (*self.inputs, *self.outputs))

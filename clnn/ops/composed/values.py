"""Values in the making: what a chain of emitted nodes gives, with its type; views of constants fold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clnn.ops.elementwise.cast import Cast
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.movement.views import Concat, Expand, Reshape, Slice, Transpose, slice_of
from clnn.ops.onnx_registry import Emit, OnnxNode, Source
from clnn.ops.rows.reduce import Reduce
from clnn.ops.shared.functions import PostOp
from clnn.ops.spec import OpSpec
from clnn.records import dataclass
from clnn.types import Array, DType, TensorType, broadcast_shapes

_FOLDS = (Cast, Reduce, Reshape, Slice, Transpose)


@dataclass(frozen=True, eq=False)
class Value:
    """A source and its type. Methods return the value that they make of it."""

    source: Source
    type: TensorType

    @staticmethod
    def of(node: OnnxNode, index: int) -> Value:
        """Return input `index` of a node, as a constant where it is one."""
        return Value(node.consts.get(index, index), node.type(index))

    @staticmethod
    def const(array: Array) -> Value:
        """Return a constant."""
        return Value(array, TensorType.of(array))

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""
        return self.type.shape

    @property
    def is_const(self) -> bool:
        """Whether it is a constant."""
        return isinstance(self.source, np.ndarray)

    def apply(self, spec: OpSpec, *others: Value | None) -> Value:
        """Return output 0 of an op whose first input is this. Raises as its `infer` does."""
        values = (self, *others)
        (kind, *_) = spec.infer([None if v is None else v.type for v in values])
        if isinstance(self.source, np.ndarray) and not others and isinstance(spec, _FOLDS):
            return Value(np.asarray(spec.reference(self.source)[0]), kind)
        return Value(Emit(spec, [None if v is None else v.source for v in values]), kind)

    def cast(self, dtype: DType) -> Value:
        """Return the value as another element type."""
        return self if self.type.dtype == dtype else self.apply(Cast(dtype))

    def transpose(self, perm: Sequence[int]) -> Value:
        """Return the value with its axes in another order."""
        plain = tuple(perm) == tuple(range(self.type.rank))
        return self if plain else self.apply(Transpose(tuple(perm)))

    def reshape(self, shape: Sequence[int]) -> Value:
        """Return the value with another shape; a rank that stays says that nothing changes."""
        same = len(shape) == self.type.rank and tuple(shape) == self.shape
        return self if same else self.apply(Reshape(tuple(shape)))

    def part(self, axis: int, start: int, extent: int, step: int = 1) -> Value:
        """Return indices `step` apart along an axis."""
        return self.apply(slice_of(self.shape, axis, start, extent, step))

    def expand(self, shape: tuple[int, ...]) -> Value:
        """Return the value broadcast to a shape that it broadcasts with."""
        wanted = broadcast_shapes(self.shape, shape)
        return self if wanted == self.shape else self.apply(Expand(wanted))

    def sum(self, axes: Sequence[int]) -> Value:
        """Return the sums over some axes, which go."""
        return self.apply(Reduce("sum", tuple(sorted(axes)), False)) if axes else self

    def binary(self, fn: str, other: Value) -> Value:
        """Return a function of two broadcast values."""
        return self.apply(Eltwise((PostOp(fn, operand=1),)), other)

    def unary(self, fn: str, *params: float) -> Value:
        """Return a function of each element."""
        return self.apply(Eltwise((PostOp(fn, params),)))


def concat(values: Sequence[Value], axis: int) -> Value:
    """Return values one after the other along an axis."""
    first, *others = values
    return first.apply(Concat(axis), *others) if others else first

"""BitCast: the same bits as another element type of as many bits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clnn.errors import DTypeError
from clnn.ops.elementwise.cast import dtype_numbered
from clnn.ops.elementwise.mapped_launch import map_variant
from clnn.ops.launch import Variant
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, Unsupported, onnx_op
from clnn.ops.problem import Problem, required
from clnn.ops.spec import OpSpec
from clnn.records import dataclass
from clnn.types import CARRIERS, Array, DType, TensorType


@dataclass(frozen=True)
class BitCast(OpSpec):
    """The input's bits as elements of `dtype`, which has as many."""

    dtype: DType

    kind = "bitcast"
    layout_rule = "same"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the input's shape with the new type. Raises DTypeError for another width."""
        x = required(inputs)
        if x.dtype.itemsize != self.dtype.itemsize:
            raise DTypeError(f"bits of {x.dtype.name} are not as many as {self.dtype.name} has.")
        return (TensorType(x.shape, self.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return numpy's view; real numbers are rounded to the width of the type first."""
        x = required(inputs)
        if x.dtype.kind == "f":
            x = x.astype(f"f{self.dtype.itemsize}")
        return (np.ascontiguousarray(x).view(self.dtype.numpy).reshape(x.shape),)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return the one kernel, for any layouts."""
        return [map_variant(problem, "bitcast", "bits")]


@onnx_op("BitCast")
def _bitcast(node: OnnxNode) -> Source:
    wanted = dtype_numbered(int(node.attrs["to"]))
    given = node.narrow.get(0, node.type(0).dtype)
    if wanted == given:
        return 0
    narrow = [kind.name for kind in (given, wanted) if kind in CARRIERS]
    if narrow:
        raise Unsupported(f"bits of {narrow[0]}, which is computed in a wider type")
    return Emit(BitCast(wanted), [0])

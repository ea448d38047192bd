"""Cast between element types, on the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clnn.arith.elements import Narrow, Widen
from clnn.ops.elementwise.fixed_map import FixedMap
from clnn.ops.elementwise.mapped_launch import map_variant
from clnn.ops.launch import Variant
from clnn.ops.movement.views import Reshape
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, Unsupported, onnx_op
from clnn.ops.problem import Problem, required
from clnn.ops.spec import OpSpec
from clnn.records import dataclass
from clnn.types import BF16, BOOL, CARRIERS, DTYPES, F16, F32, I32, Array, DType, TensorType

# Numbers of TensorProto.DataType that clnn has no element type for.
_FOREIGN = {8: "string", 14: "complex64", 15: "complex128", 24: "float8e8m0"}
_NUMBERS = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    16: "bfloat16",
    17: "float8e4m3fn",
    18: "float8e4m3fnuz",
    19: "float8e5m2",
    20: "float8e5m2fnuz",
    21: "uint4",
    22: "int4",
    23: "float4e2m1",
    25: "uint2",
    26: "int2",
}


@dataclass(frozen=True)
class Cast(OpSpec):
    """The input's values as elements of type `dtype`.

    Real to integer: towards zero. What does not fit wraps: real numbers become int32 (int64 for
    32-bit unsigned and 64-bit results) first, its least value where they do not fit even there.
    Anything but 0 is true.
    """

    dtype: DType

    kind = "cast"
    layout_rule = "same"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the input's shape with the new type."""
        return (TensorType(required(inputs).shape, self.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return the cast with numpy, through wider integers."""
        x = required(inputs)
        if self.dtype == BOOL:
            return (x != 0,)
        if x.dtype.kind != "f" or self.dtype.is_float:
            with np.errstate(over="ignore"):
                return (x.astype(self.dtype.numpy),)
        return (_to_integer(x.astype(np.float64), self.dtype),)

    def split_batch(
        self, inputs: Sequence[TensorType | None], count: int
    ) -> tuple[OpSpec, tuple[int, ...]] | None:
        """Return the op as it is."""
        return self, (0,)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return the one kernel, for any layouts."""
        return [map_variant(problem, "cast", "cast")]


def _to_integer(x: Array, dtype: DType) -> Array:
    """Return real numbers as integers: towards zero, wrapping, or the least value."""
    wide = dtype.numpy.itemsize == 8 or dtype.numpy == np.uint32
    bound, middle = (2.0**63, np.int64) if wide else (2.0**31, np.int32)
    inside = (x >= -bound) & (x < bound)
    whole = np.where(inside, x, 0).astype(middle)
    result = np.where(inside, whole, np.iinfo(middle).min).astype(dtype.numpy)
    if dtype.numpy == np.uint64:
        over = (x >= 2.0**63) & (x < 2.0**64)
        result = np.where(over, np.where(over, x, 0).astype(np.uint64), result)
    return result


def dtype_numbered(number: int) -> DType:
    """Return the DType of a TensorProto.DataType number. Raises Unsupported where clnn has none."""
    name = _NUMBERS.get(number)
    if name is None:
        raise Unsupported(f"element type {_FOREIGN.get(number, number)} is not one of clnn's")
    return next(d for d in (*DTYPES, *CARRIERS) if d.name == name)


def cast_to(dtype: DType, source: TensorType, value: Source = 0) -> Source:
    """Return `value`, of type `source`, as elements of `dtype` (itself where it has them)."""
    return value if source.dtype == dtype else Emit(Cast(dtype), [value])


def widen_spec(kind: DType) -> OpSpec:
    """Return the op that makes elements of a carried type values of its carrier."""
    return Cast(CARRIERS[kind]) if kind == F16 else FixedMap(Widen(kind))


def narrow_spec(kind: DType, saturate: bool = True) -> OpSpec:
    """Return the op that makes values of a carrier elements of the type that they are carried for."""
    return Cast(kind) if kind == F16 else FixedMap(Narrow(kind, saturate))


def rounded_to(kind: DType, source: Source, saturate: bool = True) -> Emit:
    """Return values of the carrier of a type, rounded to what the type holds."""
    return Emit(widen_spec(kind), [Emit(narrow_spec(kind, saturate), [source])])


@onnx_op("Cast")
def _cast(node: OnnxNode) -> Source:
    return _as_type(node, dtype_numbered(int(node.attrs["to"])))


@onnx_op("CastLike")
def _cast_like(node: OnnxNode) -> Source:
    return _as_type(node, node.narrow.get(1, node.type(1).dtype))


def _as_type(node: OnnxNode, wanted: DType) -> Source:
    """Return input 0 as elements of a type, perhaps one that is carried by another."""
    x, given = node.type(0), node.narrow.get(0)
    if wanted == (given or x.dtype):
        return 0
    carrier = CARRIERS.get(wanted)
    if carrier is not None:
        if wanted in (F16, BF16) and 0 in node.consts:
            with np.errstate(over="ignore"):
                return node.consts[0].astype(wanted.numpy).astype(carrier.numpy)
        value = cast_to(carrier, x) if carrier == F32 else cast_to(carrier, x, _wrapped(x))
        return rounded_to(wanted, value, bool(node.attr("saturate", 1)))
    # The same values as another type are another value.
    return Emit(Reshape(x.shape), [0]) if wanted == x.dtype else cast_to(wanted, x)


def _wrapped(x: TensorType) -> Source:
    """Return input 0 as integers, where it is real."""
    return Emit(Cast(I32), [0]) if x.dtype.is_float else 0

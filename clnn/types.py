"""Element types and tensor types: what a value *is*, apart from where it lies in memory."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from clnn.errors import DTypeError, ShapeError
from clnn.records import dataclass

Array = npt.NDArray[Any]


class Stored(str):
    """An OpenCL type of values in registers whose elements in memory are smaller.

    A text, for what templates do with types is to print, join and compare them, and all of that is
    about registers. Loads, stores and pointers alone ask for the `cell`, the type in memory:

        cell     a value in memory is
        half     the float16 nearest to it
        ushort   the upper half of its float32 (bfloat16)

    To compare two of these is to compare texts.
    """

    cell: str

    def __new__(cls, text: str, cell: str) -> Stored:
        """Return `text` with `cell`: "half", or "ushort" for the upper half of a float."""
        ctype = super().__new__(cls, text)
        ctype.cell = cell
        return ctype


@dataclass(frozen=True)
class DType:
    """One element type: its name, its numpy dtype and its OpenCL C type."""

    name: str
    numpy: np.dtype[np.generic]
    cl: str

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return int(self.numpy.itemsize)

    @property
    def is_float(self) -> bool:
        """Whether this is a floating-point type."""
        return self.numpy.kind == "f"

    def __repr__(self) -> str:
        return self.name


def _dtype(name: str, numpy_name: str, cl: str) -> DType:
    return DType(name, np.dtype(numpy_name), cl)


def _small(name: str, ml_name: str, cl: str) -> DType:
    return DType(name, np.dtype(getattr(ml_dtypes, ml_name)), cl)


F32 = _dtype("float32", "float32", "float")
F16 = _dtype("float16", "float16", "half")
F64 = _dtype("float64", "float64", "double")
I8 = _dtype("int8", "int8", "char")
U8 = _dtype("uint8", "uint8", "uchar")
I16 = _dtype("int16", "int16", "short")
U16 = _dtype("uint16", "uint16", "ushort")
I32 = _dtype("int32", "int32", "int")
U32 = _dtype("uint32", "uint32", "uint")
I64 = _dtype("int64", "int64", "long")
U64 = _dtype("uint64", "uint64", "ulong")
BOOL = _dtype("bool", "bool", "uchar")

BF16 = _small("bfloat16", "bfloat16", "ushort")
I4, U4 = _small("int4", "int4", "uchar"), _small("uint4", "uint4", "uchar")
I2, U2 = _small("int2", "int2", "uchar"), _small("uint2", "uint2", "uchar")
FLOATS8 = tuple(
    _small(name.replace("_", ""), name, "uchar")
    for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
)
F4 = _small("float4e2m1", "float4_e2m1fn", "uchar")

# How float32 values may lie in memory instead: types of storage, never of values.
STORED_F16 = DType("f16", np.dtype("float16"), Stored("float", "half"))
STORED_BF16 = DType("bf16", np.dtype("uint16"), Stored("float", "ushort"))
STORAGE = {"f32": F32, "tf32": F32, "f16": STORED_F16, "bf16": STORED_BF16}

DTYPES = (F32, F16, F64, I8, U8, I16, U16, I32, U32, I64, U64, BOOL)
# Element types of inputs, outputs and constants -> the type that a network computes them in. A value
# of one is a value of the wider type that the narrower one holds, or, behind an operator, would round.
CARRIERS = {
    F16: F32,
    BF16: F32,
    **dict.fromkeys((*FLOATS8, F4), F32),
    **dict.fromkeys((I4, I2), I8),
    **dict.fromkeys((U4, U2), U8),
}
_BY_NUMPY = {d.numpy: d for d in (*DTYPES, *CARRIERS)}


def dtype_of(numpy_dtype: object) -> DType:
    """Return the DType for a numpy dtype. Raises DTypeError when clnn has none."""
    try:
        return _BY_NUMPY[np.dtype(numpy_dtype)]  # type: ignore[call-overload]
    except (KeyError, TypeError):
        names = ", ".join(d.name for d in DTYPES)
        raise DTypeError(f"element type {numpy_dtype} is not one of clnn's: {names}.") from None


def narrow(array: np.ndarray[Any, Any], stored: DType) -> np.ndarray[Any, Any]:
    """Return float32 values as elements of a storage type, rounded to nearest, ties to even.

    What is too large becomes infinity; NaN stays NaN.
    """
    values = np.asarray(array, np.float32)
    if stored == STORED_F16:
        with np.errstate(over="ignore"):
            return values.astype(np.float16)
    if stored != STORED_BF16:
        return values
    bits = np.atleast_1d(np.ascontiguousarray(values)).view(np.uint32).reshape(values.shape)
    with np.errstate(over="ignore"):
        rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    kept = np.where(np.isnan(values), bits | np.uint32(0x400000), rounded)
    return np.asarray(kept >> np.uint32(16)).astype(np.uint16)


def widen(array: np.ndarray[Any, Any], stored: DType) -> np.ndarray[Any, Any]:
    """Return elements of a storage type as float32."""
    if stored != STORED_BF16:
        return np.asarray(array).astype(np.float32)
    bits = np.atleast_1d(np.asarray(array)).astype(np.uint32) << np.uint32(16)
    return bits.view(np.float32).reshape(np.shape(array))


@dataclass(frozen=True)
class TensorType:
    """Shape (logical axes, outermost first) and element type of a value."""

    shape: tuple[int, ...]
    dtype: DType = F32

    def __post_init__(self) -> None:
        for d in self.shape:
            if not isinstance(d, int) or d < 0:
                raise ShapeError(
                    f"shape {self.shape} has an extent that is not a whole number >= 0."
                )

    @classmethod
    def of(cls, array: Array) -> TensorType:
        """Return the type of an array. Raises DTypeError for an element type that clnn lacks."""
        return cls(tuple(int(d) for d in array.shape), dtype_of(array.dtype))

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements without padding."""
        return self.size * self.dtype.itemsize

    def __repr__(self) -> str:
        return f"{self.dtype.name}[{'x'.join(map(str, self.shape))}]"


def normalise_axis(axis: int, rank: int) -> int:
    """Return `axis` as 0 <= axis < rank; negative counts from the end. Raises ShapeError."""
    if not -rank <= axis < rank:
        raise ShapeError(
            f"axis {axis} is outside of rank {rank}: allowed is {-rank} to {rank - 1}."
        )
    return axis % rank


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the common shape under numpy's broadcasting rule. Raises ShapeError."""
    rank = max((len(s) for s in shapes), default=0)
    common = [1] * rank
    for shape in shapes:
        for axis, extent in enumerate(shape, rank - len(shape)):
            if common[axis] != 1 and extent not in (1, common[axis]):
                listed = " and ".join(str(s) for s in shapes)
                raise ShapeError(
                    f"shapes {listed} do not broadcast: from the last axis on, extents must be "
                    "equal or 1."
                )
            common[axis] = extent if extent != 1 else common[axis]
    return tuple(common)

"""Tensors of a model as numpy arrays: shape and data must agree before anything is allocated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from clnn.errors import ModelError
from clnn.importers.onnx.external import read_external
from clnn.importers.onnx.limits import Budget, check_dims, show
from clnn.records import dataclass
from clnn.types import Array

# Bits of the element types that raw data packs; fields pack those below 6 bits only.
_PACKED = {
    TensorProto.DataType.Value(name): bits
    for name, bits in (
        ("INT4", 4),
        ("UINT4", 4),
        ("FLOAT4E2M1", 4),
        ("INT2", 2),
        ("UINT2", 2),
        ("FLOAT6E2M3", 6),
        ("FLOAT6E3M2", 6),
    )
    if name in TensorProto.DataType.keys()  # noqa: SIM118 - an enum, not a dict
}
_WHOLE_FIELDS = 6
_COMPLEX = (TensorProto.COMPLEX64, TensorProto.COMPLEX128)


@dataclass
class TensorReader:
    """Reads the tensors of one model.

    folder: where external data may lie (None: nowhere). mapped: whether it is mapped.
    """

    folder: Path | None
    budget: Budget
    mapped: bool = False

    def array(self, tensor: onnx.TensorProto, raw: memoryview | None = None) -> Array:
        """Return a tensor's values; strings as objects. Raises ModelError.

        raw: its raw data, where that was taken out of the tensor.
        """
        what = f"tensor {show(tensor.name)}"
        count = check_dims(what, tensor.dims)
        if tensor.HasField("segment"):
            raise ModelError(f"{what} is stored in segments, which ONNX no longer has.")
        dtype = numpy_dtype(tensor.data_type, what)
        nbytes = stored_bytes(tensor.data_type, dtype, count)
        self.budget.take_stored(max(nbytes, count * dtype.itemsize), what)
        if tensor.data_location == TensorProto.EXTERNAL:
            data = read_external(tensor, nbytes, self.folder, self.mapped)
            return _decode(tensor, dtype, data)
        if tensor.HasField("raw_data"):
            data = tensor.raw_data if raw is None else raw
            if len(data) != nbytes or dtype.kind == "O":
                raise ModelError(
                    f"{what} holds {len(data)} bytes; shape {list(tensor.dims)} of "
                    f"{dtype} wants {nbytes}. The file is not valid."
                )
            return _decode(tensor, dtype, data)
        return _from_fields(tensor, dtype, count, what)

    def dense(self, sparse: onnx.SparseTensorProto) -> Array:
        """Return a sparse tensor as a dense array. Raises ModelError."""
        what = f"sparse tensor {show(sparse.values.name)}"
        count = check_dims(what, sparse.dims)
        values, indices = self.array(sparse.values), self.array(sparse.indices)
        self.budget.take_stored(count * values.dtype.itemsize, what)
        shape = tuple(int(d) for d in sparse.dims)
        if values.ndim != 1 or indices.dtype != np.int64 or len(indices.shape) not in (1, 2):
            raise ModelError(
                f"{what}: values {values.shape} and indices {indices.shape} do not fit."
            )
        flat = _flat_indices(indices, shape, len(values), what)
        dense = np.zeros(count, values.dtype)
        dense[flat] = values
        return dense.reshape(shape)


def numpy_dtype(data_type: int, what: str) -> np.dtype[Any]:
    """Return the numpy type of an ONNX element type. Raises ModelError for an unknown one."""
    try:
        dtype: np.dtype[Any] = onnx.helper.tensor_dtype_to_np_dtype(data_type)
        return dtype
    except (KeyError, TypeError, ValueError) as err:
        raise ModelError(f"{what} has element type {data_type}, which ONNX does not have.") from err


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return the name of an element type for a message."""
    return "text" if dtype.kind == "O" else dtype.name


def stored_bytes(data_type: int, dtype: np.dtype[Any], count: int) -> int:
    """Return the bytes that so many elements of a type take in a file."""
    bits = _PACKED.get(data_type)
    return count * dtype.itemsize if bits is None else -(-count * bits // 8)


def _decode(tensor: onnx.TensorProto, dtype: np.dtype[Any], data: bytes | memoryview) -> Array:
    shape = tuple(int(d) for d in tensor.dims)
    if tensor.data_type in _PACKED:
        plain = TensorProto(dims=shape, data_type=tensor.data_type, raw_data=bytes(data))
        return np.asarray(numpy_helper.to_array(plain))
    if dtype == np.bool_:
        return np.asarray(np.frombuffer(data, np.uint8).reshape(shape) != 0)
    if dtype.isbuiltin != 1:  # types that numpy itself does not have are little-endian bytes
        return np.frombuffer(data, dtype).reshape(shape)
    little = np.frombuffer(data, dtype.newbyteorder("<"))
    return little.astype(dtype, copy=False).reshape(shape)


def _from_fields(tensor: onnx.TensorProto, dtype: np.dtype[Any], count: int, what: str) -> Array:
    stored: Sequence[Any] = getattr(tensor, onnx.helper.tensor_dtype_to_field(tensor.data_type))
    want = count
    if tensor.data_type in _COMPLEX:
        want = 2 * count
    elif _PACKED.get(tensor.data_type, _WHOLE_FIELDS) < _WHOLE_FIELDS:
        want = stored_bytes(tensor.data_type, dtype, count)
    if len(stored) != want:
        raise ModelError(
            f"{what} holds {len(stored)} numbers; shape {list(tensor.dims)} wants {want}. "
            "The file is not valid."
        )
    if dtype.kind == "O":
        texts = np.empty(count, object)
        texts[:] = [text.decode("utf-8", "replace") for text in stored]
        return texts.reshape(tuple(tensor.dims))
    plain = TensorProto()
    plain.CopyFrom(tensor)
    plain.name = ""
    try:
        return np.asarray(numpy_helper.to_array(plain))
    except (ValueError, TypeError, OverflowError) as err:
        raise ModelError(f"{what} holds numbers that are not {dtype}: {err}.") from err


def _flat_indices(indices: Array, shape: tuple[int, ...], count: int, what: str) -> Array:
    """Return positions in row-major order, after checking that they lie inside."""
    rows = indices.reshape(len(indices), -1) if indices.size else indices.reshape(0, 1)
    extents = shape if indices.ndim == 2 else (int(np.prod(shape, dtype=object)) if shape else 1,)
    good = len(indices) == count and (not count or rows.shape[1] == len(extents))
    if not good or (rows < 0).any() or (count and (rows >= np.array(extents)).any()):
        raise ModelError(f"{what} has indices that do not fit shape {list(shape)}.")
    if indices.ndim == 1 or not count:
        return indices.reshape(-1)
    return np.asarray(np.ravel_multi_index(tuple(rows.T), shape))

"""OrtValue: a tensor or a list of tensors, in the host's memory or in a device's input buffer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from clnn.importers.onnx.type_names import NAMES
from clnn.onnxruntime.errors import FeedError
from clnn.onnxruntime.nodes import type_text
from clnn.types import Array

if TYPE_CHECKING:
    from clnn.runtime.run.binding import InputBinding

CPU, CLNN = "cpu", "clnn"  # memory of the host, and of clnn's device
_ELEMENTS = {f"tensor({name})": number for number, name in NAMES.items()}


class OrtDevice:
    """A place of memory: its kind and number."""

    def __init__(self, kind: str = CPU, number: int = 0) -> None:
        self._kind, self._number = kind, number

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        """Return a place of memory by name."""
        return OrtDevice(checked_device(ort_device_name), device_id)

    @staticmethod
    def cpu() -> int:
        """Return the number of the kind that is memory of the host."""
        return 0

    def device_type(self) -> int:
        """Return the number of the kind: 0 for memory of the host, 1 for a device's."""
        return int(self._kind != CPU)

    def device_id(self) -> int:
        """Return the number of the device."""
        return self._number


def checked_device(name: str) -> str:
    """Return a place of memory in lower case. Raises RuntimeError for those that are not there."""
    kind = str(name).lower()
    if kind in (CPU, CLNN):
        return kind
    raise FeedError(
        f"there is no memory of device type {name!r}. Values lie in 'cpu' memory; a device's own "
        "input buffer is what InferenceSession.device_input(name) returns."
    )


class OrtValue:
    """A value: a tensor as a numpy array that is not copied, a list of tensors, or None."""

    def __init__(self, value: Any, kind: str = "", buffer: InputBinding | None = None) -> None:
        self._value, self._kind, self._buffer = value, kind, buffer

    @staticmethod
    def ortvalue_from_numpy(
        numpy_obj: Array, device_type: str = CPU, device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """Return a value that shares memory with a contiguous array of numbers."""
        checked_device(device_type)
        if not isinstance(numpy_obj, np.ndarray) or numpy_obj.dtype.kind in "OUS":
            raise FeedError(
                f"values are made of numpy arrays of numbers, not of {type(numpy_obj).__name__}."
            )
        return OrtValue(np.ascontiguousarray(numpy_obj).reshape(numpy_obj.shape))

    @staticmethod
    def ortvalue_from_numpy_with_onnx_type(data: Array, onnx_element_type: int) -> OrtValue:
        """Return a value whose bytes are elements of an ONNX type that numpy may lack."""
        if onnx_element_type not in NAMES:
            raise FeedError(f"ONNX has no element type of number {onnx_element_type}.")
        return OrtValue(np.ascontiguousarray(data), f"tensor({NAMES[onnx_element_type]})")

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int],
        element_type: Any,
        device_type: str = CPU,
        device_id: int = 0,
        vendor_id: int = -1,
        memory_info: Any = None,
    ) -> OrtValue:
        """Return a tensor of zeros. element_type: a numpy type, or the number of an ONNX type."""
        checked_device(device_type)
        if any(extent < 0 for extent in shape):
            raise FeedError(f"a value of shape {tuple(shape)}: extents are 0 and more.")
        return OrtValue(np.zeros(tuple(shape), numpy_type(element_type)))

    @staticmethod
    def from_dlpack(data: Any) -> OrtValue:
        """Return a value that shares memory with an object of another library."""
        return OrtValue(np.from_dlpack(data))

    @property
    def buffer(self) -> InputBinding | None:
        """The device's input buffer that holds the value; None for memory of the host."""
        return self._buffer

    def numpy(self) -> Any:
        """Return the array (a copy of what lies on a device), or the list of arrays."""
        if self._buffer is None:
            return self._value
        with self._buffer.map() as view:
            return np.array(view)

    def update_inplace(self, data: Array) -> None:
        """Copy as many elements of an array into the memory of the value."""
        if self._buffer is not None:
            return self._buffer.copy_from(np.asarray(data, self._buffer.port.type.dtype.numpy))
        if data.size != self._value.size:
            raise FeedError(f"the array has {data.size} elements, the value {self._value.size}.")
        self._value[...] = np.asarray(data).reshape(self._value.shape)
        return None

    def shape(self) -> list[int]:
        """Return the extents of a tensor."""
        if self._buffer is not None:
            return list(self._buffer.port.type.shape)
        return [] if self.is_tensor_sequence() else list(self._value.shape)

    def data_type(self) -> str:
        """Return the type as text, such as "tensor(float)"."""
        if self._kind:
            return self._kind
        if self._buffer is not None:
            return type_text(self._buffer.port.type.dtype.numpy)
        if self.is_tensor_sequence():
            return f"seq({type_text(self._value[0].dtype)})" if self._value else "seq()"
        return type_text(self._value.dtype)

    def element_type(self) -> int:
        """Return the number of the ONNX type of the elements."""
        number: int = _ELEMENTS[self.data_type().removeprefix("seq(").rstrip(")") + ")"]
        return number

    def device_name(self) -> str:
        """Return "cpu", or "clnn" for a device's input buffer."""
        return CPU if self._buffer is None else CLNN

    def data_ptr(self) -> int:
        """Return the address of the first element in the host's memory."""
        if self._buffer is not None:
            raise FeedError("a device's input buffer has no address on the host. Use numpy().")
        return int(self._value.ctypes.data)

    def tensor_size_in_bytes(self) -> int:
        """Return the bytes of all elements."""
        held: Any = self._value if self._buffer is None else self._buffer.port.type.dtype
        count: int = math.prod(self.shape())
        return count * int(held.itemsize)

    def has_value(self) -> bool:
        """Whether there is a value at all."""
        return self._value is not None or self._buffer is not None

    def is_tensor(self) -> bool:
        """Whether this is a tensor."""
        return self._buffer is not None or isinstance(self._value, np.ndarray)

    def is_tensor_sequence(self) -> bool:
        """Whether this is a list of tensors."""
        return isinstance(self._value, list)

    def is_sparse_tensor(self) -> bool:
        """Whether this is a sparse tensor: never, clnn has none."""
        return False

    def _get_c_value(self) -> OrtValue:
        return self

    @property
    def _ortvalue(self) -> OrtValue:
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.numpy()
        plain: Array = array if dtype is None else array.astype(dtype)
        return plain

    def to_dlpack(self) -> Any:
        """Return a capsule that shares the value's memory."""
        return self.__dlpack__()

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.numpy().__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def numpy_type(element_type: Any) -> np.dtype[Any]:
    """Return the numpy type for one, or for the number of an ONNX type."""
    kind: Any = element_type
    if isinstance(element_type, (int, np.integer)):
        name = NAMES.get(int(element_type), "")
        kind = {"float": "float32", "double": "float64", "string": "object"}.get(name, name)
    dtype: np.dtype[Any] = np.dtype(kind)
    return dtype

"""Buffers as TIDL takes them: memory with the padded region zero, real numbers to elements and back."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import field

import numpy as np

from clnn.apis.tidl.tensors import IOTensor
from clnn.errors import DTypeError, HostMemoryError, ModelError, ShapeError
from clnn.layout import view_of
from clnn.records import dataclass
from clnn.runtime.drivers.pages import pages
from clnn.types import Array

PAGE = 4096
_PHYSICAL = "SC_PHYS_PAGES"


def TIDLRT_allocSharedMem(nbytes: int) -> Array:  # the name of TIDL-RT's function
    """Return `nbytes` zero bytes that a CPU device works in without a copy: whole pages.

    Raises HostMemoryError where the host has not the memory.
    """
    most = os.sysconf(_PHYSICAL) * PAGE if _PHYSICAL in getattr(os, "sysconf_names", ()) else None
    if nbytes < 0 or (most is not None and nbytes > most):
        raise HostMemoryError(f"a buffer of {nbytes} bytes is asked, the host has {most}.")
    try:
        return pages(nbytes)[:nbytes]
    except MemoryError as err:
        raise HostMemoryError(f"a buffer of {nbytes} bytes: {err}.") from err


def TIDLRT_isSharedMem(memory: Array) -> bool:
    """Whether memory is as TIDLRT_allocSharedMem gives it: contiguous, from the begin of a page on."""
    whole = memory.flags.c_contiguous and memory.flags.writeable
    return bool(whole and memory.ctypes.data % PAGE == 0)


@dataclass
class sTIDLRT_Tensor_t:
    """A caller's buffer: its memory, and what it says of it.

    tensor: geometry, element type, scale and zero point. memory: bytes (uint8), written in place.
    start: which formula addresses the first element, see IOTensor.start. Raises ShapeError where the
    memory is too small for the tensor, DTypeError where it is no array of bytes.
    """

    tensor: IOTensor
    memory: Array = field(repr=False)
    start: str = "rows"

    def __post_init__(self) -> None:
        memory = self.memory
        if not isinstance(memory, np.ndarray) or memory.dtype != np.uint8 or memory.ndim != 1:
            raise DTypeError(f"memory of {self.tensor} must be an array of bytes (uint8), flat.")
        self.tensor.check()
        need = self.tensor.elements(self.start) * self.tensor.dtype.itemsize
        if memory.size < need or not memory.flags.c_contiguous:
            raise ShapeError(
                f"memory of {self.tensor} has {memory.size} bytes, its tensor takes {need} contiguous"
                " ones."
            )

    @staticmethod
    def allocate(tensor: IOTensor, start: str = "rows") -> sTIDLRT_Tensor_t:
        """Return a buffer of zeros for a tensor, the padded region included.

        Raises ModelError where the tensor describes no buffer, HostMemoryError where it is too large.
        """
        tensor.check()
        need = tensor.elements(start) * tensor.dtype.itemsize
        memory = TIDLRT_allocSharedMem(max(tensor.allocation, need))
        return sTIDLRT_Tensor_t(tensor, memory, start)

    @property
    def name(self) -> str:
        """The tensor's name."""
        return self.tensor.name

    @property
    def bufferSize(self) -> int:
        """Bytes of the memory."""
        return int(self.memory.size)

    @property
    def flat(self) -> Array:
        """The elements of the memory in turn, writable."""
        dtype = self.tensor.dtype
        whole = self.memory.size // dtype.itemsize * dtype.itemsize
        return self.memory[:whole].view(dtype)

    def view(self, shape: Sequence[int] | None = None) -> Array:
        """Return the real elements, writable in place.

        shape: of a network, or None for (batches, DIM1, DIM2, channels, height, width). Raises
        ShapeError where the tensor has other extents.
        """
        layout = (
            self.tensor.layout(self.start)
            if shape is None
            else self.tensor.layout_of(shape, self.start)
        )
        return view_of(self.flat, layout)

    def write(self, values: Array) -> None:
        """Quantise real numbers of any shape with these extents into the buffer; pads stay."""
        self.view(values.shape)[...] = quantise(values, self.tensor)

    def read(self, shape: Sequence[int] | None = None) -> Array:
        """Return the elements as real numbers (float32)."""
        return dequantise(self.view(shape), self.tensor)


def allocate(tensors: Sequence[IOTensor], start: str = "rows") -> list[sTIDLRT_Tensor_t]:
    """Return zeroed buffers for the inputs or outputs of a network, in order."""
    return [sTIDLRT_Tensor_t.allocate(tensor, start) for tensor in tensors]


def _factor(tensor: IOTensor) -> float:
    if not (np.isfinite(tensor.scale) and tensor.scale > 0):
        raise ModelError(f"{tensor} has scale {tensor.scale}: must be a number above 0.")
    return float(tensor.scale)


def quantise(values: Array, tensor: IOTensor) -> Array:
    """Return real numbers as elements: values * scale + zero point.

    Integers are rounded to nearest, ties to even, and saturate; NaN becomes the zero point.
    Raises ModelError for a scale that is not above 0.
    """
    scale, dtype = _factor(tensor), tensor.dtype
    with np.errstate(all="ignore"):
        scaled = np.asarray(values, np.float64) * scale
        if dtype.kind == "f":
            return (scaled + tensor.zero_point).astype(dtype)
        steps = np.rint(np.nan_to_num(scaled, nan=0.0)) + tensor.zero_point
        limits = np.iinfo(dtype)
        # 2**63 - 1 and 2**64 - 1 are no double: what reaches the next one is the largest
        low, high = steps <= float(limits.min), steps >= float(limits.max)
        inside = np.where(low | high, 0.0, steps).astype(dtype)
    return np.where(low, limits.min, np.where(high, limits.max, inside)).astype(dtype)


def dequantise(elements: Array, tensor: IOTensor) -> Array:
    """Return elements as real numbers in float32: (element - zero point) / scale.

    Raises ModelError for a scale that is not above 0.
    """
    scale = np.float64(_factor(tensor))
    with np.errstate(all="ignore"):
        moved = elements.astype(np.float64) - tensor.zero_point
        return np.asarray(moved / scale).astype(np.float32)

"""Copies between user memory and tensors or images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clnn.apis.openvx.enums import Accessor, MemoryType, Status
from clnn.apis.openvx.reference import require, same_context
from clnn.apis.openvx.status import member, parameters
from clnn.apis.openvx.tensor import Box, Tensor, TensorAddressing, TensorView, inside, slices
from clnn.types import Array


def dense_strides(dims: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Return strides in bytes of elements that lie one after the other, innermost first."""
    strides, step = [], itemsize
    for extent in dims:
        strides.append(step)
        step *= extent
    return tuple(strides)


def user_memory(
    pointer: Any, dims: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any], write: bool
) -> Array:
    """Return user memory as an array with the dimensions reversed.

    pointer: an object with the buffer protocol whose bytes are contiguous. write: whether the call
    writes into it. Raises VxError (invalid parameters) where the layout is not row-major, or the
    memory is too small or read-only.
    """
    least = dtype.itemsize
    for extent, stride in zip(dims, strides, strict=True):
        if stride < least:
            raise parameters(
                f"strides {strides} in bytes for sizes {dims} are not row-major: each must be at "
                "least the bytes of the dimension inside it."
            )
        least = stride * extent
    try:
        raw = memoryview(pointer).cast("B")
    except (TypeError, ValueError):
        raise parameters(
            f"user_ptr is {type(pointer).__name__}: it must be contiguous memory, such as a numpy "
            "array or a bytearray."
        ) from None
    if raw.nbytes < dims[-1] * strides[-1]:
        raise parameters(
            f"user_ptr has {raw.nbytes} bytes, sizes {dims} with strides {strides} need "
            f"{dims[-1] * strides[-1]}."
        )
    if write and raw.readonly:
        raise parameters("user_ptr is read-only memory. Pass writable memory to read into.")
    return np.ndarray(dims[::-1], dtype, raw, strides=strides[::-1])


def _patch(tensor: Tensor, view: TensorView | None) -> Box:
    """Return the box of the tensor that a copy is about."""
    if view is None:
        return tuple((0, d) for d in tensor.dims)
    box = require(TensorView, view, "view").box
    same_context(tensor.home, view, "view")
    inside(tensor.dims, box)
    return box


def direction(usage: Any, memory: Any) -> Accessor:
    """Return the direction of a copy. Raises VxError for others, and for foreign memory."""
    way = member(Accessor, usage, "usage")
    if way is Accessor.VX_READ_AND_WRITE:
        raise parameters("usage is VX_READ_AND_WRITE. Use VX_READ_ONLY or VX_WRITE_ONLY.")
    if member(MemoryType, memory, "user_mem_type") is not MemoryType.VX_MEMORY_TYPE_HOST:
        raise parameters("user_mem_type is not VX_MEMORY_TYPE_HOST, the one that is supported.")
    return way


def vxCopyTensorPatch(
    tensor: Tensor,
    view: TensorView | None,
    user_addr: TensorAddressing | None,
    user_ptr: Any,
    usage: int,
    user_mem_type: int = MemoryType.VX_MEMORY_TYPE_HOST,
) -> Status:
    """Copy a part of a tensor from or into user memory.

    view: the part; None is all. user_addr: extents and strides of the memory; None: elements one
    after the other. user_ptr: contiguous memory (numpy array, bytearray...). usage: VX_READ_ONLY
    copies into user_ptr, VX_WRITE_ONLY into the tensor. Raises VxError with
    VX_ERROR_OPTIMIZED_AWAY for a virtual tensor; an error changes nothing.
    """
    require(Tensor, tensor, "tensor")
    inner = tensor.elements()
    box = _patch(tensor, view)
    way = direction(usage, user_mem_type)
    dims = tuple(end - start for start, end in box)
    strides = dense_strides(dims, inner.dtype.itemsize)
    if user_addr is not None:
        require(TensorAddressing, user_addr, "user_addr")
        same_context(tensor.home, user_addr, "user_addr")
        if user_addr.dims != dims:
            raise parameters(f"user_addr has sizes {user_addr.dims}, the patch has {dims}.")
        strides = user_addr.strides
    reading = way is Accessor.VX_READ_ONLY
    outer = user_memory(user_ptr, dims, strides, inner.dtype, reading)
    with tensor.home.lock:
        if reading:
            outer[...] = inner[slices(box)]
        else:
            inner[slices(box)] = outer
            tensor.store.version += 1
    return Status.VX_SUCCESS

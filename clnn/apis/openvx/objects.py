"""Scalars, look-up tables, images inside tensors, and arrays of objects."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from clnn.apis.openvx.copies import dense_strides, direction, user_memory
from clnn.apis.openvx.enums import (
    Accessor,
    DfImage,
    ImageAttribute,
    LutAttribute,
    MemoryType,
    ObjectArrayAttribute,
    Status,
    Type,
)
from clnn.apis.openvx.reference import Context, Reference, release, require
from clnn.apis.openvx.status import VxError, member, parameters, whole
from clnn.apis.openvx.tensor import Box, Tensor, numbers
from clnn.types import Array

SCALARS = {Type.VX_TYPE_FLOAT32: np.float32, Type.VX_TYPE_INT32: np.int32}
TABLES = {Type.VX_TYPE_INT16: np.int16, Type.VX_TYPE_UINT8: np.uint8}
IMAGES = {
    DfImage.VX_DF_IMAGE_U8: Type.VX_TYPE_UINT8,
    DfImage.VX_DF_IMAGE_S16: Type.VX_TYPE_INT16,
}


class Scalar(Reference):
    """vx_scalar: one number, which may change between runs of a graph."""

    type = Type.VX_TYPE_SCALAR

    def __init__(self, context: Context, kind: Type, value: float) -> None:
        super().__init__(context)
        self.kind = kind
        self.value = value


def _number(kind: Type, value: Any) -> float:
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        with np.errstate(over="raise"):
            return SCALARS[kind](value).item()
    except (TypeError, ValueError, OverflowError, FloatingPointError):
        raise parameters(f"value {value!r} is not a number of type {kind.name}.") from None


def vxCreateScalar(context: Context, data_type: int, value: float) -> Scalar:
    """Return a scalar of VX_TYPE_FLOAT32 or VX_TYPE_INT32. Raises VxError."""
    require(Context, context, "context")
    kind = member(Type, data_type, "data_type")
    if kind not in SCALARS:
        raise parameters(f"data_type is {kind.name}. Use VX_TYPE_FLOAT32 or VX_TYPE_INT32.")
    return Scalar(context, kind, _number(kind, value))


def vxCopyScalar(scalar: Scalar, value: float | None = None) -> float:
    """Return the number; with `value`, set it first. Raises VxError."""
    require(Scalar, scalar, "scalar")
    if value is not None:
        scalar.value = _number(scalar.kind, value)
    return scalar.value


def vxReleaseScalar(scalar: Scalar) -> Status:
    """Release one reference to a scalar."""
    return release(require(Scalar, scalar, "scalar"))


class Lut(Reference):
    """vx_lut: a table of int16 or uint8; the entry of input 0 is number `offset`."""

    type = Type.VX_TYPE_LUT

    def __init__(self, context: Context, kind: Type, count: int) -> None:
        super().__init__(context)
        self.kind = kind
        self.array: Array = np.zeros(count, TABLES[kind])
        self.offset = count // 2 if kind is Type.VX_TYPE_INT16 else 0
        self.version = 0


def vxCreateLUT(context: Context, data_type: int, count: int) -> Lut:
    """Return a table of zeros: VX_TYPE_UINT8 (at most 256 entries) or VX_TYPE_INT16 (65536).

    Raises VxError.
    """
    require(Context, context, "context")
    kind = member(Type, data_type, "data_type")
    if kind not in TABLES:
        raise parameters(f"data_type is {kind.name}. Use VX_TYPE_INT16 or VX_TYPE_UINT8.")
    most = 256 if kind is Type.VX_TYPE_UINT8 else 65536
    return Lut(context, kind, whole(count, 1, most, "count"))


def vxCopyLUT(
    lut: Lut, user_ptr: Any, usage: int, user_mem_type: int = MemoryType.VX_MEMORY_TYPE_HOST
) -> Status:
    """Copy a whole table from (VX_WRITE_ONLY) or into (VX_READ_ONLY) contiguous memory."""
    require(Lut, lut, "lut")
    reading = direction(usage, user_mem_type) is Accessor.VX_READ_ONLY
    size, dtype = (lut.array.size,), lut.array.dtype
    outer = user_memory(user_ptr, size, (dtype.itemsize,), dtype, reading)
    with lut.home.lock:
        if reading:
            outer[...] = lut.array
        else:
            lut.array = outer.copy()
            lut.version += 1
    return Status.VX_SUCCESS


def vxQueryLUT(lut: Lut, attribute: int) -> int:
    """Return type, entries, bytes or offset of a table."""
    require(Lut, lut, "lut")
    values = (int(lut.kind), lut.array.size, lut.array.nbytes, lut.offset)
    return values[list(LutAttribute).index(member(LutAttribute, attribute, "attribute"))]


def vxReleaseLUT(lut: Lut) -> Status:
    """Release one reference to a table."""
    return release(require(Lut, lut, "lut"))


class Image(Reference):
    """vx_image: a plane of a tensor; its pixels are the tensor's elements."""

    type = Type.VX_TYPE_IMAGE

    def __init__(self, context: Context, tensor: Tensor, box: Box, kind: DfImage) -> None:
        super().__init__(context)
        self.tensor = tensor
        self.box = box
        self.kind = kind

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        (left, right), (top, bottom) = self.box[:2]
        return right - left, bottom - top

    def pixels(self) -> Array:
        """Return the pixels as a view (height, width)."""
        plane: Array = self.tensor.store.part(self.box)[0]
        return plane


class ObjectArray(Reference):
    """vx_object_array: a fixed list of objects of one type."""

    type = Type.VX_TYPE_OBJECT_ARRAY

    def __init__(self, context: Context, items: Sequence[Reference]) -> None:
        super().__init__(context)
        self.items = tuple(items)

    def destroy(self) -> None:
        """Release the array's own references to its items."""
        super().destroy()
        for item in self.items:
            if item.count > 0:
                release(item)


def vxCreateImageObjectArrayFromTensor(
    tensor: Tensor, rect: Sequence[int], array_size: int, stride: int, image_format: int
) -> ObjectArray:
    """Return images that are planes of a 3-D tensor.

    rect: (start_x, start_y, end_x, end_y) inside the tensor. array_size: number of images. stride:
    bytes from one image to the next, a whole number of planes. image_format: VX_DF_IMAGE_U8 for
    uint8 tensors, VX_DF_IMAGE_S16 for int16 ones. Raises VxError.
    """
    require(Tensor, tensor, "tensor")
    inner = tensor.elements()
    if len(tensor.dims) != 3:
        raise parameters(f"tensor has {len(tensor.dims)} dimensions: images need 3.")
    left, top, right, bottom = numbers(rect, 4, 0, "rect")
    if not (left < right <= tensor.dims[0] and top < bottom <= tensor.dims[1]):
        raise parameters(f"rect {tuple(rect)} must lie within {tensor.dims[:2]} and not be empty.")
    kind = member(DfImage, image_format, "image_format")
    if IMAGES.get(kind) is not tensor.store.kind:
        raise parameters(f"image_format {kind.name} does not match {tensor.store.kind.name}.")
    plane = math.prod(tensor.store.dims[:2]) * inner.dtype.itemsize
    count = whole(array_size, 1, tensor.dims[2], "array_size")
    step = whole(stride, 1, 2**62, "stride")
    if step % plane or (count - 1) * (step // plane) >= tensor.dims[2]:
        raise parameters(
            f"stride is {step} bytes: {count} images need a multiple of {plane}, the bytes of a "
            f"plane, that stays inside {tensor.dims[2]} planes."
        )
    (x0, _), (y0, _), (z0, _) = tensor.place
    across: Box = ((x0 + left, x0 + right), (y0 + top, y0 + bottom))
    places = [z0 + k * (step // plane) for k in range(count)]
    images = [Image(tensor.home, tensor, (*across, (z, z + 1)), kind) for z in places]
    return ObjectArray(tensor.home, images)


def vxGetObjectArrayItem(array: ObjectArray, index: int) -> Reference:
    """Return item `index`, with a reference of its own. Raises VxError."""
    require(ObjectArray, array, "array")
    item = array.items[whole(index, 0, len(array.items) - 1, "index")]
    item.count += 1
    return item


def vxQueryObjectArray(array: ObjectArray, attribute: int) -> int:
    """Return the type or the number of items."""
    require(ObjectArray, array, "array")
    which = member(ObjectArrayAttribute, attribute, "attribute")
    if which is ObjectArrayAttribute.VX_OBJECT_ARRAY_NUMITEMS:
        return len(array.items)
    return int(array.items[0].type)


def vxReleaseObjectArray(array: ObjectArray) -> Status:
    """Release one reference to an array; its items lose the array's references with the last."""
    return release(require(ObjectArray, array, "array"))


def vxQueryImage(image: Image, attribute: int) -> int:
    """Return width, height or format of an image."""
    require(Image, image, "image")
    values = (*image.size, int(image.kind))
    return values[list(ImageAttribute).index(member(ImageAttribute, attribute, "attribute"))]


def vxCopyImagePatch(
    image: Image,
    rect: Sequence[int] | None,
    user_ptr: Any,
    usage: int,
    user_mem_type: int = MemoryType.VX_MEMORY_TYPE_HOST,
    stride_y: int | None = None,
) -> Status:
    """Copy a part of an image from or into contiguous memory.

    rect: (start_x, start_y, end_x, end_y), None: all. stride_y: bytes of a row of user memory.
    """
    require(Image, image, "image")
    wide, high = image.size
    left, top, right, bottom = (0, 0, wide, high) if rect is None else numbers(rect, 4, 0, "rect")
    if not (left < right <= wide and top < bottom <= high):
        raise parameters(f"rect {rect} must lie within {image.size} and not be empty.")
    reading = direction(usage, user_mem_type) is Accessor.VX_READ_ONLY
    inner = image.pixels()[top:bottom, left:right]
    dims = (right - left, bottom - top)
    strides = dense_strides(dims, inner.dtype.itemsize)
    if stride_y is not None:
        strides = (strides[0], whole(stride_y, 1, 2**62, "stride_y"))
    outer = user_memory(user_ptr, dims, strides, inner.dtype, reading)
    with image.home.lock:
        if reading:
            outer[...] = inner
        else:
            inner[...] = outer
            image.tensor.store.version += 1
    return Status.VX_SUCCESS


def vxReleaseImage(image: Image) -> Status:
    """Release one reference to an image."""
    return release(require(Image, image, "image"))


def number(value: Any, what: str) -> Any:
    """Return a scalar or a number given in its place, after checking it. Raises VxError."""
    if isinstance(value, Scalar):
        return require(Scalar, value, what)
    if isinstance(value, (bool, str)) or not np.isscalar(value) or not math.isfinite(value):  # type: ignore[arg-type]
        raise VxError(
            Status.VX_ERROR_INVALID_VALUE, f"{what} is {value!r}: it must be a scalar or a number."
        )
    return float(value)  # type: ignore[arg-type]

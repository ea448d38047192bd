"""Tensors, their views and the layouts of user memory. Dimension 0 is the innermost one.

Arrays that hold the data have the dimensions reversed, so that C order is OpenVX's order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from clnn.apis.openvx.enums import Status, TensorAttribute, Type
from clnn.apis.openvx.reference import (
    MAX_DIMENSIONS,
    Context,
    Reference,
    release,
    require,
    same_context,
)
from clnn.apis.openvx.status import VxError, member, parameters, whole
from clnn.types import Array

NUMPY: dict[Type, np.dtype[Any]] = {
    Type.VX_TYPE_INT8: np.dtype(np.int8),
    Type.VX_TYPE_UINT8: np.dtype(np.uint8),
    Type.VX_TYPE_INT16: np.dtype(np.int16),
    Type.VX_TYPE_FLOAT32: np.dtype(np.float32),
}
LARGEST = 2**31 - 1  # elements of a tensor: kernels count in int
Box = tuple[tuple[int, int], ...]  # (start, end) per dimension, innermost first


class Store:
    """The elements of a tensor and of all tensors made from its views.

    dims, kind, fraction: of the whole; a virtual one (`graph` is not None) may leave dims at 0 and
    kind at VX_TYPE_INVALID until its graph is verified. version: raised by every write of the host.
    """

    def __init__(self, dims: tuple[int, ...], kind: Type, fraction: int, graph: Any) -> None:
        self.dims = dims
        self.kind = kind
        self.fraction = fraction
        self.graph = graph
        self.version = 0
        self.array: Array | None = None
        if graph is None:
            self.array = np.zeros(dims[::-1], NUMPY[kind])

    @property
    def sized(self) -> bool:
        """Whether all dimensions are given."""
        return bool(self.dims) and 0 not in self.dims

    def part(self, box: Box) -> Array:
        """Return the elements in a box as a view. The store must not be virtual."""
        assert self.array is not None
        return self.array[slices(box)]


def slices(box: Box) -> tuple[slice, ...]:
    """Return numpy's index of a box."""
    return tuple(slice(start, end) for start, end in reversed(box))


class Tensor(Reference):
    """vx_tensor: a box of a store; `box` None is all of it."""

    type = Type.VX_TYPE_TENSOR

    def __init__(self, context: Context, store: Store, box: Box | None = None) -> None:
        super().__init__(context)
        self.store = store
        self.box = box

    @property
    def virtual(self) -> bool:
        """Whether the application cannot access the elements."""
        return self.store.graph is not None

    @property
    def place(self) -> Box:
        """The box of the store that this tensor is."""
        return self.box if self.box is not None else tuple((0, d) for d in self.store.dims)

    @property
    def dims(self) -> tuple[int, ...]:
        """Extents, innermost first."""
        return tuple(end - start for start, end in self.place)

    def elements(self) -> Array:
        """Return the elements as a numpy view, dimensions reversed. Raises VxError if virtual."""
        if self.virtual:
            raise VxError(
                Status.VX_ERROR_OPTIMIZED_AWAY,
                "a virtual tensor has no elements that can be accessed. Use vxCreateTensor.",
            )
        return self.store.part(self.place)


class TensorView(Reference):
    """vx_tensor_view: a box, (start, end) per dimension."""

    type = Type.VX_TYPE_TENSOR_VIEW

    def __init__(self, context: Context, box: Box) -> None:
        super().__init__(context)
        self.box = box


class TensorAddressing(Reference):
    """vx_tensor_addressing: extents in elements and strides in bytes of user memory."""

    type = Type.VX_TYPE_TENSOR_ADDRESSING

    def __init__(self, context: Context, dims: tuple[int, ...], strides: tuple[int, ...]) -> None:
        super().__init__(context)
        self.dims = dims
        self.strides = strides


def numbers(values: Any, count: int, low: int, what: str) -> tuple[int, ...]:
    """Return `count` whole numbers of at least `low`. Raises VxError (invalid parameters)."""
    if not isinstance(values, (Sequence, np.ndarray)) or isinstance(values, str):
        raise parameters(f"{what} is {values!r}: it must be {count} whole numbers.")
    if len(values) != count:
        raise parameters(f"{what} has {len(values)} numbers: it must have {count}.")
    return tuple(whole(v, low, LARGEST, what) for v in values)


def new_meta(dims: Any, num: Any, kind: Any, fraction: Any, virtual: bool) -> tuple[Any, ...]:
    """Return checked dimensions, type and fixed-point position of a new tensor."""
    least = 0 if virtual else 1
    count = whole(num, least, MAX_DIMENSIONS, "num_of_dims")
    sizes = numbers(() if count == 0 and dims is None else dims, count, least, "sizes")
    if math.prod(sizes) > LARGEST:
        raise parameters(f"sizes {sizes} make {math.prod(sizes)} elements: at most {LARGEST}.")
    element = member(Type, kind, "data_format")
    allowed = element in NUMPY or (virtual and element is Type.VX_TYPE_INVALID)
    if not allowed:
        names = ", ".join(t.name for t in NUMPY)
        raise parameters(f"data_format is {element.name}. Use one of {names}.")
    most = 15 if element is Type.VX_TYPE_INT16 or element is Type.VX_TYPE_INVALID else 0
    return sizes, element, whole(fraction, 0, most, f"fixed_point_pos of {element.name}")


def vxCreateTensor(
    context: Context, num_of_dims: int, sizes: Sequence[int], data_format: int, fixed_point_pos: int
) -> Tensor:
    """Return a new tensor of zeros.

    sizes: in elements, innermost first. data_format: VX_TYPE_INT16, _UINT8, _INT8 or _FLOAT32.
    fixed_point_pos: fraction bits of an int16 element, 0 to 15. Raises VxError.
    """
    require(Context, context, "context")
    dims, kind, fraction = new_meta(sizes, num_of_dims, data_format, fixed_point_pos, False)
    try:
        return Tensor(context, Store(dims, kind, fraction, None))
    except MemoryError:
        raise VxError(
            Status.VX_ERROR_NO_MEMORY, f"a tensor of sizes {dims} does not fit into memory."
        ) from None


def vxCreateTensorView(
    context: Context,
    view_array_start: Sequence[int],
    view_array_end: Sequence[int],
    num_view_dimensions: int,
) -> TensorView:
    """Return a view: 0 <= start < end along each dimension. Raises VxError."""
    require(Context, context, "context")
    count = whole(num_view_dimensions, 1, MAX_DIMENSIONS, "numViewDimensions")
    starts = numbers(view_array_start, count, 0, "view_array_start")
    ends = numbers(view_array_end, count, 0, "view_array_end")
    if any(a >= b for a, b in zip(starts, ends, strict=True)):
        raise parameters(f"view from {starts} to {ends}: each start must be below its end.")
    return TensorView(context, tuple(zip(starts, ends, strict=True)))


def vxCreateTensorAddressing(
    context: Context,
    addressing_array_dimension: Sequence[int],
    addressing_array_stride: Sequence[int],
    num_view_dimensions: int,
) -> TensorAddressing:
    """Return a layout of user memory: extents in elements, strides in bytes, innermost first.

    Raises VxError.
    """
    require(Context, context, "context")
    count = whole(num_view_dimensions, 1, MAX_DIMENSIONS, "numViewDimensions")
    dims = numbers(addressing_array_dimension, count, 1, "addressing_array_dimension")
    strides = numbers(addressing_array_stride, count, 1, "addressing_array_stride")
    return TensorAddressing(context, dims, strides)


def inside(dims: tuple[int, ...], box: Box) -> None:
    """Raise VxError (invalid parameters) where a box does not lie within `dims`."""
    if len(dims) != len(box):
        raise parameters(f"view has {len(box)} dimensions, tensor has {len(dims)}.")
    if any(end > d for (_, end), d in zip(box, dims, strict=True)):
        ends = tuple(end for _, end in box)
        raise parameters(f"view ends at {ends}, beyond the tensor's sizes {dims}.")


def vxCreateTensorFromView(tensor: Tensor, view: TensorView) -> Tensor:
    """Return a tensor that is a part of another: updates of either are seen in both.

    Raises VxError where the view leaves the tensor, or a virtual tensor has no dimensions yet.
    """
    require(Tensor, tensor, "tensor")
    require(TensorView, view, "view")
    same_context(tensor.home, view, "view")
    if not tensor.store.sized:
        raise VxError(
            Status.VX_ERROR_INVALID_DIMENSION,
            "a virtual tensor without dimensions has no views. Give its sizes.",
        )
    inside(tensor.dims, view.box)
    moved = tuple(
        (first + start, first + end)
        for (first, _), (start, end) in zip(tensor.place, view.box, strict=True)
    )
    return Tensor(tensor.home, tensor.store, moved)


def vxQueryTensor(tensor: Tensor, attribute: int) -> Any:
    """Return an attribute: number of dimensions, dimensions, type or fixed-point position."""
    require(Tensor, tensor, "tensor")
    which = member(TensorAttribute, attribute, "attribute")
    if which is TensorAttribute.VX_TENSOR_NUM_OF_DIMS:
        return len(tensor.dims)
    if which is TensorAttribute.VX_TENSOR_DIMS:
        return tensor.dims
    if which is TensorAttribute.VX_TENSOR_DATA_TYPE:
        return tensor.store.kind
    return tensor.store.fraction


def vxReleaseTensor(tensor: Tensor) -> Status:
    """Release one reference to a tensor."""
    return release(require(Tensor, tensor, "tensor"))


def vxReleaseTensorView(tensor_view: TensorView) -> Status:
    """Release one reference to a view."""
    return release(require(TensorView, tensor_view, "tensor_view"))


def vxReleaseTensorAddressing(tensor_addr: TensorAddressing) -> Status:
    """Release one reference to a layout of user memory."""
    return release(require(TensorAddressing, tensor_addr, "tensor_addr"))

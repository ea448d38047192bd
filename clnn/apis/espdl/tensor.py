"""dl::Tensor: integers with an exponent, in memory of its own or shared, perhaps with padding around.

Elements of an image (height, width, channel) lie at ((y + top) * W + x + left) * C + c from `element`,
with W and C the width and the channels of shape_with_padding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from clnn.apis.espdl.shapes import expanded, order_of, squeezed
from clnn.apis.espdl.values import Value, evaluate
from clnn.errors import DTypeError, ShapeError
from clnn.types import Array

KINDS = ("int8", "uint8", "int16", "float32")
NONE = (0, 0, 0, 0)  # padding


class Tensor:
    """A tensor of int8, uint8, int16 or float32; functions that set something return the tensor.

    What a layer computes for it runs when its elements are asked for.
    """

    shape: list[int]
    shape_with_padding: list[int]
    padding: list[int]

    def __init__(self, kind: npt.DTypeLike | Tensor = np.int16, deep: bool = True) -> None:
        """Make an empty tensor, or one like another with a copy of its elements, or the same ones.

        Raises DTypeError for an element type that ESP-DL does not have.
        """
        given = kind if isinstance(kind, Tensor) else None
        self.dtype: np.dtype[Any] = kind.dtype if isinstance(kind, Tensor) else np.dtype(kind)
        if str(self.dtype) not in KINDS:
            raise DTypeError(f"a Tensor of {self.dtype}: {', '.join(KINDS)} are possible.")
        self.exponent, self.auto_free = 0, True
        self.members: tuple[Tensor, ...] = ()  # that lie in its memory, one after the other
        self._memory: Array | None = None
        self._value: Value | None = None
        self.set_shape((0,))
        if given is not None:
            self.exponent, self.auto_free = given.exponent, given.auto_free
            self.set_shape(given.shape)
            self.padding = list(given.padding)
            self.shape_with_padding = list(given.shape_with_padding)
            held = given.element
            if held is not None:
                self._memory = held.copy() if deep else held
                self.auto_free = self.auto_free and deep

    # What is computed for it

    def hold(self, value: Value) -> Tensor:
        """Let elements be what a value becomes, when they are asked for."""
        self._value = value
        return self

    @property
    def pending(self) -> bool:
        """Whether elements are not computed yet."""
        return self._value is not None

    def value(self) -> Value:
        """Return what the elements are, for a layer: as they are now. Raises ShapeError."""
        if self._value is not None:
            return self._value
        if self._memory is None:
            raise ShapeError("a layer was called with a tensor that has no element.")
        return Value(np.array(self.view(), order="C"))

    def settle(self) -> Tensor:
        """Compute what is pending."""
        settle(self)
        return self

    def store(self, array: Array) -> None:
        """Write elements, in the memory that there is, or in zeroed memory of its own."""
        self._value = None
        if self._memory is None:
            self.calloc_element()
        self.view()[...] = array

    # Memory

    @property
    def element(self) -> Array | None:
        """The memory from the first element on (of padding, where there is some); None without."""
        if self._value is not None:
            self.settle()
        return self._memory

    @element.setter
    def element(self, memory: Array | None) -> None:
        self._value, self._memory = None, None
        if memory is not None:
            self.set_element(memory)

    def set_auto_free(self, auto_free: bool) -> Tensor:
        """Say whether free_element gives the memory away."""
        self.auto_free = auto_free
        return self

    def set_element(self, element: Array, auto_free: bool = False) -> Tensor:
        """Take memory of the caller: a contiguous array of the tensor's type, of at least get_size().

        Raises ShapeError where there is memory already, DTypeError for another type.
        """
        if self._memory is not None or self._value is not None:
            raise ShapeError("the tensor has an element already: free_element() or reset() first.")
        if element.dtype != self.dtype:
            raise DTypeError(f"an element of {element.dtype} for a tensor of {self.dtype}.")
        if not element.flags.c_contiguous:
            raise ShapeError("the memory of an element must be contiguous.")
        self._memory, self.auto_free = element.reshape(-1), auto_free
        return self

    def calloc_element(self, auto_free: bool = True) -> bool:
        """Make zeroed memory; False where there is some already."""
        if self._memory is not None:
            return False
        self._memory, self.auto_free = np.zeros(self.get_size(), self.dtype), auto_free
        return True

    def malloc_element(self, auto_free: bool = True) -> bool:
        """Make memory; False where there is some already."""
        return self.calloc_element(auto_free)

    def apply_element(self, padding_value: float = 0, auto_free: bool = True) -> bool:
        """Make memory with `padding_value` in the padding; False where there is some already."""
        if not self.calloc_element(auto_free):
            return False
        if len(self.shape) == 3:
            self.set_padding_value(self.padding, padding_value)
        return True

    def free_element(self) -> None:
        """Give the memory away, where the tensor may (auto_free)."""
        if self.auto_free:
            self._memory, self._value = None, None

    def reset(self) -> Tensor:
        """Forget memory, shape, padding and exponent."""
        self._memory, self._value, self.auto_free, self.exponent = None, None, True, 0
        return self.set_shape((0,))

    def copy_element(self, other: Tensor, deep: bool = True) -> Tensor:
        """Take another tensor's elements: a copy, or its memory. Raises ShapeError for another size."""
        held = other.element
        if held is None or self.get_size() != other.get_size():
            raise ShapeError(
                f"copy_element of {other.get_size()} elements to {self.get_size()}"
                f"{'' if held is not None else ', which are not there'}."
            )
        self._value = None
        if deep:
            self.malloc_element()
            assert self._memory is not None
            self._memory[: self.get_size()] = held[: self.get_size()]
        else:
            self._memory, self.auto_free = held, False
        return self

    def assign(self, other: Tensor) -> Tensor:
        """Do what operator= does: take exponent, shape and a copy of the elements."""
        held = other.element
        self.reset()
        self.exponent, self.auto_free = other.exponent, other.auto_free
        self.set_shape(other.shape)
        self.padding, self.shape_with_padding = list(other.padding), list(other.shape_with_padding)
        self._memory = None if held is None else held[: other.get_size()].copy()
        return self

    @staticmethod
    def arange(size: int, kind: npt.DTypeLike = np.int16) -> Tensor:
        """Return a tensor with 0, 1, ... of one axis."""
        made = Tensor(kind).set_shape((size,))
        return made.set_element(np.arange(size).astype(made.dtype), True)

    # Shape

    def set_exponent(self, exponent: int) -> Tensor:
        """Say what a step is worth: 2**exponent."""
        self.exponent = int(exponent)
        return self

    def set_shape(self, shape: Sequence[int]) -> Tensor:
        """Set the shape, without padding. Raises ShapeError for a negative extent."""
        found = [int(d) for d in shape]
        if any(d < 0 for d in found):
            raise ShapeError(f"a tensor of shape {found}: extents must not be negative.")
        self.shape = found
        self.shape_with_padding = list(found)
        self.padding = [0] * max(2 * (len(found) - 1), 0)
        return self

    @property
    def axis_offset(self) -> list[int]:
        """How far neighbours along each axis lie apart, in elements."""
        return [math.prod(self.shape_with_padding[k + 1 :]) for k in range(len(self.shape))]

    def get_axis_offset(self) -> list[int]:
        """Return axis_offset."""
        return self.axis_offset

    def get_size(self) -> int:
        """Return the number of elements, with padding."""
        return math.prod(self.shape_with_padding)

    def is_same_shape(self, other: Tensor) -> bool:
        """Whether another tensor has this shape."""
        return self.shape == other.shape

    def set_padding_size(self, padding: Sequence[int]) -> Tensor:
        """Let padding [top, bottom, left, right] grow to at least these; elements are moved.

        Raises ShapeError for a tensor that is no image, or for negative sizes.
        """
        self._image("set_padding_size", padding)
        grown = [max(a, int(b)) for a, b in zip(self.padding, padding, strict=True)]
        if grown == self.padding:
            return self
        kept = None if self._memory is None else self.view().copy()
        self.padding = grown
        self.shape_with_padding[0] = self.shape[0] + grown[0] + grown[1]
        self.shape_with_padding[1] = self.shape[1] + grown[2] + grown[3]
        if kept is not None:
            self._memory, self.auto_free = np.zeros(self.get_size(), self.dtype), True
            self.view()[...] = kept
        return self

    def set_padding_value(self, padding: Sequence[int], value: float) -> Tensor:
        """Write `value` to the innermost [top, bottom, left, right] of the padding.

        Raises ShapeError where these exceed the padding, or there is no memory.
        """
        self._inside("set_padding_value", padding)
        inner = np.ones(self.shape[:2], bool)
        around = np.pad(inner, ((padding[0], padding[1]), (padding[2], padding[3])))
        self.view(padding)[~around] = value
        return self

    def _image(self, what: str, padding: Sequence[int]) -> None:
        if len(self.shape) != 3 or len(padding) != 4 or min(padding) < 0:
            raise ShapeError(
                f"{what} of a tensor of shape {self.shape} with {list(padding)}: it needs (height,"
                " width, channel) and [top, bottom, left, right], none negative."
            )

    def _inside(self, what: str, padding: Sequence[int]) -> None:
        self._image(what, padding)
        if any(p > q for p, q in zip(padding, self.padding, strict=True)):
            raise ShapeError(
                f"{what} with {list(padding)}: the tensor's padding is {self.padding}."
            )

    # Elements

    def get_element_offset(self, padding: Sequence[int] = NONE) -> int:
        """Return how many elements lie before the image with `padding` around it. Raises ShapeError."""
        if len(self.shape) != 3:
            return 0
        self._inside("get_element_ptr", padding)
        top, left = self.padding[0] - padding[0], self.padding[2] - padding[2]
        return (top * self.shape_with_padding[1] + left) * self.shape_with_padding[2]

    def get_element_ptr(self, padding: Sequence[int] = NONE) -> Array:
        """Return the memory from the first element of the image with `padding` around it on."""
        held = self.element
        if held is None:
            raise ShapeError("get_element_ptr of a tensor that has no element.")
        return held[self.get_element_offset(padding) :]

    def get_element_index(self, axis_index: Sequence[int], with_padding: bool = False) -> int:
        """Return where an element lies, by its index along each axis. Raises ShapeError outside."""
        limits = self.shape_with_padding if with_padding else self.shape
        if len(axis_index) != len(limits) or any(
            not 0 <= k < d for k, d in zip(axis_index, limits, strict=True)
        ):
            raise ShapeError(f"index {list(axis_index)} is outside of {limits}.")
        begin: int = 0 if with_padding else self.get_element_offset()
        pairs = zip(axis_index, self.axis_offset, strict=True)
        return begin + sum(int(k) * step for k, step in pairs)

    def get_axis_index(self, element_index: int) -> list[int]:
        """Return the index along each axis (of shape_with_padding) of the element at a place."""
        if not 0 <= element_index < self.get_size():
            raise ShapeError(f"element {element_index} of {self.get_size()}.")
        found = np.unravel_index(element_index, tuple(self.shape_with_padding))
        return [int(k) for k in found]

    def get_element_value(self, index: Sequence[int] | int, with_padding: bool = False) -> Any:
        """Return an element, by its index along each axis or its place in memory."""
        held = self.element
        if held is None:
            raise ShapeError("get_element_value of a tensor that has no element.")
        place = index if isinstance(index, int) else self.get_element_index(index, with_padding)
        return held[place].item()

    def view(self, padding: Sequence[int] = NONE) -> Array:
        """Return the elements as a numpy view of the memory, with `padding` of an image around."""
        held = self.element
        if held is None:
            raise ShapeError("the tensor has no element.")
        shape = list(self.shape)
        if len(shape) == 3:
            shape[0] += padding[0] + padding[1]
            shape[1] += padding[2] + padding[3]
        steps = tuple(s * self.dtype.itemsize for s in self.axis_offset)
        begin = self.get_element_offset(padding)
        last = begin + sum((d - 1) * s for d, s in zip(shape, self.axis_offset, strict=True))
        if math.prod(shape) and last >= held.size:
            raise ShapeError(
                f"the element has {held.size} elements; {self.shape} needs {last + 1}."
            )
        return np.ndarray(tuple(shape), self.dtype, held.data, begin * self.dtype.itemsize, steps)

    def set_value(self, *arguments: Any) -> Tensor:
        """Write a number or another tensor, broadcast, to all elements or to a slice of them.

        Arguments: value, or [start, stop] of each axis in a flat list, then value.
        """
        *place, value = arguments
        target = self.view()
        if place:
            target = target[self._ranges(place[0])]
        target[...] = value.view() if isinstance(value, Tensor) else value
        return self

    def _ranges(self, limits: Sequence[int]) -> tuple[slice, ...]:
        if len(limits) != 2 * len(self.shape):
            raise ShapeError(
                f"a slice of {self.shape} by {list(limits)}: it needs two for each axis."
            )
        return tuple(slice(a, b) for a, b in zip(limits[::2], limits[1::2], strict=True))

    def slice(self, axis_index_range: Sequence[int]) -> Tensor:
        """Return a tensor with a copy of a part: [start, stop] of each axis in a flat list."""
        return self._like(self.view()[self._ranges(axis_index_range)])

    def _like(self, array: Array) -> Tensor:
        made = Tensor(self.dtype).set_exponent(self.exponent).set_shape(array.shape)
        return made.set_element(np.array(array, self.dtype, order="C"), True)

    def _become(self, array: Array) -> Tensor:
        """Take other elements and their shape, without padding."""
        kept = np.ascontiguousarray(array).reshape(-1).copy()
        self._value, self._memory, self.auto_free = None, kept, True
        return self.set_shape(array.shape)

    def reshape(self, shape: Sequence[int]) -> Tensor:
        """Put the same elements under another shape. Raises ShapeError where counts differ."""
        if math.prod(shape) != math.prod(self.shape):
            raise ShapeError(f"reshape of {self.shape} to {list(shape)}: counts differ.")
        if self.element is None:
            return self.set_shape(shape)
        return self._become(self.view().reshape(tuple(shape)))

    def flatten(self) -> Tensor:
        """Put all elements on one axis."""
        return self.reshape((math.prod(self.shape),))

    def squeeze(self, axis: int | None = None) -> Tensor:
        """Take away an axis of extent 1, or all of them. Raises ShapeError for another extent."""
        return self.reshape(squeezed(self.shape, axis))

    def expand_dims(self, axis: int | Sequence[int]) -> Tensor:
        """Add axes of extent 1 at these places of the new shape."""
        return self.reshape(expanded(self.shape, axis))

    def transpose(self, *arguments: Any) -> Tensor:
        """Turn the axes around, or permute them: (perm), or (input, perm) for another's elements."""
        given = arguments[0] if arguments and isinstance(arguments[0], Tensor) else self
        rest = arguments[1:] if given is not self or arguments[:1] == (self,) else arguments
        array = given.view().transpose(order_of(given.shape, rest[0] if rest else ()))
        self.exponent = given.exponent
        return self._become(array)

    def reverse(self, axis: Sequence[int]) -> Tensor:
        """Turn elements around along axes."""
        self.view()[...] = np.flip(self.view(), tuple(axis)).copy()
        return self

    # Text

    def print_shape(self) -> None:
        """Print the shape: of an image with its padding."""
        s, p = self.shape, self.padding
        if len(s) == 3:
            around = f"{p[0]} + {s[0]} + {p[1]}, {p[2]} + {s[1]} + {p[3]}"
            print(f"shape = ({around}, {s[2]}({self.shape_with_padding[2]}))")
        else:
            print(f"shape = ({', '.join(map(str, s))})")

    def print(self, axis_index_range: Sequence[int] = (), message: str = "") -> None:
        """Print a part: [start, stop] of each axis in a flat list; all without."""
        part = self.view()[self._ranges(axis_index_range)] if axis_index_range else self.view()
        print(f"{message}{list(axis_index_range)} | ", end="")
        self.print_shape()
        print(part)

    def print_all(self, message: str = "") -> None:
        """Print all elements in one line."""
        print(f"\n{message} | ", end="")
        self.print_shape()
        print(" ".join(str(v) for v in self.view().reshape(-1)))

    def check_element(
        self, gt_element: Array, bias: int = 2, info: bool = True, failed_number: int = 0
    ) -> bool:
        """Whether elements are those of an array, up to `bias`; prints the first that are not.

        info: print shape and result. failed_number: how many wrong elements may be printed besides.
        """
        if info:
            self.print_shape()
        got = self.view().astype(np.float64)
        apart = np.abs(got - np.asarray(gt_element, np.float64).reshape(got.shape)) > bias
        wrong = np.argwhere(apart)
        for index in wrong[: failed_number + 1]:
            place = tuple(int(k) for k in index)
            want = np.asarray(gt_element).reshape(got.shape)[place]
            print(f"element{list(place)}: {self.view()[place]} v.s. {want}")
        if info and not len(wrong):
            print("PASS")
        return not len(wrong)


def settle(*tensors: Tensor) -> None:
    """Compute what is pending of several tensors, and of those in their memory, in one session."""
    waiting, found = list(tensors), dict[int, tuple[Tensor, Value]]()
    while waiting:
        tensor = waiting.pop()
        if tensor._value is not None:
            found[id(tensor)] = tensor, tensor._value
        else:
            waiting += tensor.members
    arrays = evaluate([value for _, value in found.values()])
    for (tensor, _), array in zip(found.values(), arrays, strict=True):
        tensor.store(array)

"""Arrays that follow from numbers whose uses are noted (clnn.recorded), and are made anew for others.

What reads the data of one depends on the numbers that it follows from; that is noted as a decision.
Its shape, and the elements of one that has few whole numbers, may be computed with as they are.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from clnn.recorded import Recorded, is_recorded
from clnn.types import Array


class RecordedArray:
    """An array for numbers whose uses are noted.

    array: what it is for today's numbers. make: returns it, for `given`, of which some follow from
    these. shape: its extents, noted where they follow from them. items: its elements, likewise, where
    they are known as numbers.
    """

    __slots__ = ("array", "given", "items", "make", "shape")

    def __init__(
        self,
        array: Array,
        shape: Sequence[int],
        make: Callable[..., Array],
        given: Sequence[Any],
        items: Array | None = None,
    ) -> None:
        self.array, self.shape, self.items = array, tuple(shape), items
        self.make, self.given = make, tuple(given)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its elements."""
        return self.array.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.array.ndim

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.array.itemsize

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.itemsize

    def pinned(self) -> Array:
        """Return today's array, which what follows depends on in a way that is not noted."""
        for number in _numbers_in(self.given):
            number.pinned()
        return self.array

    def asked(self, question: Callable[[Array], Any]) -> Any:
        """Return what a question about the data is answered with; only the answer is noted as a decision."""
        answer = question(self.array)
        if (number := next(_numbers_in(self.given), None)) is not None:
            number.tape.asked(question, self, answer)
        return answer

    def reshape(self, *shape: Any) -> Any:
        """Return the elements under another shape, as numpy does."""
        if self.items is None:
            return self.pinned().reshape(*shape)
        return whole_numbers(self.items.reshape(*shape), self.dtype)

    def tolist(self) -> Any:
        """Return the elements as numbers."""
        return self.pinned().tolist() if self.items is None else self.items.tolist()

    def item(self, *where: Any) -> Any:
        """Return one element as a number."""
        return self.pinned().item(*where) if self.items is None else self.items.item(*where)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.pinned() if self.items is None or not self.ndim else self.items)

    def __len__(self) -> int:
        return operator.index(self.shape[0])

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        return np.array(self.pinned(), dtype)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pinned(), name)

    __hash__ = None  # type: ignore[assignment]  # as of an array


def _on_data(name: str) -> Any:
    def method(self: RecordedArray, *given: Any) -> Any:
        return getattr(self.pinned(), name)(*(np.asarray(g) if is_made(g) else g for g in given))

    return method


for _name in (
    *("getitem", "contains", "bool", "int", "index", "float", "neg", "pos", "abs", "invert"),
    *("eq", "ne", "lt", "le", "gt", "ge"),
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"),
    *("radd", "rsub", "rmul", "rtruediv", "rfloordiv", "rmod", "rpow", "rmatmul"),
):
    setattr(RecordedArray, f"__{_name}__", _on_data(f"__{_name}__"))


def is_made(array: Any) -> bool:
    """Whether an array is made anew for other numbers."""
    return type(array) is RecordedArray


def _numbers_in(value: Any) -> Iterator[Recorded]:
    """Yield the numbers whose uses are noted that a value holds."""
    if is_recorded(value):
        yield value
    elif is_made(value):
        yield from _numbers_in(value.given)
    elif isinstance(value, Mapping):
        yield from _numbers_in((*value.values(),))
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _numbers_in(item)
    elif is_dataclass(value) and not isinstance(value, type):
        yield from _numbers_in([getattr(value, f.name) for f in fields(value)])


def whole_numbers(items: Array, dtype: Any) -> Any:
    """Return an array of whole numbers, some of them noted; a plain one where none is.

    items: an array of objects.
    """
    found = items.reshape(-1).tolist()
    today = np.array([n.value if is_recorded(n) else n for n in found], dtype).reshape(items.shape)
    if not any(map(is_recorded, found)):
        return today
    return RecordedArray(today, items.shape, _of_items, (today.dtype, items.shape, *found), items)


def counted(count: int) -> Any:
    """Return 0, 1, ... as int32, made anew for other counts."""
    if not is_recorded(count):
        return _counted(count)
    return RecordedArray(_counted(count.value), (count,), _counted, (count,))  # type: ignore[attr-defined]


def _counted(count: int) -> Array:
    return np.arange(count, dtype=np.int32)


def items_of(numbers: Sequence[Any], shape: Sequence[int] | None = None) -> Array:
    """Return numbers as an array of objects."""
    found = np.empty(len(numbers), object)
    for at, number in enumerate(numbers):
        found[at] = number
    return found if shape is None else found.reshape(tuple(shape))


def _of_items(dtype: Any, shape: tuple[int, ...], *items: int) -> Array:
    return np.array(items, dtype).reshape(shape)

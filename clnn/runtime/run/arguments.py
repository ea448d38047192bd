"""The arguments of a kernel in their order, for all who set or write them.

A tensor is two arguments: its memory, and the element of it at which the tensor begins. So is
scratch memory. A packed constant is its memory alone, for it begins there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

from clnn.types import Array

T = TypeVar("T")

Place = tuple[Any, int | None]  # memory, and the element at which something begins


def in_order(places: Iterable[Place], number: Callable[[int], Any]) -> list[Any]:
    """Return the arguments for operands that lie at `places`; `number` makes one of an int."""
    args: list[Any] = []
    for memory, start in places:
        args += [memory] if start is None else [memory, number(start)]
    return args


def set_arguments(kernel: Any, args: Iterable[Any]) -> None:
    """Set all arguments of a kernel, one by one: a function for them together is made anew in each process."""
    for number, arg in enumerate(args):
        kernel.set_arg(number, arg)


def scalar(number: int | float) -> np.generic:
    """Return a number as the argument of a kernel: a float or an int of 32 bits."""
    return np.float32(number) if isinstance(number, float) else np.int32(number)


def plain(array: Array) -> Array:
    """Return an array's memory as a type that numpy itself has, which can be copied."""
    return array if array.dtype.isbuiltin == 1 else array.view(f"u{array.itemsize}")


def at_once(work: Callable[..., T], *args: Any) -> T:
    """Do work that waits for a device, without a deadline."""
    return work(*args)

"""Element types as kernels that only move data see them: any device can, whatever it computes in."""

from __future__ import annotations

from typing import Any

import numpy as np

from clnn.types import DType

_BITS = {"half": ("ushort", np.uint16), "double": ("ulong", np.uint64)}


def move_type(dtype: DType) -> str:
    """Return the OpenCL type in which elements of `dtype` are moved without change."""
    return _BITS[dtype.cl][0] if dtype.cl in _BITS else dtype.cl


def move_value(value: float, dtype: DType) -> Any:
    """Return `value` as a number to be printed as a literal of move_type(dtype)."""
    if dtype.cl in _BITS:
        return int(np.asarray(value, dtype.numpy).view(_BITS[dtype.cl][1]))
    if dtype.numpy.kind == "b":
        return int(bool(value))
    return value

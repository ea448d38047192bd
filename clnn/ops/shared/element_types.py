"""Element types on a device: how data is moved without change, and what can be computed in."""

from __future__ import annotations

from typing import Any

import numpy as np

from clnn.errors import UnsupportedOpError
from clnn.target import Target
from clnn.types import DType, Stored, narrow

_BITS = {"half": ("ushort", np.uint16), "double": ("ulong", np.uint64)}
_FEATURE = {"half": "fp16", "double": "fp64"}


def move_type(dtype: DType) -> str:
    """Return the OpenCL type in which any device moves elements of `dtype` without change."""
    if isinstance(dtype.cl, Stored):
        return "ushort"
    return _BITS[dtype.cl][0] if dtype.cl in _BITS else dtype.cl


def move_value(value: float, dtype: DType) -> Any:
    """Return `value` as a number to be printed as a literal of move_type(dtype)."""
    if isinstance(dtype.cl, Stored):
        return int(narrow(np.asarray(value), dtype).view(np.uint16))
    if dtype.cl in _BITS:
        return int(np.asarray(value, dtype.numpy).view(_BITS[dtype.cl][1]))
    if dtype.numpy.kind == "b":
        return int(bool(value))
    return value


def require(target: Target, op: str, *ctypes: str) -> None:
    """Raise UnsupportedOpError where `op` computes in a type that the device does not have."""
    for ctype in ctypes:
        feature = _FEATURE.get(ctype)
        if feature is not None and feature not in target.features:
            raise UnsupportedOpError(
                f"{op} computes in {ctype}, and the device has no {feature}. Use a device that "
                "has it, or convert the model to float32."
            )

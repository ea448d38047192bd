"""What callers give a StagedSession, checked."""

from __future__ import annotations

from typing import Any

from clnn.errors import DTypeError, ShapeError
from clnn.ops.host.registry import Value
from clnn.runtime.run.feeds import as_array
from clnn.runtime.run.open_ports import OpenTensorInfo
from clnn.types import Array


def checked(info: OpenTensorInfo, value: Any, extents: dict[str, int]) -> Value:
    """Return an input. Raises ShapeError or DTypeError where it does not fit the model."""
    if isinstance(value, (list, tuple)) and info.dtype is None:
        return [as_array(v) for v in value]
    if info.dtype is None and (value is None or isinstance(value, dict)):
        return value
    array = as_array(value)
    if info.dtype is not None and info.dtype.kind == "O":
        array = _as_text(info.name, array)
    if info.dtype is not None and array.dtype != info.dtype:
        raise DTypeError(
            f"input {info.name!r} is {array.dtype}, model wants {info.dtype}. "
            f"Pass x.astype(np.{info.dtype})."
        )
    check_shape(info, array.shape, extents)
    return array


def _as_text(name: str, array: Array) -> Array:
    """Return text as Python strings. Raises DTypeError for what is none."""
    if array.dtype.kind == "U":
        return array.astype(object)
    wrong = next((v for v in array.reshape(-1).tolist() if not isinstance(v, str)), None)
    if wrong is not None:
        raise DTypeError(
            f"input {name!r} holds {wrong!r:.40}, model wants text. Pass an array or a list of str."
        )
    return array.astype(object)


def check_shape(info: OpenTensorInfo, shape: tuple[int, ...], extents: dict[str, int]) -> None:
    """Raise ShapeError where a shape does not fit an input. extents: of named dimensions so far."""
    fits = info.shape is None or (
        len(shape) == len(info.shape)
        and all(
            got == (want if isinstance(want, int) else extents.setdefault(want, got))
            for got, want in zip(shape, info.shape, strict=True)
        )
    )
    if not fits:
        raise ShapeError(f"input {info.name!r} is {shape}, model wants {info.shape}.")

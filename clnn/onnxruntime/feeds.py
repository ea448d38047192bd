"""Inputs as onnxruntime takes them: arrays of the model's type, lists converted to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from clnn.onnxruntime.errors import Fail, FeedError, InvalidArgument
from clnn.onnxruntime.nodes import type_text
from clnn.onnxruntime.values import OrtValue
from clnn.types import Array

if TYPE_CHECKING:
    from clnn.importers.onnx.port_info import PortInfo


def taken(port: PortInfo, value: Any) -> Any:
    """Return a feed as a session takes it.

    Arrays must have the model's type; lists are converted to it. Numbers without an array around
    them, tuples and texts are refused, as by onnxruntime. Raises FeedError, InvalidArgument or Fail.
    """
    if type(value) is np.ndarray and port.kind == "tensor" and value.dtype == port.dtype:
        check_dims(port, value.shape)
        return value
    if isinstance(value, OrtValue):
        value = value.numpy()
    if port.kind in ("sequence", "optional") and not isinstance(value, np.ndarray):
        return _sequence(port, value)
    if port.kind == "map":
        return _map(port, value)
    if isinstance(value, np.ndarray):
        array = np.asarray(value)
    elif isinstance(value, list):
        array = _from_list(port, value)
    elif value is None:
        raise Fail(f"input {port.name!r} has no value. Pass an array of {port.type}.")
    elif isinstance(value, dict):
        raise InvalidArgument(f"input {port.name!r} is a map, the model wants {port.type}.")
    else:
        raise FeedError(
            f"input {port.name!r} is an object of type {type(value).__name__}. Pass a numpy array or a "
            "list, or np.asarray(value) with the type of the model."
        )
    if port.kind == "sequence":
        raise InvalidArgument(f"input {port.name!r} is a tensor, the model wants {port.type}.")
    return _checked(port, array)


def _checked(port: PortInfo, array: Array) -> Array:
    """Return an array in the machine's byte order. Raises InvalidArgument where it does not fit."""
    if array.dtype != port.dtype:
        if type_text(array.dtype) != port.type.removeprefix("optional(").rstrip(")") + ")":
            raise InvalidArgument(
                f"Unexpected input data type of {port.name!r}: {type_text(array.dtype)}, the model "
                f"wants {port.type}."
            )
        if array.dtype.kind == "S":
            return np.array([v.decode() for v in array.ravel()], object).reshape(array.shape)
        if array.dtype.kind in "OU":
            return array.astype(object)
        array = array.astype(array.dtype.newbyteorder("="))
    check_dims(port, array.shape)
    return array


def check_dims(port: PortInfo, shape: Sequence[int]) -> None:
    """Raise InvalidArgument where a shape does not fit what the model says.

    As in onnxruntime, a model that says nothing, or a scalar, takes any shape, and names of
    dimensions say nothing.
    """
    dims = port.dims
    if not dims:
        return
    if len(dims) != len(shape):
        raise InvalidArgument(
            f"Invalid rank for input: {port.name} Got: {len(shape)} Expected: {len(dims)}. It is "
            f"{tuple(shape)}, the model wants {dims}."
        )
    if any(map(_differ, shape, dims)):
        wrong = [
            (axis, got, want)
            for axis, (got, want) in enumerate(zip(shape, dims, strict=True))
            if _differ(got, want)
        ]
        rows = "".join(f"\n index: {axis} Got: {got} Expected: {want}" for axis, got, want in wrong)
        raise InvalidArgument(f"Got invalid dimensions for input: {port.name}{rows}")


def _differ(got: int, want: int | str | None) -> bool:
    return got != want and isinstance(want, int)


def _from_list(port: PortInfo, value: list[Any]) -> Array:
    if port.type == "tensor(string)":
        return np.array(_texts(value), dtype=object)
    if port.dtype is None:
        raise FeedError(f"input {port.name!r} is {port.type}, which numpy has no type for.")
    try:
        return np.asarray(value, dtype=port.dtype)
    except (TypeError, ValueError, OverflowError) as err:
        raise FeedError(
            f"the list for input {port.name!r} makes no tensor of {port.type}: {err}."
        ) from err


def _texts(value: Any) -> Any:
    return [_texts(v) for v in value] if isinstance(value, list) else str(value)


_OF_MAPS: dict[str, type] = {"string": str, "int64": int, "float": float, "double": float}


def _map(port: PortInfo, value: Any) -> dict[Any, Any]:
    """Return a map with keys and values of the model's types."""
    if not isinstance(value, dict):
        raise FeedError(
            f"input {port.name!r} is of type {type(value).__name__}, the model wants {port.type}. "
            "Pass a dict."
        )
    if not value:
        raise FeedError(
            f"input {port.name!r}: Size of dictionary is empty, the model wants {port.type}."
        )
    key, item = port.type.removeprefix("map(").removesuffix("))").split(",tensor(")
    wrong = next((k for k in value if not isinstance(k, _OF_MAPS[key])), None)
    if wrong is not None:
        raise InvalidArgument(
            f"Unexpected input data type of {port.name!r}: key {wrong!r}, the model wants {port.type}."
        )
    wanted = _OF_MAPS[item]
    for found in value.values():
        if isinstance(found, str) != (wanted is str):
            raise FeedError(f"input {port.name!r} holds {found!r}, the model wants {port.type}.")
    return {k: wanted(v) for k, v in value.items()}


def _sequence(port: PortInfo, value: Any) -> Any:
    if value is None and port.kind == "optional":
        return None
    if not isinstance(value, list):
        raise FeedError(
            f"input {port.name!r} is of type {type(value).__name__}, the model wants {port.type}. "
            "Pass a list of arrays."
        )
    for item in value:
        if not isinstance(item, np.ndarray):
            raise FeedError(
                f"input {port.name!r} holds an object of type {type(item).__name__}. Pass a list of "
                "arrays."
            )
        if item.dtype.newbyteorder("=") != port.dtype:
            raise FeedError(
                f"input {port.name!r} holds {type_text(item.dtype)}, the model wants {port.type}."
            )
    return [np.asarray(item, port.dtype) for item in value]

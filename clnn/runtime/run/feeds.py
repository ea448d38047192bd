"""What callers give a session: arrays by name, checked before anything runs."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from clnn.errors import DTypeError, InputNameError, ShapeError
from clnn.plan.plan import Port
from clnn.types import Array, DType


def arrays_of(
    feeds: Mapping[str, Any], ports: Mapping[str, Port], bound: Container[str]
) -> dict[str, Array]:
    """Return the arrays of a run by the values that they are.

    ports: the inputs that are wanted. bound: names of inputs that are read from buffers. Raises
    InputNameError, ShapeError or DTypeError where `feeds` does not fit.
    """
    try:
        names = feeds.keys()
    except AttributeError:
        wanted = ", ".join(f"{name!r}: ..." for name in ports)
        raise InputNameError(
            f"a session takes {{input name: array}}, not {type(feeds).__name__}. Call it with "
            f"{{{wanted}}}."
        ) from None
    if names != ports.keys():
        _refuse(feeds, list(ports), bound)
    found = {}
    for name, port in ports.items():
        value, want = feeds[name], port.type
        plain = type(value) is np.ndarray and value.flags.c_contiguous
        if not plain or value.dtype is not want.dtype.numpy or value.shape != want.shape:
            value = _check_array(port, value)
        found[port.host] = value
    return found


def _refuse(feeds: Mapping[str, Any], ports: Sequence[str], bound: Container[str]) -> NoReturn:
    """Say which names are wrong."""
    twice = [n for n in feeds if n in bound]
    if twice:
        raise InputNameError(
            f"input {twice[0]!r} is bound to a buffer and given in feeds as well. Leave it out, "
            "or call unbind_input first."
        )
    missing = [n for n in ports if n not in feeds]
    unknown = [n for n in feeds if n not in ports]
    raise InputNameError(names_message("input", unknown, missing, ports))


def _check_array(port: Port, value: Any) -> Array:
    array = value if type(value) is np.ndarray else as_array(value)
    require_fit(port, array.shape, array.dtype)
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def require_fit(port: Port, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Raise ShapeError or DTypeError where a tensor does not fit an input."""
    check_dtype(port.name, dtype, port.type.dtype)
    if shape != port.type.shape:
        raise ShapeError(_shape_message(port.name, shape, port.type.shape))


def check_dtype(name: str, dtype: np.dtype[Any], want: DType) -> None:
    """Raise DTypeError where an input has another element type than the model wants."""
    if dtype != want.numpy:
        raise DTypeError(
            f"input {name!r} is {dtype}, model wants {want.name}. Pass x.astype(np.{want.name})."
        )


def as_array(value: Any) -> Array:
    """Return what a caller gives for a tensor as an array, without a copy where there is a way."""
    if type(value) is np.ndarray:
        return value
    plain = hasattr(value, "__array__") or hasattr(value, "__array_interface__")
    wanted = hasattr(value, "__dlpack__") and not plain
    return np.from_dlpack(value) if wanted else np.asarray(value)


def _shape_message(name: str, got: tuple[int, ...], want: tuple[int, ...]) -> str:
    head = f"input {name!r} is {got}, model wants {want}: "
    if len(got) != len(want):
        return head + f"it has {len(got)} axes, must have {len(want)}."
    wrong = [a for a in range(len(want)) if got[a] != want[a]]
    return head + "; ".join(f"axis {a} is {got[a]}, must be {want[a]}" for a in wrong) + "."


def names_message(
    what: str, unknown: Sequence[str], missing: Sequence[str], known: Sequence[str]
) -> str:
    """Return what is wrong with names of inputs or outputs, and which there are."""
    parts = []
    if unknown:
        parts.append(f"no {what} is named {', '.join(map(repr, unknown))}")
    if missing:
        parts.append(f"{what} {', '.join(map(repr, missing))} is missing")
    text = f"{'; '.join(parts)}. The model's {what}s are: {', '.join(map(repr, known))}."
    for name in unknown:
        from difflib import get_close_matches

        close = get_close_matches(name, known, n=1)
        text += f" Did you mean {close[0]!r} for {name!r}?" if close else ""
    return text

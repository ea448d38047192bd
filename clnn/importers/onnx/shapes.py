"""Shapes of a model's inputs: what the file fixes, and what `shapes` adds for open dimensions."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import onnx

from clnn.errors import ModelError, OpenShapeError, ShapeError
from clnn.importers.onnx.dims import is_fixed, symbol
from clnn.importers.onnx.info import Dims, ValueInfo
from clnn.importers.onnx.limits import MAX_EXTENT, check_dims, show
from clnn.recorded import index, integer

Shapes = Mapping[str, "Sequence[int] | int"]


def input_shapes(
    values: Sequence[onnx.ValueInfoProto], shapes: Shapes
) -> dict[str, tuple[int, ...]]:
    """Return the shape of each input.

    shapes: input name -> shape, or name of a symbolic dimension -> extent; a shape given for one
    input also fixes its symbolic dimensions for the others. A dimension that the file leaves out
    or gives as a negative number is open. Raises ShapeError for open dimensions, for values that
    contradict the file or each other, and for keys that match nothing. What is open, and what has a
    name, says clnn.importers.onnx.dims.
    """
    wanted = {name: _wanted(name, shapes[name]) for name in shapes}
    _check_keys(values, wanted)
    extents = {name: extent for name, extent in wanted.items() if isinstance(extent, int)}
    whole = {name: shape for name, shape in wanted.items() if isinstance(shape, tuple)}
    for value in values:
        if value.name in whole:
            _bind(value, whole[value.name], extents)
    open_rows: list[str] = []
    for value in values:
        if value.name not in whole:
            whole[value.name] = _resolved(value, extents, open_rows)
    if open_rows:
        raise OpenShapeError(_open_message(values, open_rows))
    return whole


def with_shapes(values: Sequence[ValueInfo], shapes: Shapes) -> list[ValueInfo]:
    """Return inputs with what `shapes` (as input_shapes takes them) say of their dimensions.

    Open dimensions without a name are called INPUT.AXIS.
    """
    extents: dict[str, Any] = dict(shapes)
    for value in values:
        if value.name in shapes:
            whole = cast("Sequence[int]", shapes[value.name])
            extents |= {str(d): e for d, e in zip(value.dims or (), whole, strict=True)}

    def known(value: ValueInfo) -> Dims | None:
        if value.name in shapes:
            return tuple(cast("Sequence[int]", shapes[value.name]))
        if value.dims is None:
            return None
        named = (d if d != "" else f"{value.name}.{k}" for k, d in enumerate(value.dims))
        return tuple(extents.get(d, d) if isinstance(d, str) else d for d in named)

    return [replace(value, dims=known(value)) for value in values]


def _wanted(name: str, value: Any) -> tuple[int, ...] | int:
    try:
        whole = isinstance(value, Iterable)
        shape = tuple(map(index, value if whole else [value]))
        check_dims("it", shape)
        return shape if whole else shape[0]
    except (TypeError, ModelError) as err:
        raise ShapeError(
            f"shapes[{name!r}] is {value!r}. Give a shape such as (1, 3, 224, 224) for an input, "
            f"or one whole number for a symbolic dimension, each from 0 to {MAX_EXTENT}."
        ) from err


def _dims(value: onnx.ValueInfoProto) -> Any:
    return value.type.tensor_type.shape.dim


def _symbols(value: onnx.ValueInfoProto) -> list[str]:
    return [name for d in _dims(value) if (name := symbol(d))]


def _check_keys(
    values: Sequence[onnx.ValueInfoProto], shapes: Mapping[str, tuple[int, ...] | int]
) -> None:
    inputs = [v.name for v in values]
    symbols = sorted({s for v in values for s in _symbols(v)})
    for name, wanted in shapes.items():
        known = symbols if isinstance(wanted, int) else inputs
        if name in known:
            continue
        if name in inputs:
            raise ShapeError(
                f"shapes[{name!r}] is {wanted}, but {name!r} is an input: give its whole shape, "
                f"such as {_text(values[inputs.index(name)])} with numbers."
            )
        if name in symbols:
            raise ShapeError(
                f"shapes[{name!r}] is {wanted}, but {name!r} is a dimension: give one number."
            )
        close = difflib.get_close_matches(name, [*inputs, *symbols], n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ShapeError(
            f"shapes[{name!r}] matches no input and no symbolic dimension of the model.{hint} Its "
            f"inputs are {inputs}, its symbolic dimensions {symbols}."
        )


def _bind(value: onnx.ValueInfoProto, wanted: tuple[int, ...], extents: dict[str, int]) -> None:
    """Check a given shape against the file, and note what it says of symbolic dimensions."""
    if not value.type.tensor_type.HasField("shape"):
        return
    dims = list(_dims(value))
    wrong = len(dims) != len(wanted) or any(
        d.dim_value > 0 and d.dim_value != w for d, w in zip(dims, wanted, strict=True)
    )
    if wrong:
        raise ShapeError(
            f"shape {wanted} does not fit input {show(value.name)}, which the model gives as "
            f"{_text(value)}."
        )
    for dim, extent in zip(dims, wanted, strict=True):
        name = symbol(dim)
        if name and extents.setdefault(name, extent) != extent:
            raise ShapeError(
                f"shapes give dimension {name!r} as {extents[name]} and, in input "
                f"{show(value.name)}, as {extent}. One dimension has one extent."
            )


def _resolved(
    value: onnx.ValueInfoProto, extents: Mapping[str, int], open_rows: list[str]
) -> tuple[int, ...]:
    if not value.type.tensor_type.HasField("shape"):
        open_rows.append(f"{show(value.name)} has no shape at all")
        return ()
    dims, missing = [], []
    for axis, dim in enumerate(_dims(value)):
        extent = dim.dim_value if is_fixed(dim) else extents.get(symbol(dim))
        if extent is None:
            missing.append(f"axis {axis} ({symbol(dim) or 'unnamed'})")
        dims.append(integer(extent or 0))
    if missing:
        open_rows.append(f"{show(value.name)} is {_text(value)}: {', '.join(missing)}")
    else:
        check_dims(f"input {show(value.name)}", dims)
    return tuple(dims)


def _text(value: onnx.ValueInfoProto) -> str:
    """Return the shape as the file has it, such as (batch, 3, ?, ?)."""
    dims = [symbol(d) or (str(d.dim_value) if is_fixed(d) else "?") for d in _dims(value)]
    return f"({', '.join(dims)}{',' if len(dims) == 1 else ''})"


def _open_message(values: Sequence[onnx.ValueInfoProto], rows: Sequence[str]) -> str:
    examples: dict[str, str] = {}
    for value in values:
        missing = [symbol(d) for d in _dims(value) if not is_fixed(d)]
        if not value.type.tensor_type.HasField("shape") or not all(missing):
            examples[value.name] = "(...)"
        else:
            examples.update(dict.fromkeys(missing, "1"))
    example = ", ".join(f"{name!r}: {text}" for name, text in list(examples.items())[:4])
    return (
        f"the model leaves dimensions open: {'; '.join(rows)}. clnn plans memory for fixed shapes. "
        f"Pass them, by dimension or by input: shapes={{{example}}}."
    )


def has_open_image(value: onnx.ValueInfoProto) -> bool:
    """Whether a model leaves an extent of an input's image open, beside batch and channels."""
    dims = value.type.tensor_type.shape.dim
    return not all(dim.HasField("dim_value") for dim in list(dims)[2:])

"""Writes .espdl files, with the flatbuffers package: the counterpart of clnn/importers/espdl/model.py."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import flatbuffers  # type: ignore[import-untyped]
import numpy as np

from clnn.importers.espdl.filters import packed
from clnn.importers.espdl.model import (
    FLOAT,
    FLOATS,
    INT,
    INTS,
    LINE,
    STRING,
    STRINGS,
    TYPES,
    EspModel,
    EspNode,
    EspTensor,
    EspValue,
)
from clnn.types import Array

NUMBERS = {name: number for number, name in TYPES.items()}


def stored_filter(
    name: str, filters: Array, exponents: Sequence[int], layout: str, depthwise: bool = False
) -> EspTensor:
    """Return a filter (o, i, h, w) or (o, i, w) as a tensor of a file, in a layout's order."""
    outs, inner, *spatial = filters.shape
    dims = (*spatial, outs, inner) if depthwise else (*spatial, inner, outs)
    return EspTensor(name, dims, packed(filters, layout, depthwise), tuple(exponents), layout)


def write_espdl(model: EspModel) -> bytes:
    """Return the bytes of a file: header EDL2, then the FlatBuffer."""
    builder = flatbuffers.Builder(1024)
    builder.Finish(_model(_Writer(builder), model))
    body = bytes(builder.Output())
    return b"EDL2" + struct.pack("<III", 0, len(body), 0) + body


class _Writer:
    """Parts of a FlatBuffer, each written before what refers to it."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def text(self, value: str) -> int:
        """Write a string."""
        return int(self.builder.CreateString(value))

    def numbers(self, values: Any, dtype: str) -> int:
        """Write a vector of numbers."""
        return int(self.builder.CreateNumpyVector(np.asarray(values, dtype)))

    def offsets(self, parts: Iterable[int]) -> int:
        """Write a vector of what is written already."""
        listed = list(parts)
        self.builder.StartVector(4, len(listed), 4)
        for part in reversed(listed):
            self.builder.PrependUOffsetTRelative(part)
        return int(self.builder.EndVector())

    def lines(self, data: bytes) -> int:
        """Write a vector of structures of 16 bytes."""
        whole = data + bytes(-len(data) % LINE)
        self.builder.StartVector(LINE, len(whole) // LINE, LINE)
        head = self.builder.head = self.builder.head - len(whole)
        self.builder.Bytes[head : head + len(whole)] = whole
        return int(self.builder.EndVector())

    def table(self, fields: Mapping[int, int | Callable[[Any], None]], count: int) -> int:
        """Write a table: number of a field -> an offset, or what writes it. count: of its schema."""
        self.builder.StartObject(count)
        for number, value in fields.items():
            if callable(value):
                value(self.builder)
                self.builder.Slot(number)
            else:
                self.builder.PrependUOffsetTRelativeSlot(number, value, 0)
        return int(self.builder.EndObject())


def _model(writer: _Writer, model: EspModel) -> int:
    graph = writer.table(
        {
            0: writer.offsets([_node(writer, node) for node in model.nodes]),
            1: writer.text(model.name),
            2: writer.offsets([_tensor(writer, t) for t in model.initializers.values()]),
            4: writer.offsets([_value(writer, v) for v in model.inputs]),
            5: writer.offsets([_value(writer, v) for v in model.outputs]),
            6: writer.offsets([_value(writer, v) for v in model.values.values()]),
            8: writer.offsets([_tensor(writer, t) for t in model.test_inputs.values()]),
            9: writer.offsets([_tensor(writer, t) for t in model.test_outputs.values()]),
        },
        10,
    )
    entries = [
        writer.table({0: writer.text(key), 1: writer.text(value)}, 2)
        for key, value in model.metadata.items()
    ]
    fields: dict[int, Any] = {
        2: writer.text(model.producer),
        5: lambda b: b.PrependInt64(model.version),
        7: graph,
        8: writer.offsets(entries),
    }
    return writer.table(fields, 10)


def _tensor(writer: _Writer, tensor: EspTensor) -> int:
    kind = NUMBERS[str(tensor.data.dtype)]
    parts: dict[int, Any] = {
        0: writer.numbers(tensor.dims, "<i8"),
        1: lambda b: b.PrependInt32(kind),
        6: writer.text(tensor.name),
        7: writer.text(f"layout ==> {tensor.layout}"),
        8: writer.lines(tensor.data.tobytes()),
        13: writer.numbers(tensor.exponents, "<i8"),
    }
    return writer.table(parts, 14)


def _value(writer: _Writer, value: EspValue) -> int:
    dims = []
    for extent in value.dims:
        number: dict[int, Any] = {
            0: lambda b: b.PrependInt8(1),
            1: lambda b, extent=extent: b.PrependInt64(extent),
        }
        dims.append(writer.table({0: writer.table(number, 3)}, 2))
    shape = writer.table({0: writer.offsets(dims)}, 1)
    kind = NUMBERS[value.dtype]
    tensor = writer.table({0: lambda b: b.PrependInt32(kind), 1: shape}, 2)
    info = writer.table({0: lambda b: b.PrependUint8(1), 1: tensor}, 3)
    parts = {0: writer.text(value.name), 1: info, 3: writer.numbers(value.exponents, "<i8")}
    return writer.table(parts, 4)


def _node(writer: _Writer, node: EspNode) -> int:
    attributes = [_attribute(writer, *pair) for pair in node.attributes.items()]
    parts = {
        0: writer.offsets([writer.text(name) for name in node.inputs]),
        1: writer.offsets([writer.text(name) for name in node.outputs]),
        2: writer.text(node.name),
        3: writer.text(node.op_type),
        5: writer.offsets(attributes),
    }
    return writer.table(parts, 7)


def _attribute(writer: _Writer, name: str, value: Any) -> int:
    fields: dict[int, Any] = {0: writer.text(name)}
    if isinstance(value, float):
        kind, fields[4] = FLOAT, lambda b: b.PrependFloat32(value)
    elif isinstance(value, int):
        kind, fields[5] = INT, lambda b: b.PrependInt64(value)
    elif isinstance(value, str):
        kind, fields[6] = STRING, writer.numbers(np.frombuffer(value.encode(), np.uint8), "u1")
    elif all(isinstance(v, int) for v in value):
        kind, fields[11] = INTS, writer.numbers(value, "<i8")
    elif all(isinstance(v, float) for v in value):
        kind, fields[10] = FLOATS, writer.numbers(value, "<f4")
    else:
        kind, fields[12] = STRINGS, writer.offsets([writer.text(v) for v in value])
    fields[3] = lambda b: b.PrependInt32(kind)
    return writer.table(fields, 16)

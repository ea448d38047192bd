"""What an .espdl file says: tensors with exponents, nodes, golden inputs and outputs.

The container is 16 bytes ("EDL2", mode, size, padding; "EDL1" has no padding) before the FlatBuffer, or
a package ("PDL1", "PDL2", "PDL3") of several of these behind a directory. The numbers of fields are
those of ESP-DL's schema.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import field
from typing import Any

import numpy as np

from clnn.errors import ModelError
from clnn.importers.espdl.wire import Buffer, Table, bad
from clnn.records import dataclass
from clnn.types import Array

HEADERS = {b"EDL1": 12, b"EDL2": 16}
PACKAGES = {b"PDL1": 4, b"PDL2": 4, b"PDL3": 56}  # where the number of models stands
MAGICS = (*HEADERS, *PACKAGES)
MAX_PACKED = 4096
MAX_RANK = 8
LINE = 16  # bytes that raw data is padded to
EXPONENTS = (-1024, 1024)
TYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
}
LISTS = {2: "<f4", 3: "<i4", 5: "<i8", 11: "<f8", 12: "<u8"}  # fields of Tensor with plain numbers
FLOAT, INT, STRING, TENSOR, FLOATS, INTS, STRINGS = 1, 2, 3, 4, 6, 7, 8


@dataclass(frozen=True)
class EspTensor:
    """A tensor of the file: data in the order in which it is stored, and how that is called.

    dims: its shape, for filters (height, width, input channels, output channels). exponents: one, or
    one for each output channel; () where there are none.
    """

    name: str
    dims: tuple[int, ...]
    data: Array
    exponents: tuple[int, ...]
    layout: str = ""

    @property
    def array(self) -> Array:
        """The data in its shape."""
        return self.data.reshape(self.dims)


@dataclass(frozen=True)
class EspValue:
    """An input, an output or a value between nodes: numpy name of the type ("" unknown), shape."""

    name: str
    dtype: str
    dims: tuple[int, ...]
    exponents: tuple[int, ...]


@dataclass(frozen=True)
class EspNode:
    """A node: attributes are ints, floats, str, lists of these, or an EspTensor."""

    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]


@dataclass(frozen=True)
class EspModel:
    """A whole file."""

    producer: str
    version: int
    metadata: Mapping[str, str]
    name: str
    nodes: tuple[EspNode, ...]
    initializers: Mapping[str, EspTensor]
    inputs: tuple[EspValue, ...]
    outputs: tuple[EspValue, ...]
    values: Mapping[str, EspValue] = field(default_factory=dict)
    test_inputs: Mapping[str, EspTensor] = field(default_factory=dict)
    test_outputs: Mapping[str, EspTensor] = field(default_factory=dict)

    @property
    def golden_inputs(self) -> dict[str, Array]:
        """Inputs that came with the file, in their shapes."""
        return {name: tensor.array for name, tensor in self.test_inputs.items()}

    @property
    def golden_outputs(self) -> dict[str, Array]:
        """What the chip gives for them, by the file."""
        return {name: tensor.array for name, tensor in self.test_outputs.items()}


def is_espdl(data: memoryview | bytes) -> bool:
    """Whether bytes begin as a file of ESP-DL does."""
    return bytes(data[:4]) in MAGICS


def read_espdl(data: memoryview | bytes, name: str = "") -> EspModel:
    """Return the model of a file; of a package, the one of that name, or the only one.

    Raises ModelError for a file that is damaged, encrypted, or holds several where none is named.
    """
    whole = memoryview(data).cast("B")
    if bytes(whole[:4]) in PACKAGES:
        whole = _packed(whole, name)
    header = HEADERS.get(bytes(whole[:4]))
    if header is None:
        raise bad(f"it begins with {bytes(whole[:4])!r}, not with EDL1 or EDL2")
    if len(whole) < header:
        raise bad(f"it has {len(whole)} bytes, its header alone {header}")
    mode, size = struct.unpack_from("<II", whole, 4)
    if mode:
        raise ModelError(
            f"the .espdl model is encrypted (mode {mode}). Export it without encryption."
        )
    if header + size > len(whole):
        raise bad(f"it says it has {size} bytes of model, {len(whole) - header} are there")
    return _model(Buffer(whole[header : header + size]).root())


def _packed(whole: memoryview, name: str) -> memoryview:
    """Return one model of a package."""
    at = PACKAGES[bytes(whole[:4])]
    buffer = Buffer(whole)
    count = int(buffer.number("I", at, "the number of packed models"))
    if not 0 < count <= MAX_PACKED:
        raise bad(f"it packs {count} models")
    found: dict[str, int] = {}
    for k in range(count):
        entry = at + 4 + 12 * k
        start, place, length = (
            int(buffer.number("I", entry + 4 * n, f"entry {k} of the package")) for n in range(3)
        )
        buffer.check(place, length, f"the name of packed model {k}")
        found[bytes(whole[place : place + length]).decode("utf-8", "replace")] = start
    if name not in found and not (name == "" and len(found) == 1):
        raise ModelError(
            f"the package holds the models {', '.join(map(repr, sorted(found)[:16]))}, not"
            f" {name!r}. Name one of them."
        )
    start = found.get(name, next(iter(found.values())))
    buffer.check(start, LINE, "a packed model")
    return whole[start:]


def _model(table: Table) -> EspModel:
    graph = table.table(7, "graph")
    if graph is None:
        raise bad("it holds no graph")
    values = [_value(part) for part in graph.tables(6, "value_info")]
    initializers = [_tensor(part) for part in graph.tables(2, "initializer")]
    return EspModel(
        f"{table.text(2, 'producer_name')} {table.text(3, 'producer_version')}".strip(),
        int(table.number(5, "q")),
        {p.text(0, "key"): p.text(1, "value") for p in table.tables(8, "metadata")},
        graph.text(1, "name"),
        tuple(_node(part) for part in graph.tables(0, "node")),
        {tensor.name: tensor for tensor in initializers},
        tuple(_value(part) for part in graph.tables(4, "input")),
        tuple(_value(part) for part in graph.tables(5, "output")),
        {value.name: value for value in values},
        _named(graph, 8, "test input"),
        _named(graph, 9, "test output"),
    )


def _named(graph: Table, number: int, name: str) -> dict[str, EspTensor]:
    return {t.name: t for t in map(_tensor, graph.tables(number, name))}


def _value(table: Table) -> EspValue:
    name = table.text(0, "name")
    info = table.table(1, "type")
    tensor = None
    if info is not None and info.number(0, "B") == 1:
        tensor = info.table(1, "tensor type")
    if tensor is None:
        return EspValue(name, "", (), _exponents(table, 3))
    shape = tensor.table(1, "shape")
    dims = [] if shape is None else [_extent(part) for part in shape.tables(0, "dimension")]
    kind = TYPES.get(int(tensor.number(0, "i")), "")
    return EspValue(name, kind, _shape(dims, f"value {name!r}"), _exponents(table, 3))


def _extent(dimension: Table) -> int:
    value = dimension.table(0, "value")
    if value is None or value.number(0, "b") != 1:
        raise bad(f"{dimension.what} has no number")
    return int(value.number(1, "q"))


def _exponents(table: Table, number: int) -> tuple[int, ...]:
    given = table.array(number, "<i8", "exponents")
    if given is None:
        return ()
    if given.size and not (EXPONENTS[0] <= given.min() and given.max() <= EXPONENTS[1]):
        raise bad(f"exponents of {table.what} are {given.min()} to {given.max()}")
    return tuple(int(e) for e in given)


def _shape(dims: Any, what: str) -> tuple[int, ...]:
    found = tuple(int(d) for d in dims)
    if len(found) > MAX_RANK or any(not 0 <= d < 2**31 for d in found):
        raise bad(f"{what} has the shape {list(found)[:16]}")
    return found


def _tensor(table: Table) -> EspTensor:
    name = table.text(6, "name")
    what = f"tensor {name[:80]!r}"
    given = table.array(0, "<i8", "dims")
    dims = _shape(() if given is None else given, what)
    number = int(table.number(1, "i"))
    if number not in TYPES:
        raise bad(f"{what} has the element type {number}")
    if table.number(10, "i") or table.has(9):
        raise ModelError(f"{what} keeps its data outside of the file, which is not supported.")
    layout = table.text(7, "doc_string").rpartition("==>")[2].strip()
    data = _data(table, np.dtype(TYPES[number]), math.prod(dims), what)
    return EspTensor(name, dims, data, _exponents(table, 13), layout)


def _data(table: Table, dtype: np.dtype[Any], count: int, what: str) -> Array:
    """Return a tensor's elements: padded bytes, or a list of plain numbers."""
    raw = table.array(8, "u1", "raw_data", LINE)
    if raw is not None:
        needed = count * dtype.itemsize
        if needed > raw.size:
            raise bad(f"{what} needs {needed} bytes of data, {raw.size} are there")
        return raw[:needed].view(dtype.newbyteorder("<")).astype(dtype)
    for number, kind in LISTS.items():
        given = table.array(number, kind, "data")
        if given is not None:
            if given.size != count:
                raise bad(f"{what} needs {count} elements, {given.size} are there")
            with np.errstate(all="ignore"):
                return given.astype(dtype)
    if count:
        raise bad(f"{what} needs {count} elements, there are none")
    return np.zeros(0, dtype)


def _node(table: Table) -> EspNode:
    attributes: dict[str, Any] = {}
    for part in table.tables(5, "attribute"):
        attributes[part.text(0, "name")] = _attribute(part)
    return EspNode(
        table.text(2, "name"),
        table.text(3, "op_type"),
        tuple(table.texts(0, "input")),
        tuple(table.texts(1, "output")),
        attributes,
    )


def _attribute(table: Table) -> Any:
    kind = int(table.number(3, "i"))
    if kind == FLOAT:
        return float(table.number(4, "f"))
    if kind == INT:
        return int(table.number(5, "q"))
    if kind == STRING:
        text = table.array(6, "u1", "text")
        return b"" if text is None else text.tobytes().decode("utf-8", "replace")
    if kind == TENSOR:
        tensor = table.table(7, "tensor")
        if tensor is None:
            raise bad(f"{table.what} holds no tensor")
        return _tensor(tensor)
    lists = {FLOATS: (10, "<f4"), INTS: (11, "<i8")}
    if kind in lists:
        number, dtype = lists[kind]
        given = table.array(number, dtype, "numbers")
        return [] if given is None else given.tolist()
    if kind == STRINGS:
        return table.texts(12, "texts")
    raise bad(f"{table.what} is of kind {kind}")

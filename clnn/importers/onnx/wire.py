"""Large tensors of a model file taken out of it before it is parsed: parsing copies what it finds.

Of protobuf's format this reads only what leads to the data: a message is a row of fields, each a
key (number and wire type) and a value; type 2 is a length and so many bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9  # fields of ModelProto, GraphProto, TensorProto
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LEAST = 4096  # bytes of data worth taking out
_MOST_VARINT = 10

Field = tuple[int, int, int, int]  # number, and where key, value and end of the field are


class _Unusual(Exception):
    """The message is none, or one that only the parser itself can tell the meaning of."""


def separate(data: memoryview) -> tuple[bytes, dict[int, memoryview]]:
    """Return a model file without the large raw_data of its initializers, and these by position.

    Where data was taken out, the tensor's raw_data is there and empty. What is no ordinary model
    comes back whole: it is the parser's to judge.
    """
    try:
        return _separate(data)
    except _Unusual:
        return bytes(data), {}


def _separate(data: memoryview) -> tuple[bytes, dict[int, memoryview]]:
    graphs = [f for f in _fields(data, 0, len(data)) if f[0] == _GRAPH]
    if len(graphs) != 1:  # the parser joins several
        raise _Unusual
    _, key, start, end = graphs[0]
    parts: list[bytes | memoryview] = []
    taken: dict[int, memoryview] = {}
    count, kept = 0, start
    for number, at, inside, close in _fields(data, start, end):
        if number != _INITIALIZER:
            continue
        place = _raw_data(data, inside, close)
        if place is not None:
            raw_key, raw, raw_end = place
            taken[count] = data[raw:raw_end]
            tensor = b"".join((data[inside:raw_key], _key(_RAW_DATA) + b"\0", data[raw_end:close]))
            parts += [data[kept:at], _key(_INITIALIZER) + _varint(len(tensor)), tensor]
            kept = close
        count += 1
    graph = b"".join((*parts, data[kept:end]))
    head = _key(_GRAPH) + _varint(len(graph))
    return b"".join((data[:key], head, graph, data[end:])), taken


def _raw_data(data: memoryview, start: int, end: int) -> tuple[int, int, int] | None:
    """Return where key, value and end of a tensor's raw_data are, None where it is small."""
    places = [
        (key, value, close)
        for number, key, value, close in _fields(data, start, end)
        if number == _RAW_DATA
    ]
    if len(places) > 1:  # the last one counts
        raise _Unusual
    return places[0] if places and places[0][2] - places[0][1] >= _LEAST else None


def _fields(data: memoryview, at: int, end: int) -> Iterator[Field]:
    """Yield the fields of wire type 2 of the message in data[at:end]."""
    while at < end:
        begin = at
        key, at = _read(data, at, end)
        number, kind = key >> 3, key & 7
        value = at
        if kind == _BYTES:
            length, value = _read(data, at, end)
            at = value + length
        elif kind == _VARINT:
            _, at = _read(data, at, end)
        elif kind in (_FIXED32, _FIXED64):
            at += 4 if kind == _FIXED32 else 8
        else:
            raise _Unusual
        if at > end or number == 0:
            raise _Unusual
        if kind == _BYTES:
            yield number, begin, value, at


def _read(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """Return a varint and where it ends."""
    value = 0
    for shift in range(_MOST_VARINT):
        if at + shift >= end:
            break
        byte = data[at + shift]
        value |= (byte & 127) << (7 * shift)
        if byte < 128:
            return value, at + shift + 1
    raise _Unusual


def _key(number: int) -> bytes:
    return _varint(number << 3 | _BYTES)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)

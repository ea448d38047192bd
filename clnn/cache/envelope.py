"""The file format of one cache entry: what is written, and the checks that any file must pass.

magic     8 bytes   89 43 4C 42 49 4E 0D 0A  ("CLBIN" between bytes that text tools change)
version   u32 LE    FORMAT_VERSION
meta_len  u32 LE
data_len  u64 LE
key       32 bytes  the entry's own key: a file that was moved to another name is refused
meta      meta_len bytes of UTF-8 JSON, an object
payload   data_len bytes
trailer   32 bytes  SHA-256 of everything before it
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from clnn.records import dataclass

FORMAT_VERSION = 1
MAX_ENTRY_BYTES = 1 << 28
MAGIC = b"\x89CLBIN\r\n"

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"

PAGE = 4096
_HEADER = struct.Struct("<8sIIQ32s")
_DIGEST_BYTES = 32


class BadEntry(ValueError):
    """A file is not the entry that its name promises; the text says in what."""


@dataclass(frozen=True)
class Entry:
    """What a cache holds under one key: JSON meta data and the bytes themselves."""

    meta: dict[str, JSON]
    payload: bytes


def encode(key: str, meta: Mapping[str, JSON], payload: bytes) -> bytes:
    """Return the file content of an entry.

    Raises TypeError or ValueError when `meta` is not JSON (NaN and infinities included).
    """
    return b"".join(pieces_of(key, meta, [payload]))


def pieces_of(
    key: str, meta: Mapping[str, JSON], payload: Sequence[bytes | memoryview]
) -> list[bytes | memoryview]:
    """Return the file content of an entry whose payload is in pieces, in pieces. Raises what encode does."""
    text = json.dumps(dict(meta), sort_keys=True, allow_nan=False, separators=(",", ":"))
    head, size = text.encode("ascii"), sum(map(len, payload))
    header = _HEADER.pack(MAGIC, FORMAT_VERSION, len(head), size, bytes.fromhex(key))
    pieces, digest = [header, head, *payload], hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return [*pieces, digest.digest()]


def decode(blob: bytes, key: str) -> Entry:
    """Return the entry that file content `blob` holds under `key`.

    Raises BadEntry on any doubt: length, magic, version, key or checksum.
    """
    meta, payload = parts_of(memoryview(blob), key)
    return Entry(_meta(bytes(meta)), bytes(payload))


def parts_of(blob: memoryview, key: str) -> tuple[memoryview, memoryview]:
    """Return meta data and payload of an entry, where they lie. Raises as decode does."""
    if len(blob) < _HEADER.size + _DIGEST_BYTES:
        raise BadEntry(f"has {len(blob)} bytes, fewer than an empty entry")
    magic, version, meta_len, data_len, name = _HEADER.unpack_from(blob)
    if magic != MAGIC:
        raise BadEntry("does not begin like a cache entry")
    if version != FORMAT_VERSION:
        raise BadEntry(f"has format version {version}, not {FORMAT_VERSION}")
    expected = _HEADER.size + meta_len + data_len + _DIGEST_BYTES
    if len(blob) != expected:
        raise BadEntry(f"has {len(blob)} bytes, its header says {expected}")
    if hashlib.sha256(blob[:-_DIGEST_BYTES]).digest() != blob[-_DIGEST_BYTES:]:
        raise BadEntry("does not match its checksum")
    if name.hex() != key:
        raise BadEntry(f"is the entry of another key, {name.hex()}")
    start = _HEADER.size + meta_len
    return blob[_HEADER.size : start], blob[start:-_DIGEST_BYTES]


def page_meta() -> dict[str, JSON]:
    """Return meta data behind which the payload begins at a page of the file, so that it can be mapped."""
    empty = len(json.dumps({"": ""}, separators=(",", ":")))
    return {"": " " * (PAGE - _HEADER.size - empty)}


def _meta(text: bytes) -> dict[str, JSON]:
    try:
        meta = json.loads(text)
    except (ValueError, RecursionError) as err:
        raise BadEntry(f"has meta data that is not JSON ({type(err).__name__})") from None
    if not isinstance(meta, dict):
        raise BadEntry("has meta data that is not a JSON object")
    return meta

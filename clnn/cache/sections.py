"""Files of named sections, each checked as a whole and at a page of its own, so that it can be mapped.

    magic      8 bytes   89 43 4C 4E 4E 0D 0A 1A ("CLNN" between bytes that text tools change)
    version    u32 LE    VERSION
    index      u32 LE    bytes of the index
    size       u64 LE    bytes of the file
    digest     32 bytes  SHA-256 of the 24 bytes before it, and of all between it and the first section
    index      UTF-8 JSON: {name: [first byte, bytes, SHA-256]}, then zeros to the next page
    sections   each from a page on, zeros behind it to the next page; the digest covers these, too

Nothing in a file is trusted: sizes and places are compared with the file before anything is read.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import stat
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from clnn.cache import files
from clnn.types import Array

MAGIC = b"\x89CLNN\r\n\x1a"
VERSION = 3
PAGE = 4096
MAX_INDEX = 1 << 16  # bytes
_HEADER = struct.Struct("<8sIIQ")
_DIGEST = 32


class BadSectionsError(ValueError):
    """A file is not what it should be; the text says in what."""


def is_sectioned(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as these do; False where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _pages(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE


def _filled(data: memoryview) -> bytes:
    """Return the zeros behind a section."""
    return bytes(_pages(len(data)) - len(data))


def encoded(sections: Mapping[str, Array]) -> list[bytes | memoryview]:
    """Return the pieces of a file, in order."""
    views = {name: data.data.cast("B") for name, data in sections.items()}
    digests = {n: hashlib.sha256(v) for n, v in views.items()}
    for name, view in views.items():
        digests[name].update(_filled(view))

    def index_at(begin: int) -> bytes:
        rows, at = {}, begin
        for name, view in views.items():
            rows[name] = [at, len(view), digests[name].hexdigest()]
            at += _pages(len(view))
        return json.dumps(rows, separators=(",", ":")).encode()

    begin, index = 0, index_at(0)
    while begin != (wanted := _pages(_HEADER.size + _DIGEST + len(index))):
        begin, index = wanted, index_at(wanted)
    size = begin + sum(_pages(len(view)) for view in views.values())
    head = _HEADER.pack(MAGIC, VERSION, len(index), size)
    index += bytes(begin - _HEADER.size - _DIGEST - len(index))
    pieces: list[bytes | memoryview] = [head, hashlib.sha256(head + index).digest(), index]
    for view in views.values():
        pieces += [view, _filled(view)]
    return pieces


def write_sections(path: Path, sections: Mapping[str, Array]) -> None:
    """Write a file in place of any older one, whole or not at all. Raises OSError."""
    pieces = encoded(sections)
    with files.replacing(path, mode=0o666) as fd:
        for piece in pieces:
            files.write_all(fd, piece)


def read_sections(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Return the sections of a file by name, as bytes that are mapped from it.

    The memory may be written to, which does not change the file; but whoever writes to the file changes
    the memory. Raises BadSectionsError for a file that fails any check, OSError.
    """
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise BadSectionsError("is not a regular file")
        if status.st_size < _HEADER.size + _DIGEST:
            raise BadSectionsError(f"has {status.st_size} bytes, fewer than any")
        whole = np.frombuffer(mmap.mmap(fd, status.st_size, access=mmap.ACCESS_COPY), np.uint8)
    finally:
        os.close(fd)
    return decoded(whole)


def decoded(whole: Array, proven: bool = False) -> dict[str, Array]:
    """Return the sections of a file's bytes. proven: checksums were compared. Raises BadSectionsError."""
    rows = _index(whole)
    return {name: _section(whole, name, row, proven) for name, row in rows.items()}


def _index(whole: Array) -> dict[str, Any]:
    """Return the index of a file whose header is sound."""
    magic, version, length, size = _HEADER.unpack(whole[: _HEADER.size].tobytes())
    if magic != MAGIC:
        raise BadSectionsError("does not begin as such a file")
    if version != VERSION:
        raise BadSectionsError(f"has format version {version}; this clnn reads version {VERSION}")
    if size != whole.size:
        raise BadSectionsError(f"has {whole.size} bytes, its header says {size}")
    begin = _pages(_HEADER.size + _DIGEST + length)
    if length > MAX_INDEX or begin > size:
        raise BadSectionsError(f"has an index of {length} bytes, more than there can be")
    index = whole[_HEADER.size + _DIGEST : begin]
    digest = hashlib.sha256(whole[: _HEADER.size].tobytes() + index.tobytes()).digest()
    if digest != whole[_HEADER.size : _HEADER.size + _DIGEST].tobytes():
        raise BadSectionsError("has an index that does not match its checksum")
    try:
        rows = json.loads(index[:length].tobytes())
    except (ValueError, RecursionError) as err:
        raise BadSectionsError(f"has an index that is not JSON ({type(err).__name__})") from None
    if not isinstance(rows, dict):
        raise BadSectionsError("has an index that is not a JSON object")
    return rows


def _section(whole: Array, name: str, row: object, proven: bool) -> Array:
    """Return a section that matches its checksum."""
    if not (isinstance(row, list) and len(row) == 3 and all(type(n) is int for n in row[:2])):
        raise BadSectionsError(f"has no place for its section {name!r}")
    at, nbytes, digest = row
    if at % PAGE or not 0 < at <= at + _pages(nbytes) <= whole.size:
        raise BadSectionsError(f"has section {name!r} at {at}, {nbytes} bytes, beyond its end")
    if not proven and hashlib.sha256(whole[at : at + _pages(nbytes)].data).hexdigest() != digest:
        raise BadSectionsError(f"has a section {name!r} that does not match its checksum")
    return whole[at : at + nbytes]

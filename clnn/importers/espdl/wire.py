"""FlatBuffers of a file that nobody vouches for: every offset is checked before it is followed.

A table begins with the distance back to its list of fields (a vtable of 16-bit numbers: its own size,
the table's size, then where each field lies, 0 for one that is left out). Vectors, strings and tables
inside a table are distances ahead of where they are written. All numbers are little-endian.
Source: the description of the FlatBuffers format, "FlatBuffers internals".
"""

from __future__ import annotations

import struct
from dataclasses import field

import numpy as np

from clnn.errors import ModelError
from clnn.records import dataclass
from clnn.types import Array

READS = (
    16  # bytes that may be read for each byte of a file: parts may be shared, but not without end
)
SPARE = 1 << 16  # bytes that any file may read besides


def bad(why: str) -> ModelError:
    """Return the error for a file that is not what it should be."""
    return ModelError(f"not a valid .espdl model: {why}. The file is damaged or cut off.")


@dataclass
class Buffer:
    """The bytes of a FlatBuffer, with a count of what has been read of them."""

    data: memoryview
    spent: int = field(default=0)

    def check(self, at: int, count: int, what: str) -> None:
        """Raise ModelError unless `count` bytes lie at `at`, and count them."""
        if at < 0 or count < 0 or at + count > len(self.data):
            raise bad(f"{what} wants {count} bytes at offset {at}, the model has {len(self.data)}")
        self.spent += count
        if self.spent > READS * len(self.data) + SPARE:
            raise bad(f"its parts overlap: {what} is read again and again")

    def number(self, kind: str, at: int, what: str) -> int | float:
        """Return the number of a struct format at an offset."""
        self.check(at, struct.calcsize(f"<{kind}"), what)
        found: int | float = struct.unpack_from(f"<{kind}", self.data, at)[0]
        return found

    def offset(self, at: int, what: str) -> int:
        """Return where the part lies whose distance is written at `at`."""
        ahead = int(self.number("I", at, what))
        if not ahead:
            raise bad(f"{what} has the offset 0")
        return at + ahead

    def vector(self, at: int, size: int, what: str) -> tuple[int, int]:
        """Return (offset of the first element, count) of a vector with elements of `size` bytes."""
        count = int(self.number("I", at, what))
        self.check(at + 4, count * size, what)
        return at + 4, count

    def text(self, at: int, what: str) -> str:
        """Return a string."""
        start, count = self.vector(at, 1, what)
        try:
            return bytes(self.data[start : start + count]).decode("utf-8")
        except UnicodeDecodeError as err:
            raise bad(f"{what} is no UTF-8 text ({err.reason})") from None

    def root(self) -> Table:
        """Return the table that the buffer holds."""
        return Table(self, self.offset(0, "the root table"), "the model")


@dataclass(frozen=True)
class Table:
    """A table at an offset; `what` it is, for messages. Fields are known by their number."""

    buffer: Buffer
    at: int
    what: str

    def _place(self, number: int, size: int) -> int:
        """Return where a field of `size` bytes lies, 0 for one that is left out."""
        buffer, name = self.buffer, f"field {number} of {self.what}"
        back = int(buffer.number("i", self.at, self.what))
        vtable = self.at - back
        length = int(buffer.number("H", vtable, f"the list of fields of {self.what}"))
        whole = int(buffer.number("H", vtable + 2, f"the list of fields of {self.what}"))
        if length < 4 or length % 2 or whole < 4:
            raise bad(
                f"the list of fields of {self.what} has {length} bytes for a table of {whole}"
            )
        if 6 + 2 * number > length:
            return 0
        ahead = int(buffer.number("H", vtable + 4 + 2 * number, name))
        if ahead and (ahead < 4 or ahead + size > whole):
            raise bad(f"{name} lies at {ahead} of a table of {whole} bytes")
        buffer.check(self.at, ahead + size, name)
        return self.at + ahead if ahead else 0

    def has(self, number: int) -> bool:
        """Whether a field is there."""
        return self._place(number, 0) != 0

    def number(self, number: int, kind: str, default: float = 0) -> int | float:
        """Return a field that is a number (or a structure of one) of a struct format."""
        at = self._place(number, struct.calcsize(f"<{kind}"))
        return self.buffer.number(kind, at, f"field {number} of {self.what}") if at else default

    def _part(self, number: int, name: str) -> int:
        at = self._place(number, 4)
        return self.buffer.offset(at, f"{name} of {self.what}") if at else 0

    def text(self, number: int, name: str) -> str:
        """Return a field that is a string, "" where it is left out."""
        at = self._part(number, name)
        return self.buffer.text(at, f"{name} of {self.what}") if at else ""

    def table(self, number: int, name: str) -> Table | None:
        """Return a field that is a table, None where it is left out."""
        at = self._part(number, name)
        return Table(self.buffer, at, f"{name} of {self.what}") if at else None

    def array(self, number: int, dtype: str, name: str, size: int = 0) -> Array | None:
        """Return a field that is a vector of numbers; size: bytes of an element that has several."""
        at = self._part(number, name)
        if not at:
            return None
        kind = np.dtype(dtype)
        start, count = self.buffer.vector(at, size or kind.itemsize, f"{name} of {self.what}")
        total = count * (size or kind.itemsize) // kind.itemsize
        return np.frombuffer(self.buffer.data, kind, total, start)

    def _parts(self, number: int, name: str) -> list[tuple[int, str]]:
        at, what = self._part(number, name), f"{name} of {self.what}"
        if not at:
            return []
        start, count = self.buffer.vector(at, 4, what)
        places = (start + 4 * k for k in range(count))
        return [(self.buffer.offset(p, f"{what} {k}"), f"{what} {k}") for k, p in enumerate(places)]

    def tables(self, number: int, name: str) -> list[Table]:
        """Return a field that is a vector of tables."""
        return [Table(self.buffer, at, what) for at, what in self._parts(number, name)]

    def texts(self, number: int, name: str) -> list[str]:
        """Return a field that is a vector of strings."""
        return [self.buffer.text(at, what) for at, what in self._parts(number, name)]

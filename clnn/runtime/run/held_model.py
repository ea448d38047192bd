"""A model's file, or its bytes, as they are now: what tells them from others, and the same again later."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Hashable
from io import BufferedReader

from clnn.errors import ModelError

ELSEWHERE = b"location"  # in a model's bytes, where tensors may lie in other files


class HeldModel:
    """A model that may be read again, though its file may be gone or another by then.

    name: of the file, "" of bytes. digest: of its bytes. is_whole: whether it can be read, and nothing of it
    lies in other files.
    """

    def __init__(self, given: str | os.PathLike[str] | bytes) -> None:
        self._file: BufferedReader | None = None
        self.given = given if isinstance(given, bytes) else os.fspath(given)
        self.name = "" if isinstance(given, bytes) else os.path.basename(given)
        if not isinstance(self.given, bytes):
            self._file = _opened(self.given)
        blob = self._bytes()
        self.is_whole = blob is not None and ELSEWHERE not in blob
        self.digest = hashlib.sha256(blob or b"").digest()

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()

    def _bytes(self) -> bytes | None:
        if isinstance(self.given, bytes):
            return self.given
        if self._file is None:
            return None
        self._file.seek(0)
        return self._file.read()

    def told(self) -> Hashable:
        """Return what tells this model from others, of which parts may lie elsewhere."""
        if self._file is None or isinstance(self.given, bytes):
            return self.given if isinstance(self.given, str) else self.digest
        status = os.fstat(self._file.fileno())
        return os.path.realpath(self.given), status.st_mtime_ns, status.st_size, self.digest

    def is_unchanged(self) -> bool:
        """Whether it is, by its path, what it was."""
        return HeldModel(self.given).digest == self.digest

    def readable(self) -> str | bytes:
        """Return the path, or the bytes where it leads elsewhere by now.

        Raises ModelError where the file holds another model.
        """
        blob = self._bytes()
        if self._file is None or blob is None or isinstance(self.given, bytes):
            return self.given
        if hashlib.sha256(blob).digest() != self.digest:
            raise ModelError(
                f"{self.given!r} has changed since it was read. Compile the model again."
            )
        try:
            there = os.path.samestat(os.stat(self.given), os.fstat(self._file.fileno()))
        except OSError:
            return blob
        return self.given if there else blob


def _opened(path: str) -> BufferedReader | None:
    """Return a file, None where it is none that can be read: who loads it says what is wrong."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        return open(path, "rb")
    except OSError:
        return None

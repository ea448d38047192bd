"""Constants that lie in mapped files: their pages are read when they are used.

So a file must stay as it is while its constants are read. `require_unchanged` asks the system whether
it has, and is called right before each piece of data is read and when all of it was. What remains: a
file that is cut short within the microseconds between that and the reading of the next piece ends the
process (SIGBUS).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np

from clnn.errors import ModelError
from clnn.types import Array


class MappedFile(mmap.mmap):
    """Part of a file in memory. path, status: of the file, as it was then."""

    path: str
    status: os.stat_result

    def change(self) -> str:
        """Return what has happened to the file since, '' for nothing.

        Another file in its place is nothing: this one stays mapped.
        """
        try:
            size = self.size()
        except OSError as err:
            return f"cannot be read any more ({err})"
        if size != self.status.st_size:
            return f"had {self.status.st_size} bytes and has {size} now"
        with suppress(OSError):
            now = os.stat(self.path)
            if os.path.samestat(now, self.status) and now.st_mtime_ns != self.status.st_mtime_ns:
                return "was written to"
        return ""


def map_file(handle: int, path: str | os.PathLike[str], nbytes: int, offset: int = 0) -> MappedFile:
    """Map part of an open file to be read. Raises ModelError where the file has become shorter."""
    status = os.fstat(handle)
    try:
        made = MappedFile(handle, nbytes, access=mmap.ACCESS_READ, offset=offset)
    except ValueError as err:
        raise _changed(path, f"has {status.st_size} bytes now") from err
    made.path, made.status = os.path.abspath(path), status
    return made


def mapped_files(arrays: Iterable[Array]) -> list[MappedFile]:
    """Return the mappings that arrays lie in."""
    found: dict[int, MappedFile] = {}
    for array in arrays:
        owner: Any = array
        while isinstance(owner, (np.ndarray, memoryview)):
            owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
        if isinstance(owner, MappedFile):
            found[id(owner)] = owner
    return list(found.values())


def one_of_each(files: Iterable[MappedFile]) -> list[MappedFile]:
    """Return one mapping of each file, and of each of its states where they differ."""

    def state(file: MappedFile) -> tuple[int, ...]:
        s = file.status
        return s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns

    return list({state(file): file for file in files}.values())


def require_unchanged(files: Iterable[MappedFile]) -> None:
    """Raise ModelError where a file is no longer what was mapped."""
    for file in files:
        if change := file.change():
            raise _changed(file.path, change)


def _changed(path: str | os.PathLike[str], change: str) -> ModelError:
    return ModelError(
        f"the model's file {os.fspath(path)!r} {change}: it changed while it was loaded. Large tensors"
        " are read from it until compile_model returns. Compile again when the file is complete."
    )


def forget(files: Iterable[MappedFile]) -> None:
    """Take pages of mapped files out of this process's memory; they are read again if need be."""
    if hasattr(mmap, "MADV_DONTNEED"):
        for file in files:
            with suppress(OSError, ValueError):
                file.madvise(mmap.MADV_DONTNEED)

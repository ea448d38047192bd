"""Tensor data that lies in files beside the model, and never anywhere else."""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx

from clnn.errors import ModelError
from clnn.graph.mapped import map_file
from clnn.importers.onnx.limits import show

_LEAST_MAPPED = 2**20  # bytes; a process may have some ten thousand mappings
_KEYS = ("location", "offset", "length")
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a fifo must not wait for its writer.
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def read_external(
    tensor: onnx.TensorProto, nbytes: int, folder: Path | None, mapped: bool = False
) -> bytes | memoryview:
    """Return the `nbytes` bytes of a tensor's data from its file inside `folder`.

    mapped: large data is mapped from the file, which must then stay as it is.
    Raises ModelError for a location that leaves the folder, a link, something that is no regular
    file, or a range that the file does not have. Nothing is allocated before that.
    """
    what = f"external data of tensor {show(tensor.name)}"
    if folder is None:
        raise ModelError(
            f"{what}: the model was given as bytes, so there is no folder to find it in. "
            "Pass the path of the model file."
        )
    entries = [(e.key, e.value) for e in tensor.external_data if e.key in _KEYS]
    info = dict(entries)
    if any(isinstance(value, bytes) for value in info.values()):
        raise ModelError(f"{what} is given in text that is not UTF-8. The file is not valid.")
    if len(info) != len(entries):
        raise ModelError(f"{what} gives a key twice: {entries}. The file is not valid.")
    offset = _number(info.get("offset", "0"), f"{what}: offset")
    length = _number(info.get("length", str(nbytes)), f"{what}: length")
    if length != nbytes:
        raise ModelError(f"{what} has length {length}; its shape and type want {nbytes} bytes.")
    parts = _parts(info.get("location", ""), what)
    mapping = folder.joinpath(*parts) if mapped and nbytes >= _LEAST_MAPPED else None
    with _opened(folder, parts, what) as handle:
        return _read(handle, offset, nbytes, what, mapping)


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise ModelError(f"{what} is {show(text)}, must be a whole number from 0 on.")
    return int(text)


def _parts(location: str, what: str) -> tuple[str, ...]:
    path, windows = PurePosixPath(location), PureWindowsPath(location)
    wild = not location or "\0" in location or "\\" in location or windows.drive
    if wild or path.is_absolute() or ".." in path.parts or not path.parts:
        raise ModelError(
            f"{what}: location {show(location)} is not a plain path below the model's folder. "
            "Such files are refused: they could read any file of this machine."
        )
    return path.parts


@contextlib.contextmanager
def _opened(folder: Path, parts: tuple[str, ...], what: str) -> Iterator[int]:
    """Open a file step by step from the folder's handle, so that no link is ever followed."""
    where = PurePosixPath(*parts)
    with contextlib.ExitStack() as opened:
        try:
            handle = os.open(folder, _FOLDER_FLAGS & ~os.O_NOFOLLOW)
            opened.callback(os.close, handle)
            for part in parts[:-1]:
                handle = os.open(part, _FOLDER_FLAGS, dir_fd=handle)
                opened.callback(os.close, handle)
            handle = os.open(parts[-1], _FILE_FLAGS, dir_fd=handle)
            opened.callback(os.close, handle)
        except (OSError, ValueError) as err:
            raise ModelError(
                f"{what}: {show(str(where))} in {str(folder)!r} cannot be opened: {err}. It must "
                "be a file of its own there; links are not followed."
            ) from err
        status = os.fstat(handle)
        regular = stat.S_ISREG(status.st_mode)
        if not regular or status.st_nlink > 1:
            kind = "has other (hard) links" if regular else "is no regular file"
            raise ModelError(
                f"{what}: {show(str(where))} {kind}. It must be a file of its own in the model's "
                "folder; copy it there."
            )
        yield handle


def _read(
    handle: int, offset: int, nbytes: int, what: str, mapping: Path | None
) -> bytes | memoryview:
    """Return a part of a file; mapping: the file's path, where it is to be mapped."""
    size = os.fstat(handle).st_size
    if offset + nbytes > size:
        raise ModelError(
            f"{what} is bytes {offset} to {offset + nbytes} of a file of {size} bytes. "
            "The file is cut short or does not belong to the model."
        )
    if mapping is not None:
        before = offset % mmap.ALLOCATIONGRANULARITY
        return memoryview(map_file(handle, mapping, before + nbytes, offset - before))[before:]
    with os.fdopen(os.dup(handle), "rb") as file:
        file.seek(offset)
        data = file.read(nbytes)
    if len(data) != nbytes:
        raise ModelError(f"{what}: the file became shorter while it was read.")
    return data

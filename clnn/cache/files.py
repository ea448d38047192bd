"""File operations of the cache: atomic replacement, guarded reads, private folders, scans.

Every call that touches the file system goes through this module's `os`.
"""

from __future__ import annotations

import errno
import mmap
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from clnn.cache.envelope import BadEntry
from clnn.cache.privacy import is_own
from clnn.records import dataclass

TEMP_PREFIX = ".new-"
STALE_SECONDS = 3600.0
TOUCH_SECONDS = 60.0

_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_NO_BLOCK = getattr(os, "O_NONBLOCK", 0)
_BINARY = getattr(os, "O_BINARY", 0)


@dataclass(frozen=True)
class Found:
    """A file that a scan met: path, size in bytes, time of last use (seconds since the epoch)."""

    path: Path
    size: int
    used: float


def read_file(path: Path, limit: int, *, touch: bool = False) -> bytes:
    """Return the content of a regular file of at most `limit` bytes; `touch` marks it as used now.

    Raises BadEntry when the path is a link, a folder, a device or too large, else OSError.
    """
    with _opened(path, limit, touch) as (fd, size):
        return _read_all(fd, size)


def map_file(path: Path, limit: int, *, touch: bool = False) -> memoryview:
    """Return what read_file does as memory that is mapped from the file; writing there changes no file."""
    with _opened(path, limit, touch) as (fd, size):
        return memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_COPY) if size else b"")


@contextmanager
def _opened(path: Path, limit: int, touch: bool) -> Iterator[tuple[int, int]]:
    """Yield the descriptor and size of a file, as read_file wants it."""
    try:
        fd = os.open(path, os.O_RDONLY | _NO_FOLLOW | _NO_BLOCK | _BINARY)
    except OSError as err:
        if err.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO):
            raise BadEntry("is not a regular file") from None
        raise
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise BadEntry("is not a regular file")
        if not is_own(info):
            raise BadEntry("belongs to another user, or can be written by others")
        if info.st_size > limit:
            raise BadEntry(f"has {info.st_size} bytes, more than any entry")
        yield fd, info.st_size
        if touch and abs(time.time() - info.st_mtime) > TOUCH_SECONDS:
            _touch(fd)
    finally:
        os.close(fd)


def _read_all(fd: int, size: int) -> bytes:
    parts = []
    while size > 0 and (part := os.read(fd, size)):
        parts.append(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _touch(fd: int) -> None:
    with suppress(OSError, TypeError):
        os.utime(fd)


@contextmanager
def replacing(path: Path, mode: int = 0o600) -> Iterator[int]:
    """Yield the descriptor of a new file that takes the place of `path` when the block ends well.

    A reader, or a machine that loses power, sees the old file or the whole new one, never a part.
    When the block or any step fails, the new file is removed and the error goes on.
    """
    temp = path.parent / f"{TEMP_PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW | _BINARY, mode)
    try:
        try:
            yield fd
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temp, path)
    except BaseException:
        remove(temp)
        raise
    sync_folder(path.parent)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write all of `data`, however small the pieces that the system takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable, where the system can sync a folder at all."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as err:
        if err.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)


def make_folder(folder: Path) -> None:
    """Make `folder` and its missing parents, each for the owner only (mode 0700), durably."""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        return
    except FileNotFoundError:
        if folder.parent == folder:
            raise
        make_folder(folder.parent)
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
    sync_folder(folder.parent)


def remove(path: Path) -> bool:
    """Remove a file if that can be done; tell whether it was."""
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


def delete(path: Path) -> bool:
    """Remove a file, or a folder in its place; False when there is none. Raises OSError."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    except IsADirectoryError:
        shutil.rmtree(path)
    return True


def remove_tree(path: Path) -> None:
    """Remove a file, link or folder with all in it, as far as that can be done."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        remove(path)


def set_aside(path: Path, folder: Path, keep: int) -> bool:
    """Move `path` into `folder`, which keeps its `keep` newest members; tell whether it moved."""
    try:
        make_folder(folder)
        moved = folder / f"{path.name}.{secrets.token_hex(4)}"
        os.replace(path, moved)
    except FileNotFoundError:
        return False
    with suppress(OSError):
        os.utime(moved)
    members = sorted(listing(folder), key=lambda found: found.used)
    for found in members[: max(0, len(members) - keep)]:
        remove_tree(found.path)
    return True


def listing(folder: Path) -> list[Found]:
    """Return the members of `folder`; none when it does not exist or members vanish meanwhile."""
    members = []
    try:
        with os.scandir(folder) as items:
            for item in items:
                with suppress(FileNotFoundError):
                    info = item.stat(follow_symlinks=False)
                    members.append(Found(Path(item.path), info.st_size, info.st_mtime))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return members


def is_stale(found: Found) -> bool:
    """Tell whether `found` is a new file whose writer has been gone for long."""
    return found.path.name.startswith(TEMP_PREFIX) and is_old(found)


def is_old(found: Found) -> bool:
    """Tell whether nobody has written to `found` for longer than any writer takes."""
    return time.time() - found.used > STALE_SECONDS

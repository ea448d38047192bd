"""Temporary folders of this process; those that killed processes left behind are removed.

A folder's owner holds a lock on the file LOCK in it, which the system takes back however the process
ends. The file gets its name when it is locked already, so a LOCK that can be locked has no owner.
"""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOCK = "lock"
_FRESH, _NONE = (
    f"{LOCK}.new",
    f"{LOCK}.none",
)  # a LOCK that has no name yet; where there are no locks
_BEGUN_S = 3600.0  # after which a folder without a LOCK gets none any more
_held: list[int] = []


@contextmanager
def folder_for_a_while(prefix: str) -> Iterator[Path]:
    """Make a folder as own_folder does, and remove it when the context ends. Raises OSError."""
    remove_abandoned(prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    handles = _hold(folder)
    try:
        yield folder
    finally:
        _remove(folder)
        for handle in handles:
            os.close(handle)


def own_folder(prefix: str) -> Path:
    """Return a new folder that is removed when this process ends, at the latest by another one.

    Such folders of processes that are gone are removed first. Raises OSError.
    """
    remove_abandoned(prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    _held.extend(_hold(folder))
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            _remove(folder)

    atexit.register(remove)
    return folder


def remove_abandoned(prefix: str) -> None:
    """Remove this user's folders of that prefix whose owner is gone, or died when it made them."""
    with suppress(OSError):
        for entry in os.scandir(tempfile.gettempdir()):
            if entry.name.startswith(prefix) and entry.is_dir(follow_symlinks=False):
                with suppress(OSError):
                    _remove_if_abandoned(Path(entry.path))


def _hold(folder: Path) -> list[int]:
    """Return the open file that holds a new folder; none, and no LOCK, where the system has no locks."""
    fresh = folder / _FRESH
    handle = os.open(fresh, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    if _locks(handle):
        os.rename(fresh, folder / LOCK)
        return [handle]
    os.close(handle)
    os.rename(fresh, folder / _NONE)
    return []


def _remove(folder: Path) -> None:
    """Remove a folder, as far as that can be done; its LOCK goes last, so that another can finish."""
    with suppress(OSError):
        for entry in list(os.scandir(folder)):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif entry.name != LOCK:
                os.unlink(entry.path)
    shutil.rmtree(folder, ignore_errors=True)


def _remove_if_abandoned(folder: Path) -> None:
    about = os.lstat(folder)
    if about.st_uid != os.geteuid():
        return
    if {*os.listdir(folder)} <= {_FRESH}:
        if time.time() - about.st_mtime > _BEGUN_S:
            _remove(folder)
        return
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(handle)
        # Without a link another process has removed the folder since.
        if stat.S_ISREG(status.st_mode) and _locks(handle) and os.fstat(handle).st_nlink:
            _remove(folder)
    finally:
        os.close(handle)


def _locks(handle: int) -> bool:
    """Lock an open file; whether that worked. The lock lasts until all its handles are closed."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True

"""About to try: a note on disk of what runs now, so that what kills everything is never tried again.

Each tuner has a file of its own, locked for as long as it lives. A file whose lock is free was left
by a tuner, or a machine, that did not live to clear its notes.
"""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from clnn.cache import files
from clnn.cache.lines import LineFile, Record

SUFFIX, ALIVE = ".trying", ".alive"


class Journal:
    """The notes of one tuner, beside the lines of its device (`base`). Without `base`: no notes."""

    def __init__(self, base: Path | None) -> None:
        self._lines: LineFile | None = None
        self._lock: Any = None
        self._numbers = itertools.count()
        if base is None:
            return
        from filelock import FileLock

        path = base.with_name(f"{base.stem}.{os.getpid()}-{secrets.token_hex(4)}{SUFFIX}")
        with suppress(OSError):
            files.make_folder(path.parent)
            self._lock = FileLock(f"{path}{ALIVE}", timeout=0)
            self._lock.acquire()
            self._lines = LineFile(path)

    @contextmanager
    def trying(self, key: str, name: str, templates: str) -> Iterator[None]:
        """Note, durably, that a variant is about to be tried; clear the note afterwards."""
        number = next(self._numbers)
        record = {"number": number, "key": key, "name": name, "templates": templates}
        if self._lines is not None:
            self._lines.append([record])
        try:
            yield
        finally:
            if self._lines is not None:
                self._lines.append([{"done": number}])

    def close(self) -> None:
        """Remove the notes of a tuner that ends well."""
        if self._lines is not None:
            files.remove(self._lines.path)
            self._lock.release()
            _remove_locks(self._lines.path)
            self._lines = None


def left_over(base: Path) -> list[Record]:
    """Return what tuners that are gone were about to try, and remove what they left behind."""
    from filelock import FileLock, Timeout

    records: list[Record] = []
    _remove_scraps(base)
    for member in files.listing(base.parent):
        path = member.path
        if path.suffix != SUFFIX or not path.name.startswith(f"{base.stem}."):
            continue
        try:
            with FileLock(f"{path}{ALIVE}", timeout=0):
                records += _unfinished(LineFile(path, "ro").read())
                files.remove(path)
        except (Timeout, OSError):
            continue
        _remove_locks(path)
    return records


def _remove_scraps(base: Path) -> None:
    """Remove old locks without notes, and files that were never finished.

    Of tuners that were killed while they began or ended.
    """
    for member in files.listing(base.parent):
        path = member.path
        if files.is_stale(member):
            files.remove(path)
        notes = path.with_suffix("")
        is_lock = notes.suffix == SUFFIX and notes.name.startswith(f"{base.stem}.")
        if is_lock and files.is_old(member) and not notes.exists() and _is_free(notes):
            _remove_locks(notes)


def _is_free(notes: Path) -> bool:
    """Whether the tuner of these notes is gone."""
    from filelock import FileLock, Timeout

    try:
        with FileLock(f"{notes}{ALIVE}", timeout=0):
            return True
    except (Timeout, OSError):
        return False


def _unfinished(records: list[Record]) -> list[Record]:
    done = {r["done"] for r in records if "done" in r}
    begun = [r for r in records if {"number", "key", "name", "templates"} <= r.keys()]
    return [r for r in begun if r["number"] not in done]


def _remove_locks(path: Path) -> None:
    for ending in (ALIVE, ".lock"):
        files.remove(Path(f"{path}{ending}"))

"""Gives memory that nobody uses any more back to the system: freed blocks, pages of library files.

A driver's start reads the files of its compiler all over (its tables of options, its relocations),
and the system maps the neighbours of every page that is read: tens of megabytes that are not needed
again. Pages that are the file's own come back by themselves when they are read.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator

_DONTNEED = 4  # MADV_DONTNEED of Linux


def trim() -> int:
    """Take unchanged pages of libraries out of this process's memory; return how many bytes.

    What the C library keeps of freed memory goes too. Pages only of mappings that nobody may write
    to and nobody has written to: pages that differ from the file would be lost. Does nothing where
    the system has no /proc/self/smaps.
    """
    found, given = _unchanged(), 0
    if not found:
        return 0
    system = ctypes.CDLL(None)
    if hasattr(system, "malloc_trim"):
        system.malloc_trim(0)
    for start, end, resident in found:
        failed = system.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _DONTNEED)
        given += 0 if failed else resident
    return given


def _unchanged() -> list[tuple[int, int, int]]:
    """Return (start, end, resident bytes) of mappings of libraries, as the files have them."""
    try:
        with open("/proc/self/smaps", encoding="utf-8", errors="replace") as lines:
            return list(libraries(lines))
    except OSError:
        return []


def libraries(lines: Iterable[str]) -> Iterator[tuple[int, int, int]]:
    """Yield the mappings in text of the form of /proc/self/smaps that `trim` may take pages of."""
    start = end = resident = 0
    wanted = False
    for line in lines:
        word, _, rest = line.partition(" ")
        if not word.endswith(":"):
            low, _, high = word.partition("-")
            start, end = int(low, 16), int(high, 16)
            permissions, *others = rest.split(maxsplit=4)
            private = permissions[1] == "-" and permissions[3] == "p"
            wanted = private and len(others) > 3 and _is_library(others[3])
        elif word == "Rss:":
            resident = 1024 * int(rest.split()[0])
        elif word == "Anonymous:" and wanted and resident and int(rest.split()[0]) == 0:
            yield start, end, resident


def _is_library(path: str) -> bool:
    return path.startswith("/") and ".so" in path and not path.startswith("/dev/")

"""Gives memory that nobody uses any more back to the system: freed blocks, pages of library files.

A driver's start reads the files of its compiler all over (its tables of options, its relocations),
and the system maps the neighbours of every page that is read: tens of megabytes that are not needed
again. Pages that are the file's own come back by themselves when they are read.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache

from clnn.records import dataclass

_DONTNEED = 4  # MADV_DONTNEED of Linux
LARGE_BYTES = 2**19  # of a library that is worth it; compiled kernels are smaller
BEHIND_S = 1.0  # after a start that a trim would hold up
_loaded: set[str] = set()  # drivers, by library, that were loaded when memory was trimmed
_opened: set[str] = set()  # those whose device was open then


@dataclass(frozen=True)
class MappedLibrary:
    """Part of a library in memory: its addresses, and how many bytes of it are there."""

    path: str
    start: int
    end: int
    resident: int


def trim() -> int:
    """Take unchanged pages of large libraries out of this process's memory; return how many bytes.

    What the C library keeps of freed memory goes too. Pages only of mappings that nobody may write
    to and nobody has written to, for pages that differ from the file would be lost, and only of
    libraries that stay loaded from then on, so that nothing else can come to lie there meanwhile.
    Does nothing where the system has no /proc/self/smaps.
    """
    if not any(_stays(m.path) for m in _unchanged()):
        return 0
    system, freed = ctypes.CDLL(None), 0
    if hasattr(system, "malloc_trim"):
        system.malloc_trim(0)
    for library in _unchanged():
        if _stays(library.path):
            start, size = library.start, library.end - library.start
            refused = system.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _DONTNEED)
            freed += 0 if refused else library.resident
    return freed


def trim_loaded(driver: str) -> None:
    """As `trim`, once for each driver, by its library: when it is loaded, before a model is."""
    if driver not in _loaded:
        _loaded.add(driver)
        trim()


def trim_opened(driver: str) -> None:
    """As `trim`, once for each driver, by its library: when the first device of it is open.

    Later ones bring little. What its compiler read meanwhile would be read again by the next build.
    """
    if driver not in _opened:
        _opened.add(driver)
        trim()


def trim_behind(driver: str) -> None:
    """Do what trim_opened does a while later, in a thread: a stored network starts in less time than that takes."""
    if driver not in _opened:
        _opened.add(driver)
        later = threading.Timer(BEHIND_S, trim)
        later.daemon = True
        later.start()


@cache
def _stays(path: str) -> bool:
    """Whether a library is large; if so, keep it loaded until the process ends."""
    with suppress(OSError):
        if os.path.getsize(path) >= LARGE_BYTES:
            ctypes.CDLL(path, mode=os.RTLD_LAZY | os.RTLD_NOLOAD | os.RTLD_NODELETE)
            return True
    return False


def _unchanged() -> list[MappedLibrary]:
    """Return mappings of libraries, as the files have them."""
    try:
        with open("/proc/self/smaps", encoding="utf-8", errors="replace") as lines:
            return list(libraries(lines))
    except OSError:
        return []


def libraries(lines: Iterable[str]) -> Iterator[MappedLibrary]:
    """Yield the mappings in text of the form of /proc/self/smaps that `trim` may take pages of."""
    start = end = resident = 0
    path = ""
    for line in lines:
        if line[:1].isupper():  # a field of the mapping; thousands of them are of no use here
            if path and line.startswith("Rss:"):
                resident = 1024 * int(line.split()[1])
            elif path and resident and line.startswith("Anonymous:") and not int(line.split()[1]):
                yield MappedLibrary(path, start, end, resident)
        else:
            addresses, permissions, *others = line.split(maxsplit=5)
            private = permissions[1] == "-" and permissions[3] == "p"
            path = others[3].rstrip("\n") if private and len(others) > 3 else ""
            path = path if _is_library(path) else ""
            low, _, high = addresses.partition("-")
            start, end = int(low, 16), int(high, 16)


def _is_library(path: str) -> bool:
    return path.startswith("/") and ".so" in path and not path.startswith("/dev/")

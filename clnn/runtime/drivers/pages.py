"""Host memory that a CPU device takes as its own: whole pages, large ones where the system has them."""

from __future__ import annotations

import ctypes
import mmap
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from clnn.runtime.drivers.loader import load
from clnn.types import Array

LARGE = 2**21  # bytes of a large page
SMALL = mmap.PAGESIZE  # bytes of any other
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of Linux
_GROUP = Path("/sys/fs/cgroup")
_LIMITS = {  # what a group of processes may have, and what it has: of either version
    "memory.max": "memory.current",
    "memory/memory.limit_in_bytes": "memory/memory.usage_in_bytes",
}


def pages(nbytes: int) -> Array:
    """Return at least `nbytes` zeros as uint8; memory that is never written takes no room.

    In whole pages: large ones, unless one would hold all. Raises MemoryError.
    """
    page = LARGE if nbytes >= LARGE else SMALL
    size = -(-max(nbytes, 1) // page) * page
    try:
        if not hasattr(mmap, "MAP_PRIVATE"):
            return np.frombuffer(mmap.mmap(-1, size), np.uint8)
        no_reserve = getattr(mmap, "MAP_NORESERVE", 0)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
        memory = mmap.mmap(-1, size, flags=flags)
    except OSError as err:
        raise MemoryError(f"{size} bytes were refused ({err.strerror})") from err
    if hasattr(mmap, "MADV_HUGEPAGE") and size >= LARGE:
        with suppress(OSError):  # of a kernel without large pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def host_buffer(context: Any, host: Array) -> Any:
    """Return a buffer whose memory is `host`; the buffer keeps it alive."""
    cl = load()
    return cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR, hostbuf=host)


def fill_in(memory: Array, begin: int, end: int) -> bool:
    """Have the system find the pages of memory from one byte to another, before they are written.

    Both are at pages. Other threads may write there meanwhile. Returns whether the system does that.
    """
    if not sys.platform.startswith("linux"):
        return False
    system = ctypes.CDLL(None)
    address, size = ctypes.c_void_p(memory.ctypes.data + begin), ctypes.c_size_t(end - begin)
    return bool(system.madvise(address, size, _POPULATE_WRITE) == 0)


def free_bytes() -> int:
    """Return how much memory the system has for this process, 0 where it does not say that."""
    found = []
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(1024 * int(next(s.split()[1] for s in lines if s.startswith("MemAvailable"))))
    for limit, used in _LIMITS.items():
        with suppress(OSError, ValueError):  # no such group, or it has no limit
            most = int((_GROUP / limit).read_text())
            found.append(most - int((_GROUP / used).read_text()))
    return max(0, min(found, default=0))

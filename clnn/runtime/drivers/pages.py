"""Host memory that a CPU device takes as its own: whole pages, large ones where the system has them."""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import Any

import numpy as np

from clnn.runtime.drivers.loader import load
from clnn.types import Array

LARGE = 2**21  # bytes of a large page
SMALL = mmap.PAGESIZE  # bytes of any other


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

"""Constants that lie in mapped files: their pages are read when they are used."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np

from clnn.ops._base import Array


def mapped_files(arrays: Iterable[Array]) -> list[mmap.mmap]:
    """Return the mappings that arrays lie in."""
    found: dict[int, mmap.mmap] = {}
    for array in arrays:
        owner: Any = array
        while isinstance(owner, (np.ndarray, memoryview)):
            owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
        if isinstance(owner, mmap.mmap):
            found[id(owner)] = owner
    return list(found.values())


def forget(files: Iterable[mmap.mmap]) -> None:
    """Take pages of mapped files out of this process's memory; they are read again if need be."""
    if hasattr(mmap, "MADV_DONTNEED"):
        for file in files:
            with suppress(OSError, ValueError):
                file.madvise(mmap.MADV_DONTNEED)

"""Opens libraries with their functions bound when they are called, which ctypes does not offer."""

from __future__ import annotations

import ctypes
import os


def opened(library: str) -> ctypes.CDLL:
    """Open a library. Raises OSError."""
    process = ctypes.CDLL(None)
    process.dlopen.restype = ctypes.c_void_p
    process.dlerror.restype = ctypes.c_char_p
    handle = process.dlopen(os.fsencode(library), os.RTLD_LAZY | os.RTLD_LOCAL)
    if not handle:
        raise OSError((process.dlerror() or b"unknown error").decode(errors="replace"))
    return ctypes.CDLL(library, handle=handle)

"""What drivers state of a device under names that pyopencl does not know."""

from __future__ import annotations

import ctypes
from typing import Any

from clnn.runtime.drivers.loader import loader_library

# Of cl_intel_device_attribute_query: architecture (10 bits), release (8), 8 that say nothing, revision (6).
IP_VERSION = 0x4250
_SUCCESS = 0


def stated_number(device: Any, name: int) -> int:
    """Return the 32-bit number that clGetDeviceInfo has for a `cl.Device`.

    0 where the driver states none under that name, or where it cannot be told which loader the process has.
    """
    library = loader_library()
    if library is None:
        return 0
    try:
        ask = ctypes.CDLL(str(library)).clGetDeviceInfo
    except (OSError, AttributeError):
        return 0
    size_t, pointer = ctypes.c_size_t, ctypes.c_void_p
    ask.argtypes = (pointer, ctypes.c_uint32, size_t, pointer, pointer)
    value, size = ctypes.c_uint32(0), size_t(0)
    status = ask(
        device.int_ptr, name, ctypes.sizeof(value), ctypes.byref(value), ctypes.byref(size)
    )
    fits = status == _SUCCESS and size.value == ctypes.sizeof(value)
    return value.value if fits else 0

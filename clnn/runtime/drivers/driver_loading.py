"""Loads the drivers that a process uses, one by one, instead of all that are installed.

Each OpenCL driver brings a compiler of its own, which takes tens of megabytes of memory as soon as
it is loaded. The loader (libOpenCL) reads its vendors folder once: it gets one with the first
driver alone. A driver that is wanted later is loaded as the loader does it, and asked for its
platforms; handles made from those work as any other, since the loader finds each handle's
functions in the handle itself. `driver_listing` has tried that out in a child process.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from clnn.errors import DeviceError
from clnn.runtime.drivers import icd
from clnn.runtime.drivers.loader import load, preload_companions, prepare, setup
from clnn.runtime.drivers.vendors import Driver, vendors_folder
from clnn.runtime.process.forked import renewed, use_driver
from clnn.runtime.process.opening import opened

_SUCCESS = 0
# A driver that offers these wants to be told by its loader where its functions are.
_TOLD_BY_LOADER = (b"clIcdSetPlatformDispatchDataKHR", b"clIcdGetFunctionAddressForPlatformKHR")
_lock = renewed(threading.RLock())
_loaded: dict[str, list[Any]] = {}
_begun: set[str] = set()  # the driver that the loader has, or had, alone
_opening: dict[str, threading.Thread] = {}


def open_ahead(driver: str) -> None:
    """Open the library of one of Setup.on_demand in a thread, while Python imports what will use it.

    Nothing of the driver is called, and what fails is told by who calls it. Does nothing where pyopencl has
    been imported, and for Intel's runtime, which needs others before it.
    """
    if "pyopencl" in sys.modules or driver == str(icd.intel_library()):
        return
    use_driver()
    prepare()
    with _lock:
        if driver in _loaded or driver in _opening:
            return
        _opening[driver] = threading.Thread(
            target=_open_quietly, args=(driver,), name="clnn-driver"
        )
        _opening[driver].start()


def _open_quietly(library: str) -> None:
    with suppress(OSError):
        opened(library)


def platforms_of(driver: str) -> list[Any]:
    """Return the `cl.Platform`s of the driver with that library; of all drivers for ''.

    Loads the driver if need be. Raises DeviceError where it does not load any more.
    """
    cl = load()
    if not driver:
        platforms: list[Any] = cl.get_platforms()
        return platforms
    with _lock:
        if driver not in _loaded:
            if opening := _opening.pop(driver, None):
                opening.join()
            if driver == str(icd.intel_library()):
                preload_companions()
            _loaded[driver] = _attached(driver) if _begun else _first(_registered(driver))
        return _loaded[driver]


def _registered(library: str) -> Driver:
    driver = next((d for d in setup().on_demand if d.library == library), None)
    if driver is None:
        raise DeviceError(f"{library} is no driver of this process. Call clnn.devices() anew.")
    return driver


def _first(driver: Driver) -> list[Any]:
    """Have the loader read a folder with `driver` alone, and list its platforms.

    The loader does so once, whatever comes of it: another driver is then attached to it.
    """
    cl = load()
    before = os.environ.get("OCL_ICD_VENDORS")
    os.environ["OCL_ICD_VENDORS"] = str(vendors_folder([driver]))
    _begun.add(driver.library)
    try:
        platforms: list[Any] = cl.get_platforms()
    except cl.Error as err:
        raise DeviceError(f"{driver.library} lists no platform: {err}. Run: clnn doctor") from err
    finally:
        if before is None:
            del os.environ["OCL_ICD_VENDORS"]
        else:
            os.environ["OCL_ICD_VENDORS"] = before
    return platforms


def _attached(library: str) -> list[Any]:
    try:
        pointers = platform_pointers(library)
    except OSError as err:
        raise DeviceError(f"{library} does not load: {err}. Run: clnn doctor") from err
    return [load().Platform.from_int_ptr(pointer, False) for pointer in pointers]


def platform_pointers(library: str) -> list[int]:
    """Load a driver as a loader does and return the addresses of its platforms.

    Raises OSError for a library that is no driver, or a driver that only its loader may start.
    """
    handle = opened(library)
    lookup = getattr(handle, "clGetExtensionFunctionAddress", None)
    if lookup is None:
        raise OSError(f"{library} lacks clGetExtensionFunctionAddress")
    lookup.restype, lookup.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    address = lookup(b"clIcdGetPlatformIDsKHR")
    if not address or any(lookup(name) for name in _TOLD_BY_LOADER):
        raise OSError(f"{library} cannot be started without its loader")
    kind = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_uint, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint)
    )
    count = ctypes.c_uint(0)
    if kind(address)(0, None, ctypes.byref(count)) != _SUCCESS:
        return []
    platforms = (ctypes.c_void_p * max(count.value, 1))()
    if kind(address)(count.value, platforms, None) != _SUCCESS:
        return []
    return [pointer for pointer in platforms if pointer]


def loads_alone(library: str, listed: Sequence[Any]) -> bool:
    """Whether a driver loaded without the loader has the platforms that the loader `listed`."""
    try:
        pointers = platform_pointers(library)
    except (OSError, AttributeError):
        return False
    return sorted(pointers) == sorted(platform.int_ptr for platform in listed)

"""The child process that lists drivers: loads OpenCL libraries that may crash, and says what they offer."""

from __future__ import annotations

import ctypes
import json
from typing import Any

from clnn.runtime.device.device import list_unprobed
from clnn.runtime.device.info import row_of
from clnn.runtime.drivers.driver_loading import loads_alone, platforms_of
from clnn.runtime.process.child import reply_stream

_SUCCESS = 0
_PLATFORM_NOT_FOUND = -1001
_PLATFORM_NAME = 0x0902
_MAX_PLATFORMS = 64
_MAX_NAME_BYTES = 1024


def main(want: dict[str, Any]) -> None:
    """Do what `want["task"]` says (driver, loader, devices).

    Replies with a JSON line before and one with the answer after.
    """
    reply = reply_stream()
    reply.write(json.dumps({"start": want["task"]}) + "\n")
    reply.flush()
    tasks = {"driver": driver, "loader": loader, "devices": devices}
    try:
        answer = tasks[want["task"]](want.get("path", ""))
    except Exception as err:
        answer = {"error": str(err)}
    reply.write(json.dumps(answer) + "\n")
    reply.flush()


def driver(path: str) -> dict[str, Any]:
    """Load a driver library as an OpenCL loader does; return its number of platforms."""
    library = ctypes.CDLL(path)
    lookup = getattr(library, "clGetExtensionFunctionAddress", None)
    if lookup is None:
        return {"error": "no OpenCL driver: it lacks clGetExtensionFunctionAddress"}
    lookup.restype, lookup.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    address = lookup(b"clIcdGetPlatformIDsKHR")
    if not address:
        return {"error": "no driver for a loader: it lacks clIcdGetPlatformIDsKHR"}
    kind = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_uint, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint)
    )
    count = ctypes.c_uint(0)
    code = kind(address)(0, None, ctypes.byref(count))
    if code not in (_SUCCESS, _PLATFORM_NOT_FOUND):
        return {"error": f"clIcdGetPlatformIDsKHR returned {code}"}
    return {"platforms": count.value if code == _SUCCESS else 0}


def loader(path: str) -> dict[str, Any]:
    """Load a libOpenCL; return the names of the platforms that it lists."""
    library = ctypes.CDLL(path)
    platforms = (ctypes.c_void_p * _MAX_PLATFORMS)()
    count = ctypes.c_uint(0)
    code = library.clGetPlatformIDs(_MAX_PLATFORMS, platforms, ctypes.byref(count))
    if code not in (_SUCCESS, _PLATFORM_NOT_FOUND):
        return {"error": f"clGetPlatformIDs returned {code}"}
    names = []
    for platform in platforms[: min(count.value, _MAX_PLATFORMS) if code == _SUCCESS else 0]:
        text = ctypes.create_string_buffer(_MAX_NAME_BYTES)
        handle, size = ctypes.c_void_p(platform), ctypes.c_size_t(_MAX_NAME_BYTES)
        library.clGetPlatformInfo(handle, _PLATFORM_NAME, size, text, None)
        names.append(text.value.decode(errors="replace").strip())
    return {"names": sorted(names)}


def devices(path: str) -> dict[str, Any]:
    """List all devices as clnn does, without probing them; return platform names and a count.

    For the driver at `path`, which must be the only one, also what is kept of each device, and
    whether it has the same platforms when it is loaded alone.
    """
    infos = list_unprobed()
    answer = {"names": sorted({info.platform for info in infos}), "devices": len(infos)}
    if not path:
        return answer
    alone = not infos or loads_alone(path, platforms_of(""))
    return {**answer, "listed": [row_of(info) for info in infos], "alone": alone}

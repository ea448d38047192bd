"""Launches without events: pyopencl has the driver make one for each, which costs GPUs time that nobody uses.

What it costs on an H100 is in docs/benchmarks/gpu.md. So clEnqueueNDRangeKernel is called as C has it, through ctypes.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from clnn.runtime.drivers.loader import load, loader_library

Launch = Callable[[], object]


def launch_on(
    kind: str, queue: Any, kernel: Any, global_size: Sequence[int], local_size: Sequence[int]
) -> Launch:
    """Return what enqueues a kernel with its arguments set: without an event on a device of kind "gpu"."""
    call = _function() if kind == "gpu" else None
    if call is None:
        return partial(
            load().enqueue_nd_range_kernel, queue, kernel, tuple(global_size), tuple(local_size)
        )
    return eventless(call, queue, kernel, global_size, local_size)


def eventless(
    call: Any, queue: Any, kernel: Any, global_size: Sequence[int], local_size: Sequence[int]
) -> Launch:
    """Return what enqueues a kernel by `call`, the driver's function; errors are those of pyopencl's."""
    sizes = ctypes.c_size_t * len(global_size)
    where = ctypes.c_void_p(queue.int_ptr), ctypes.c_void_p(kernel.int_ptr)
    counts = len(global_size), None, sizes(*global_size), sizes(*local_size), 0, None, None
    arguments = (*where, *counts)
    plain = load().enqueue_nd_range_kernel

    def launch() -> None:
        if call(*arguments):  # a status: what it means is pyopencl's to tell
            plain(queue, kernel, tuple(global_size), tuple(local_size))

    return launch


@functools.cache
def _function() -> Any:
    """Return clEnqueueNDRangeKernel; None where the loader is not known, or Oclgrind takes its place."""
    path = loader_library()
    if path is None or "oclgrind" in os.environ.get("LD_PRELOAD", ""):
        return None
    try:
        call = ctypes.CDLL(str(path)).clEnqueueNDRangeKernel
    except (OSError, AttributeError):
        return None
    pointer, unsigned = ctypes.c_void_p, ctypes.c_uint
    call.argtypes = [pointer, pointer, unsigned, *[pointer] * 3, unsigned, pointer, pointer]
    call.restype = ctypes.c_int
    return call

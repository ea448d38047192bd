"""A pyopencl whose calls fail, one at a time, with the errors that drivers give.

Every call that may fail is a point: creating what a session holds, building, enqueueing, copying, mapping,
waiting, and memory of the host. `Faults(at=k, error=e)` lets point k fail with its e-th error.
"""

from __future__ import annotations

import errno
import gc
import mmap
import os
import time
import weakref
from collections import Counter
from contextlib import ExitStack
from types import TracebackType
from typing import Any
from unittest.mock import patch

import numpy as np
import pyopencl as cl

from clnn.runtime.drivers import pages as host_pages
from clnn.runtime.run import state, stream

HOST = "MemoryError"  # Python's own, or a refused mmap
# Point -> the function of OpenCL that fails, and with what.
POINTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "context": ("clCreateContext", ("OUT_OF_HOST_MEMORY", "DEVICE_NOT_AVAILABLE")),
    "queue": ("clCreateCommandQueue", ("OUT_OF_RESOURCES", "OUT_OF_HOST_MEMORY", HOST)),
    "buffer": (
        "clCreateBuffer",
        (
            "MEM_OBJECT_ALLOCATION_FAILURE",
            "OUT_OF_RESOURCES",
            "INVALID_BUFFER_SIZE",
            "OUT_OF_HOST_MEMORY",
            "INVALID_CONTEXT",
            HOST,
        ),
    ),
    "part": ("clCreateSubBuffer", ("OUT_OF_RESOURCES", "MEM_OBJECT_ALLOCATION_FAILURE")),
    "program": ("clCreateProgramWithSource", ("OUT_OF_HOST_MEMORY", "INVALID_BINARY", HOST)),
    "build": (
        "clBuildProgram",
        ("BUILD_PROGRAM_FAILURE", "OUT_OF_HOST_MEMORY", "OUT_OF_RESOURCES"),
    ),
    "binary": ("clGetProgramInfo", ("OUT_OF_HOST_MEMORY",)),
    "kernel": ("clCreateKernel", ("OUT_OF_RESOURCES", "OUT_OF_HOST_MEMORY", "INVALID_KERNEL_NAME")),
    "argument": ("clSetKernelArg", ("OUT_OF_RESOURCES", "INVALID_ARG_VALUE")),
    "launch": (
        "clEnqueueNDRangeKernel",
        (
            "MEM_OBJECT_ALLOCATION_FAILURE",
            "OUT_OF_RESOURCES",
            "INVALID_COMMAND_QUEUE",
            "DEVICE_NOT_AVAILABLE",
            "INVALID_WORK_GROUP_SIZE",
        ),
    ),
    "fill": ("clEnqueueFillBuffer", ("MEM_OBJECT_ALLOCATION_FAILURE", "OUT_OF_RESOURCES")),
    "write": (
        "clEnqueueWriteBuffer",
        ("MEM_OBJECT_ALLOCATION_FAILURE", "OUT_OF_HOST_MEMORY", HOST),
    ),
    "read": (
        "clEnqueueReadBuffer",
        ("OUT_OF_RESOURCES", "OUT_OF_HOST_MEMORY", "INVALID_COMMAND_QUEUE"),
    ),
    "map": ("clEnqueueMapBuffer", ("MAP_FAILURE", "OUT_OF_HOST_MEMORY", "OUT_OF_RESOURCES", HOST)),
    "flush": ("clFlush", ("OUT_OF_RESOURCES", "INVALID_COMMAND_QUEUE")),
    "finish": (
        "clFinish",
        ("OUT_OF_RESOURCES", "INVALID_COMMAND_QUEUE", "OUT_OF_HOST_MEMORY", "DEVICE_NOT_AVAILABLE"),
    ),
    "wait": (
        "clWaitForEvents",
        ("EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST", "OUT_OF_RESOURCES", "OUT_OF_HOST_MEMORY"),
    ),
    "array": ("", (HOST,)),
    "pages": ("", (HOST,)),
}
MEMORY = ("MEM_OBJECT_ALLOCATION_FAILURE", "OUT_OF_HOST_MEMORY", "INVALID_BUFFER_SIZE")


def error_of(point: str, name: str) -> Exception:
    """Return what pyopencl raises for an error of a function."""
    if name == HOST:
        if point == "pages":
            return OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return MemoryError("Unable to allocate 1.00 GiB")
    kind = cl.LogicError if name.startswith("INVALID") else cl.RuntimeError
    kind = cl.MemoryError if name in MEMORY else kind
    routine, code = POINTS[point][0], getattr(cl.status_code, name)
    return kind(cl._cl._ErrorRecord(msg="", code=code, routine=routine))


class Faults:
    """Patches pyopencl as a context. `sticky`: after the fault every call fails so, as on a dead context.

    seen: names of the points met so far. buffers: all that were made. fired: the point and error that were
    injected, None before.
    """

    def __init__(self, at: int = -1, error: int = 0, sticky: bool = False) -> None:
        self.at, self.error, self.sticky = at, error, sticky
        self.seen: list[str] = []
        self.fired: tuple[str, str] | None = None
        self.over = False
        self.buffers: list[weakref.ref[Any]] = []
        self._contexts: list[Any] = []
        self._patches = ExitStack()

    def point(self, name: str) -> None:
        """Come to a point; fail where it is the one."""
        if self.over:
            return
        self.seen.append(name)
        if self.fired is not None:
            if self.sticky and POINTS[name][0]:
                raise error_of(name, self.fired[1])
        elif len(self.seen) - 1 == self.at:
            errors = POINTS[name][1]  # another call may come here than when calls were counted
            self.fired = name, errors[self.error % len(errors)]
            raise error_of(*self.fired)

    def alive(self) -> list[int]:
        """Return for each context how many of the driver's objects hold it still."""
        about, deadline = cl.context_info.REFERENCE_COUNT, time.monotonic() + 20
        while True:
            gc.collect()
            counts: list[int] = [context.get_info(about) - 1 for context in self._contexts]
            if not any(counts) or time.monotonic() > deadline:
                return counts
            time.sleep(0.01)  # a driver lets go of a command some time after it

    def __enter__(self) -> Faults:
        replaced: dict[str, Any] = {
            "Context": _context(self),
            "CommandQueue": _queue(self),
            "Buffer": _buffer(self),
            "Program": _program(self),
            "Kernel": _kernel(self),
            "enqueue_nd_range_kernel": self._before("launch", cl.enqueue_nd_range_kernel),
            "enqueue_fill_buffer": self._before("fill", cl.enqueue_fill_buffer),
            "enqueue_map_buffer": self._before("map", cl.enqueue_map_buffer),
            "enqueue_copy": self._copy(cl.enqueue_copy),
        }
        for name, stand_in in replaced.items():
            self._patches.enter_context(patch.object(cl, name, stand_in))
        for kind in (cl.Event, cl.NannyEvent):
            waits = self._before("wait", kind.wait)
            self._patches.enter_context(
                patch.object(kind, "wait", lambda event, waits=waits: waits(event))
            )
        self._patches.enter_context(patch.object(host_pages, "mmap", _Mmap(self)))
        for module in (state, stream):
            self._patches.enter_context(patch.object(module, "np", _Numpy(self)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._patches.close()

    def _before(self, name: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.point(name)
            return function(*args, **kwargs)

        return call

    def _copy(self, function: Any) -> Any:
        def call(queue: Any, to: Any, source: Any, **kwargs: Any) -> Any:
            self.point("read" if isinstance(to, np.ndarray) else "write")
            return function(queue, to, source, **kwargs)

        return call

    @property
    def counts(self) -> Counter[str]:
        """How often each kind of point was met."""
        return Counter(self.seen)


class _Mmap:
    """The module mmap, whose `mmap` is a point."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        return getattr(mmap, name)

    def mmap(self, *args: Any, **kwargs: Any) -> Any:
        self._faults.point("pages")
        return mmap.mmap(*args, **kwargs)


class _Numpy:
    """numpy, whose `empty` is a point."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def empty(self, *args: Any, **kwargs: Any) -> Any:
        self._faults.point("array")
        return np.empty(*args, **kwargs)


def _context(faults: Faults) -> Any:
    class Context(cl.Context):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            faults.point("context")
            super().__init__(*args, **kwargs)
            faults._contexts.append(self)

    return Context


def _queue(faults: Faults) -> Any:
    class CommandQueue(cl.CommandQueue):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            faults.point("queue")
            super().__init__(*args, **kwargs)

        def finish(self) -> None:
            faults.point("finish")
            super().finish()

        def flush(self) -> None:
            faults.point("flush")
            super().flush()

    return CommandQueue


def _buffer(faults: Faults) -> Any:
    class Buffer(cl.Buffer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            faults.point("buffer")
            super().__init__(*args, **kwargs)
            faults.buffers.append(weakref.ref(self))

        def get_sub_region(self, *args: Any) -> Any:
            faults.point("part")
            return super().get_sub_region(*args)

    return Buffer


def _program(faults: Faults) -> Any:
    class Program(cl.Program):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            faults.point("program")
            super().__init__(*args, **kwargs)

        def build(self, *args: Any, **kwargs: Any) -> Any:
            faults.point("build")
            return super().build(*args, **kwargs)

        def get_info(self, *args: Any) -> Any:
            faults.point("binary")
            return super().get_info(*args)

    return Program


def _kernel(faults: Faults) -> Any:
    class Kernel(cl.Kernel):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            faults.point("kernel")
            super().__init__(*args, **kwargs)

        def set_arg(self, number: int, arg: Any) -> None:
            if not number:  # once for all of a kernel
                faults.point("argument")
            super().set_arg(number, arg)

    return Kernel

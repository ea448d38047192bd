"""Renders a template and runs its kernel on a device, for tests of kernels that no op has."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clnn.codegen import render as room
from clnn.runtime.build.program import Device
from clnn.runtime.device import device as devices


@functools.cache
def opened(name: str) -> Device:
    """Return the device of this name, opened once."""
    return Device.open(devices.select(name))


def run(
    device: str,
    template: str,
    params: Mapping[str, Any],
    args: Sequence[Any],
    global_size: Sequence[int],
) -> list[np.ndarray]:
    """Run the kernel `params["name"]` with local size `params["wg"]`; return its arrays afterwards.

    args: arrays, which become buffers of exactly their size, and integers.
    """
    name, source = str(params["name"]), room.render(template, params)
    return run_source(device, name, source, args, global_size, params["wg"])


def run_source(
    device: str,
    name: str,
    source: str,
    args: Sequence[Any],
    global_size: Sequence[int],
    wg: Sequence[int],
) -> list[np.ndarray]:
    """As run, of OpenCL C."""
    import pyopencl as cl

    at = opened(device)
    at.build({name: source})
    queue = cl.CommandQueue(at.context, at.handle)
    copy = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    held = [
        cl.Buffer(at.context, copy, hostbuf=np.ascontiguousarray(a))
        if isinstance(a, np.ndarray)
        else np.int32(a)
        for a in args
    ]
    local = tuple([*wg, 1, 1][: len(global_size)])
    at.kernel(source, name)(queue, tuple(global_size), local, *held)
    found = []
    for given, buffer in zip(args, held, strict=True):
        if isinstance(given, np.ndarray):
            found.append(np.empty_like(given))
            cl.enqueue_copy(queue, found[-1], buffer)
    queue.finish()
    return found

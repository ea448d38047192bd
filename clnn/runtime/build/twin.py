"""PoCL's two CPU devices, with threads and without, take the same machine code: a program of one, loaded on the other.

Only the device's id in the head of a binary differs (see clnn.runtime.build.pocl_binary), which any program that was
built on a device tells.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from clnn.codegen.kernels import CLOCK
from clnn.runtime.build.pocl_binary import with_id_of
from clnn.runtime.build.program import Device
from clnn.runtime.drivers.loader import load
from clnn.runtime.drivers.pages import host_buffer, pages

# The number of the processor that it runs on.
SAMPLE = f"""\
__kernel void sample(__global int *dst)
{{
    uint now;
    int here;
    {CLOCK.format("now")}
    dst[0] = here;
}}
"""


def twin_of(device: Device, *sources: str) -> Device | None:
    """Return the other of both devices with programs of this one, None where it does not take their binaries.

    Raises DeviceError where there is no other, BuildError, and the driver's errors.
    """
    other = Device.open(replace(device.info, in_caller=not device.info.in_caller))
    other.build({"sample": SAMPLE})
    sample = other.binary(SAMPLE)
    for source in sources:
        binary = device.binary(source)
        moved = binary and sample and with_id_of(sample, binary)
        if not (moved and other.take(source, moved)):
            return None
    return other


def sampled(device: Device) -> int:
    """Return the processor on which the device's kernels run, as they see it."""
    cl, memory = load(), pages(1)
    queue, kernel = cl.CommandQueue(device.context), device.kernel(SAMPLE, "sample")
    buffer = host_buffer(device.context, memory)
    kernel.set_arg(0, buffer)
    cl.enqueue_nd_range_kernel(queue, kernel, (1,), (1,))
    queue.finish()
    return int(memory.view(np.int32)[0])

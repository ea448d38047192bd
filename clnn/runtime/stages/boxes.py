"""Boxes that stay of overlapping ones, found by a kernel: as clnn.ops.host.boxes has it, to the bit."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from clnn.ops.host.boxes import stay_by_numpy
from clnn.runtime.build.program import Device
from clnn.runtime.device.failures import explained
from clnn.runtime.drivers.loader import load
from clnn.runtime.process.forked import keep
from clnn.runtime.run.arguments import set_arguments
from clnn.runtime.run.watch import watch_of
from clnn.types import Array

# From so many pairs of boxes on a launch takes less time than numpy, to which a group is as much as PER_GROUP.
LEAST, PER_GROUP = 1 << 14, 1 << 13
WHOLE = 4096  # boxes that the kernel compares sooner than numpy finds those that cannot meet
MOST = 1 << 25  # boxes, so that places in their rows are ints
NAME, WIDTH = "stay", 8


class StayOnDevice:
    """Which boxes stay, by a kernel on a device that works in the host's memory. Any thread may call it."""

    def __init__(self, device: Device, timeout: float | None) -> None:
        keep(self)
        self._device, self._watch = device, watch_of(device, timeout)
        self._lock = threading.Lock()
        self._queue: Any = None
        self._kernel: Any = None

    def __call__(self, rows: Array, begins: Array, limit: np.float32, most: int) -> Array:
        """Do what stay_by_numpy does. Raises DeviceLostError and BuildError besides."""
        sizes, count = np.diff(begins), rows.shape[1]
        pairs = int(((sizes * sizes + PER_GROUP) * (sizes > 1)).sum())
        if rows.dtype != np.float32 or pairs < LEAST or count > MOST:
            return stay_by_numpy(rows, begins, limit, most)
        with self._lock, explained(self._device, "a choice of boxes"):
            found: Array = self._watch(self._run, rows, begins, limit, most)
        return found

    def _run(self, rows: Array, begins: Array, limit: np.float32, most: int) -> Array:
        if self._kernel is None:
            self._make()
        count, ends = rows.shape[1], np.cumsum(-(-np.diff(begins) // WIDTH) * WIDTH)
        places = np.concatenate([[0], ends[:-1]]).astype(np.int32)
        # What holds NaN overlaps nothing, as what has no area does.
        plain = np.ascontiguousarray(np.where(np.isnan(rows).any(0), np.float32(0), rows))
        given = [plain, begins.astype(np.int32), places]
        cl, context = load(), self._device.context
        read = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
        inputs = [cl.Buffer(context, read, hostbuf=array) for array in given]
        room, stays = int(ends[-1]), np.empty(count, np.uint8)
        kept, out = (cl.Buffer(context, cl.mem_flags.READ_WRITE, n) for n in (20 * room, count))
        numbers = np.int32(count), np.int32(room), np.float32(limit), np.int32(min(most, count))
        set_arguments(self._kernel, [*inputs, kept, out, *numbers])
        cl.enqueue_nd_range_kernel(self._queue, self._kernel, (len(places),), (1,))
        cl.enqueue_copy(self._queue, stays, out, is_blocking=True)
        return stays.astype(bool)

    def _make(self) -> None:
        from clnn.codegen.render import render  # few programs choose among many boxes

        source = render("boxes/stay.cl.mako", {"name": NAME, "width": WIDTH})
        self._device.build({NAME: source})
        self._queue = load().CommandQueue(self._device.context)
        self._kernel = self._device.kernel(source, NAME)

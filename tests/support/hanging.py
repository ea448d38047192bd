"""Kernels that do not end by themselves, in the queues of sessions: until they are let go, or a minute."""

from __future__ import annotations

from functools import cache, partial
from types import TracebackType
from typing import Any

import numpy as np

# Reads what the host writes meanwhile: its memory is the buffer. `turns` bounds it all the same.
SPIN = """
__kernel void spin(__global volatile int *go, const int turns) {
    for (int i = 0; i < turns && !go[0]; ++i)
        for (int k = 0; k < 100000 && !go[0]; ++k)
            go[1] = k;
}
"""
TURNS = 200_000  # a minute and more


class Hanging:
    """While `armed`, every launch and fill is followed by a kernel that hangs. Patches pyopencl as a context.

    A session must be compiled inside; leaving it lets all kernels go.
    """

    def __init__(self) -> None:
        import pyopencl as cl

        self.cl, self.real = cl, cl.enqueue_nd_range_kernel
        self._real_fill = cl.enqueue_fill_buffer
        self.armed, self.hung = False, 0
        self.go = np.zeros(1024, np.int32)
        self._kept: list[Any] = []
        self._kernel = cache(self._make)

    def __enter__(self) -> Hanging:
        self.cl.enqueue_nd_range_kernel = partial(self._enqueue, self.real)
        self.cl.enqueue_fill_buffer = partial(self._enqueue, self._real_fill)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.cl.enqueue_nd_range_kernel = self.real
        self.cl.enqueue_fill_buffer = self._real_fill
        self.go[:] = 1

    def __call__(self, queue: Any) -> Any:
        """Enqueue a kernel that hangs; return its event."""
        self.hung += 1
        kernel = self._kernel(queue.context)
        self._kept.append((queue, kernel))
        return self.real(queue, kernel, (1,), (1,))

    def _enqueue(self, real: Any, queue: Any, *args: Any, **kwargs: Any) -> Any:
        event = real(queue, *args, **kwargs)
        return self(queue) if self.armed else event

    def _make(self, context: Any) -> Any:
        cl = self.cl
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
        kernel = cl.Kernel(cl.Program(context, SPIN).build(cache_dir=False), "spin")
        buffer = cl.Buffer(context, flags, hostbuf=self.go)
        self._kept.append(buffer)  # a kernel does not keep its arguments
        kernel.set_args(buffer, np.int32(TURNS))
        return kernel

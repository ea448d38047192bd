"""What a device reaches at most: multiply-adds, memory bandwidth and launch time, measured once.

Results are kept in the cache under the device, its driver and the probe kernels. A share "of peak"
is only ever a share of these.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from clnn.cache.keys import fields_key
from clnn.cache.store import Store
from clnn.codegen.render import render
from clnn.errors import DeviceError
from clnn.records import dataclass
from clnn.runtime.build.program import Device
from clnn.runtime.device.device import DeviceInfo
from clnn.runtime.drivers.loader import load

FOLDER = "_probe/"
COPY_BYTES = 1 << 28
ENOUGH_S = 0.02
MOST_ROUNDS = 1 << 24
REPEATS, LAUNCHES = 5, 64
LAUNCH_BOUND = 3.0  # a kernel below so many empty launches does not fill the device


@dataclass(frozen=True)
class Peaks:
    """Measured peaks: float32 operations and bytes copied (read and written) per second, and the
    device time of an empty kernel in seconds."""

    flops: float
    bandwidth: float
    launch: float

    def bound(self, flops: int, nbytes: int, seconds: float) -> str:
        """Return what bounds a launch of that work and duration: "launch", "mem" or "compute"."""
        if seconds < LAUNCH_BOUND * self.launch:
            return "launch"
        return "compute" if flops / self.flops >= nbytes / self.bandwidth else "mem"


@dataclass(frozen=True)
class Kernel:
    """A kernel's name, source and the parameters of its template."""

    name: str
    source: str
    params: dict[str, Any]


def known_peaks(info: DeviceInfo) -> Peaks | None:
    """Return the peaks of a device that were measured before, else None."""
    entry = Store(kind="peaks").get(_key(info))
    if entry is None:
        return None
    try:
        peaks = Peaks(**{k: float(v) for k, v in json.loads(entry.payload).items()})
    except (ValueError, TypeError, AttributeError):
        return None
    return peaks if min(peaks.flops, peaks.bandwidth, peaks.launch) > 0 else None


def measure_peaks(info: DeviceInfo) -> Peaks:
    """Measure a device, keep the result in the cache and return it. Takes some seconds.

    Raises DeviceError where the device gives no times.
    """
    bench = PeakBench(info)
    peaks = Peaks(bench.flops(), bench.bandwidth(), bench.launch())
    if min(peaks.flops, peaks.bandwidth, peaks.launch) <= 0:
        raise DeviceError(
            f"{info.title} gives no usable times for kernels ({peaks}). Its peaks stay unknown."
        )
    Store(kind="peaks").put(_key(info), json.dumps(asdict(peaks)).encode(), {"device": info.name})
    return peaks


def _key(info: DeviceInfo) -> str:
    sources = [k.source for k in (*_fma_kernels(info), *_copy_kernels(info), _empty_kernel())]
    parts = [info.platform, info.platform_version, info.driver_name, info.driver_version]
    return fields_key("clnn peaks", [*parts, *sources])


def _fma_kernels(info: DeviceInfo) -> list[Kernel]:
    shapes = [(16, 8), (16, 12), (8, 8)] if info.type == "cpu" else [(1, 8), (4, 4), (2, 8)]
    wg = _group(info)
    return [
        probe_kernel(
            "peak_fma",
            f"v{vec}c{chains}{'f' if fused else 'm'}",
            {"vec": vec, "chains": chains, "fused": fused, "wg": (wg,)},
        )
        for vec, chains in shapes
        for fused in (True, False)
    ]


def _copy_kernels(info: DeviceInfo) -> list[Kernel]:
    if info.type == "cpu":
        params = {"vec": 16, "chunk": 4096, "blocked": True, "wg": (1,)}
        return [probe_kernel("peak_copy", "v16", params)]
    wg = (_group(info),)
    return [
        probe_kernel("peak_copy", f"v{vec}", {"vec": vec, "chunk": 4, "blocked": False, "wg": wg})
        for vec in (1, 4)
    ]


def _empty_kernel() -> Kernel:
    return probe_kernel("peak_empty", "one", {})


def probe_kernel(template: str, label: str, params: dict[str, Any]) -> Kernel:
    """Return a kernel of a template of the probes' folder."""
    name = f"{template}_{label}"
    return Kernel(name, render(f"{FOLDER}{template}.cl.mako", {**params, "name": name}), params)


def _group(info: DeviceInfo) -> int:
    return 1 if info.type == "cpu" else min(256, info.max_work_group_size)


class PeakBench:
    """Times kernels of one device on its own clock. Raises DeviceError where it does not open."""

    def __init__(self, info: DeviceInfo) -> None:
        cl = load()
        self.info, self.device = info, Device.open(info)
        flags = cl.command_queue_properties.PROFILING_ENABLE
        self.queue = cl.CommandQueue(self.device.context, properties=flags)
        self._kept: Any = None

    def flops(self) -> float:
        """Return the best rate of the multiply-add kernels."""
        return max(rate for rate, _ in self._fma_rates(self._sums()))

    def flops_again(self) -> Callable[[], float]:
        """Return what measures the fastest multiply-add kernel again: to be called in turns with
        other work, on machines whose clocks do not stay the same; 0 where the clock is too coarse."""
        out = self._sums()
        _, (ready, items, local, done) = max(self._fma_rates(out), key=lambda measured: measured[0])
        self._kept = out  # a kernel does not keep what its arguments are

        def again() -> float:
            seconds = min(self._times(ready, items, local, 2))
            return done / seconds if seconds else 0.0

        return again

    @property
    def _items(self) -> int:
        """Work-items that fill the device with multiply-adds."""
        return self.info.compute_units * (16 if self.info.type == "cpu" else 2048)

    def _sums(self) -> Any:
        return self.buffer(4 * self._items)

    def _fma_rates(self, out: Any) -> list[tuple[float, tuple[Any, int, int, float]]]:
        """Return (rate, (kernel, work-items, local size, operations)) of each kernel."""
        kernels = _fma_kernels(self.info)
        self.build(kernels)
        return [self._fma_rate(k, self._items, out) for k in kernels]

    def _fma_rate(
        self, kernel: Kernel, items: int, out: Any
    ) -> tuple[float, tuple[Any, int, int, float]]:
        """Measure a kernel over as many rounds as take long enough."""
        ready = self.device.kernel(kernel.source, kernel.name)
        rounds, seconds = 256, 0.0
        while rounds <= MOST_ROUNDS:
            ready.set_args(out, np.int32(rounds), np.float32(0.999), np.float32(0.001))
            seconds = self.best(ready, items, kernel.params["wg"][0])
            if seconds >= ENOUGH_S:
                break
            rounds *= 4
        rounds = min(rounds, MOST_ROUNDS)
        done = 2.0 * items * kernel.params["vec"] * kernel.params["chains"] * rounds
        return done / seconds if seconds else 0.0, (ready, items, kernel.params["wg"][0], done)

    def bandwidth(self) -> float:
        """Return the best rate of the copy kernels, bytes read plus bytes written."""
        kernels = _copy_kernels(self.info)
        self.build(kernels)
        most = min(COPY_BYTES, self.info.max_alloc or COPY_BYTES, self.info.global_mem // 8)
        unit = max(4 * k.params["vec"] * k.params["chunk"] * k.params["wg"][0] for k in kernels)
        nbytes = max(most // unit, 1) * unit
        source, target = self.buffer(nbytes), self.buffer(nbytes)
        best = 0.0
        for kernel in kernels:
            ready = self.device.kernel(kernel.source, kernel.name)
            ready.set_args(source, target)
            items = nbytes // (4 * kernel.params["vec"] * kernel.params["chunk"])
            seconds = self.best(ready, items, kernel.params["wg"][0])
            best = max(best, 2.0 * nbytes / seconds if seconds else 0.0)
        return best

    def launch(self) -> float:
        """Return the median device time of a kernel that does next to nothing."""
        kernel = _empty_kernel()
        self.build([kernel])
        ready = self.device.kernel(kernel.source, kernel.name)
        target = self.buffer(4)
        ready.set_args(target)
        times = self._times(ready, 1, 1, LAUNCHES)
        return max(float(np.median(times)), 1e-9)

    def build(self, kernels: Sequence[Kernel]) -> None:
        """Build kernels that are not there yet. Raises BuildError."""
        self.device.build({k.name: k.source for k in kernels})

    def buffer(self, nbytes: int) -> Any:
        """Return a new buffer of zeros."""
        cl = load()
        buffer = cl.Buffer(self.device.context, cl.mem_flags.READ_WRITE, nbytes)
        cl.enqueue_fill_buffer(self.queue, buffer, np.float32(0), 0, nbytes)
        return buffer

    def best(self, kernel: Any, items: int, local: int) -> float:
        """Return the shortest of some times of a kernel, in seconds."""
        return min(self._times(kernel, items, local, REPEATS))

    def _times(self, kernel: Any, items: int, local: int, count: int) -> list[float]:
        cl = load()
        events = [
            cl.enqueue_nd_range_kernel(self.queue, kernel, (items,), (local,))
            for _ in range(count + 1)
        ]
        self.queue.finish()
        return [(e.profile.end - e.profile.start) * 1e-9 for e in events[1:]]

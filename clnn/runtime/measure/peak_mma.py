"""What a device's tensor cores reach at most: products of fragments that never leave registers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from clnn.errors import BuildError, DeviceError
from clnn.runtime.device.device import DeviceInfo
from clnn.runtime.drivers.loader import load
from clnn.runtime.measure.peak import ENOUGH_S, MOST_ROUNDS, Kernel, PeakBench, probe_kernel
from clnn.types import Array

# Kind of numbers -> depth of a product, and the word that holds ones.
KINDS = {
    "f16": (16, 0x3C003C00),
    "bf16": (16, 0x3F803F80),
    "tf32": (8, 0x3F800000),
    "s8": (32, 0x01010101),
}
SHAPES = ((4, 4, 4), (4, 4, 8), (2, 8, 4), (4, 8, 4))  # fragments of a, of b, warps
CHECKED_ROUNDS = 3
GROUPS_PER_UNIT = 16


def product_rate(info: DeviceInfo, kind: str) -> float:
    """Return operations per second of `mma.sync` on numbers of `kind`, of KINDS.

    Sums of float32, of s8 int32. A shape that the driver does not build or start is passed over.
    Raises DeviceError where the device has no tensor cores that inline PTX reaches, where a result is
    wrong, or where no shape gives a time.
    """
    cl = load()
    if not info.caps.ptx_mma:
        raise DeviceError(
            f"{info.title} runs no mma.sync: {info.caps.ptx_mma.reason}. Its rate of tensor cores"
            " stays unknown."
        )
    bench, best, fault = WarpBench(PeakBench(info)), 0.0, ""
    for kernel in product_kernels(kind, "ptx"):
        try:
            best = max(best, bench.rate(kernel))
        except (BuildError, cl.Error) as err:
            fault = f"{kernel.name} does not run on {info.title}: {err}"
    if best <= 0:
        raise DeviceError(fault or f"{info.title} gives no usable times for kernels.")
    return best


def product_kernels(kind: str, body: str) -> Iterator[Kernel]:
    """Yield the kernels for numbers of `kind`, in PTX or in plain C ("emulated")."""
    for mi, ni, warps in SHAPES:
        params = {"kind": kind, "body": body, "mi": mi, "ni": ni, "wg": (32 * warps,)}
        yield probe_kernel("peak_mma", f"{kind}_{mi}x{ni}_w{warps}_{body}", params)


class WarpBench:
    """Runs kernels of warps. held: buffers that kernels refer to."""

    def __init__(self, bench: PeakBench) -> None:
        self.bench = bench
        self.held: list[Any] = []

    def rate(self, kernel: Kernel) -> float:
        """Return operations per second, after a check of the results."""
        self.check(kernel)
        local = kernel.params["wg"][0]
        items = self.bench.info.compute_units * GROUPS_PER_UNIT * local
        ready, out = self._ready(kernel, items)
        self.held.append(out)
        rounds, seconds = 256, 0.0
        while rounds <= MOST_ROUNDS:
            ready.set_arg(2, np.int32(rounds))
            seconds = self.bench.best(ready, items, local)
            if seconds >= ENOUGH_S:
                break
            rounds *= 4
        rounds = min(rounds, MOST_ROUNDS)
        per_warp = 2 * 16 * 8 * KINDS[kernel.params["kind"]][0] * _fragments(kernel)
        return items / 32 * per_warp * rounds / seconds if seconds else 0.0

    def check(self, kernel: Kernel) -> None:
        """Compare the sums of a few rounds over ones. Raises DeviceError."""
        cl, items = load(), 2 * kernel.params["wg"][0]
        ready, out = self._ready(kernel, items)
        ready.set_arg(2, np.int32(CHECKED_ROUNDS))
        queue = self.bench.queue
        cl.enqueue_nd_range_kernel(queue, ready, (items,), (kernel.params["wg"][0],))
        sums: Array = np.empty(items, np.int32 if kernel.params["kind"] == "s8" else np.float32)
        cl.enqueue_copy(queue, sums, out)
        want = 4 * _fragments(kernel) * CHECKED_ROUNDS * KINDS[kernel.params["kind"]][0]
        if not (sums == want).all():
            raise DeviceError(
                f"{kernel.name} gives {sums[sums != want][0]} for sums of {want} on"
                f" {self.bench.info.title}. Its rate of tensor cores stays unknown."
            )

    def _ready(self, kernel: Kernel, items: int) -> tuple[Any, Any]:
        """Return (kernel with its buffers set, the buffer of sums)."""
        cl = load()
        self.bench.build([kernel])
        count = 4 * kernel.params["mi"] + 2 * kernel.params["ni"]
        ones: Array = np.full(count, KINDS[kernel.params["kind"]][1], np.uint32)
        words, out = self.bench.buffer(4 * count), self.bench.buffer(4 * items)
        cl.enqueue_copy(self.bench.queue, words, ones)
        ready = self.bench.device.kernel(kernel.source, kernel.name)
        ready.set_args(words, out, np.int32(1))
        self.held.append(words)
        return ready, out


def _fragments(kernel: Kernel) -> int:
    return int(kernel.params["mi"] * kernel.params["ni"])

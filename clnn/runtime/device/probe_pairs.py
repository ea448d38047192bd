"""The probe's steps about bfloat16 on x86: whether an instruction multiplies pairs, and whether that is fast."""

from __future__ import annotations

import math
from time import perf_counter

import numpy as np

from clnn.runtime.device.probe_bench import ProbeBench, RefusedError, SlowError, expect
from clnn.runtime.device.processor import lists

FEATURE = "avx512_bf16"
ROUNDS, RUNS = 100_000, 6
PAYS = 1.25  # products against float's multiply-adds


def step_x86_bf16(bench: ProbeBench) -> int:
    """The x86 instruction vdpbf16ps through inline assembly: exact on small integers."""
    _need(bench)
    whole = np.random.default_rng(7).integers(-99, 100, (2, 256)).astype(np.float32)
    acc = (np.arange(128) * 1001 - 64000).astype(np.float32)
    pairs = [(x.view(np.uint32) >> 16).astype(np.uint16).view(np.int32) for x in whole]
    got = bench.run(bench.kernel("x86_bf16", "pairs"), 8, None, (*pairs, acc), acc)
    expect(got, acc + (whole[0] * whole[1]).reshape(128, 2).sum(1))
    return 1


def step_fast_bf16(bench: ProbeBench) -> int:
    """Whether vdpbf16ps adds products faster than float's multiply-adds do; percent of their rate."""
    _need(bench)
    held = [bench.buffer(np.zeros(16, np.float32)) for _ in "ab"]
    best: dict[str, float] = {}
    kernels = {name: bench.kernel("x86_bf16", f"{name}_rounds") for name in ("pair", "float")}
    for _ in range(RUNS):
        for name, kernel in kernels.items():
            begun = perf_counter()
            kernel(bench.queue, (1,), (1,), np.int32(ROUNDS), *held)
            bench.queue.finish()
            best[name] = min(best.get(name, math.inf), perf_counter() - begun)
    ratio = 2 * best["float"] / best["pair"]
    if ratio < PAYS:
        raise SlowError(f"vdpbf16ps adds products at {ratio:.2f} of the rate of float's")
    return round(100 * ratio)


def _need(bench: ProbeBench) -> None:
    if not bench.device.type & bench.cl.device_type.CPU:
        raise RefusedError("not a CPU")
    if not lists(FEATURE):
        raise RefusedError(f"the CPU has no {FEATURE}")

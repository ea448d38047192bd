"""The probe's steps that time multiply-adds on x86: of wide vectors, and of pairs of bfloat16, which are run first."""

from __future__ import annotations

import math
from time import perf_counter

import numpy as np

from clnn.runtime.device.probe_bench import ProbeBench, RefusedError, SlowError, expect
from clnn.runtime.device.processor import lists

FEATURE, WIDE_FEATURE = "avx512_bf16", "avx512f"
ROUNDS, RUNS = 100_000, 6
PAYS = 1.25  # products against float's multiply-adds
HALF = 1.4  # products of vectors of 16 against those of 8: below, a core adds as many either way


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
    best = _seconds(bench, "x86_bf16", ("pair_rounds", "float_rounds"))
    ratio = 2 * best["float_rounds"] / best["pair_rounds"]
    if ratio < PAYS:
        raise SlowError(f"vdpbf16ps adds products at {ratio:.2f} of the rate of float's")
    return round(100 * ratio)


def step_half_rate(bench: ProbeBench) -> int:
    """Whether multiply-adds of 16 floats add no more products than those of 8; percent of their rate."""
    _need(bench, WIDE_FEATURE)
    best = _seconds(bench, "x86_wide", ("rounds_of_16", "rounds_of_8"))
    ratio = 2 * best["rounds_of_8"] / best["rounds_of_16"]
    if ratio >= HALF:
        raise SlowError(f"vectors of 16 add products at {ratio:.2f} of the rate of 8")
    return round(100 * ratio)


def _seconds(bench: ProbeBench, file: str, names: tuple[str, ...]) -> dict[str, float]:
    """Return the least seconds of ROUNDS rounds of kernels, which take turns."""
    held = [bench.buffer(np.zeros(16, np.float32)) for _ in "ab"]
    best = dict.fromkeys(names, math.inf)
    kernels = {name: bench.kernel(file, name) for name in names}
    for _ in range(RUNS):
        for name, kernel in kernels.items():
            begun = perf_counter()
            kernel(bench.queue, (1,), (1,), np.int32(ROUNDS), *held)
            bench.queue.finish()
            best[name] = min(best[name], perf_counter() - begun)
    return best


def _need(bench: ProbeBench, feature: str = FEATURE) -> None:
    if not bench.device.type & bench.cl.device_type.CPU:
        raise RefusedError("not a CPU")
    if not lists(feature):
        raise RefusedError(f"the CPU has no {feature}")

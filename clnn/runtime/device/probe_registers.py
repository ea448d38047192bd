"""The probe's steps for what kernels may ask of registers: widths of subgroups and waves, and larger files."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from clnn.runtime.device.probe_bench import ProbeBench, RefusedError, expect

EXTENSION = "cl_intel_required_subgroup_size"
LARGE = "-cl-intel-256-GRF-per-thread"
VALUES, ROUNDS = 40, 5
_SPILLED = re.compile(r"spilled around (\d+)")


def step_required_subgroups(bench: ProbeBench) -> int:
    """Subgroups of the 16 work-items that a kernel asks for, by their size and by sums over them."""
    if not bench.lists(EXTENSION):
        raise RefusedError(f"{EXTENSION}: not listed by the device")
    src = ((np.arange(128) * 29) % 97 + 1).astype(np.uint32)
    out = np.zeros((128, 2), np.uint32)
    got = bench.run(bench.kernel("required_subgroups", "in_sixteens"), 128, 64, (src, out), out)
    sums = np.repeat(src.reshape(8, 16).sum(1, dtype=np.uint32), 16)
    expect(got, np.stack([np.full(128, 16, np.uint32), sums], 1))
    return 1


def step_large_registers(bench: ProbeBench) -> int:
    """Fewer of many values are kept in memory with Intel's build option; returns how many fewer."""
    if "INTEL" not in bench.device.vendor.upper() or not _is_gpu(bench):
        raise RefusedError("not a GPU of Intel's")
    x = np.random.default_rng(3).random((VALUES, 32), np.float32)
    want, spilled = summed(x), []
    for options in ([], [LARGE]):
        program = bench.build(["large_registers"], options)
        log = program.get_build_info(bench.device, bench.cl.program_build_info.LOG) or ""
        spilled.append(sum(int(n) for n in _SPILLED.findall(log)))
        args = (np.int32(ROUNDS), x)
        got = bench.run(bench.cl.Kernel(program, "many"), 32, None, args, x)
        worst = float(np.abs(got / want - 1).max())
        if not worst < 1e-5:
            raise RefusedError(f"wrong result: off by {worst:.1e} of it")
    if spilled[1] >= spilled[0]:
        raise RefusedError(f"the option changes nothing: {spilled[0]}, then {spilled[1]} spilled")
    return spilled[0] - spilled[1]


def summed(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return what the kernel makes of x, in double precision."""
    values = [row[:, None].astype(np.float64) + np.arange(4) for row in x]
    for _ in range(ROUNDS):
        for k in range(VALUES):
            values[k] = values[k] * 0.5 + values[(k + 1) % VALUES]
    return np.stack([value.sum(1) for value in values])


def step_wave64(bench: ProbeBench) -> int:
    """Waves of 64 where a kernel asks for them, on AMD's devices that choose others unasked."""
    vendor = bench.device.vendor.upper()
    if not ("ADVANCED MICRO DEVICES" in vendor or "AMD" in vendor.split()) or not _is_gpu(bench):
        raise RefusedError("not a GPU of AMD's")
    src = ((np.arange(128) * 31) % 101 + 1).astype(np.uint32)
    groups = src.reshape(2, 64)
    want = (3 * groups[:, ::-1] + groups[:, np.arange(64) ^ 32]).ravel().astype(np.uint32)
    waves = []
    for name in ("unasked", "in_sixty_fours"):
        kernel, out = bench.kernel("wave64", name), np.zeros_like(src)
        expect(bench.run(kernel, 128, 64, (src, out), out), want)
        info = bench.cl.kernel_work_group_info.PREFERRED_WORK_GROUP_SIZE_MULTIPLE
        waves.append(int(kernel.get_work_group_info(info, bench.device)))
    if waves != [32, 64]:
        raise RefusedError(f"waves of {waves[0]} unasked, and of {waves[1]} where 64 are asked for")
    return 1


def _is_gpu(bench: ProbeBench) -> bool:
    return bool(bench.device.type & bench.cl.device_type.GPU)

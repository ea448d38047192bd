"""The child process of a probe: builds, runs and checks small kernels on one device.

Writes one JSON line when a step starts and one with its outcome, so that the parent knows which
step a driver crashed or hung in. Kernels lie in kernels_cl/_probe; each step compares the
device's results with NumPy's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from clnn.runtime.device import (
    probe_amx,
    probe_core,
    probe_pairs,
    probe_ptx,
    probe_rates,
    probe_registers,
)
from clnn.runtime.device.probe import JOINT, REQUIRED
from clnn.runtime.device.probe_bench import ProbeBench, RefusedError, SlowError, expect
from clnn.runtime.device.probe_dots import check_dots, four_bytes
from clnn.runtime.device.processor import has_tiles, lists
from clnn.runtime.drivers.loader import load
from clnn.runtime.drivers.pages import host_buffer, pages
from clnn.runtime.process.child import reply_stream

# What is built as one program first, with what else a device states that it has.
TOGETHER = (*REQUIRED[1:], "local_memory", "far")
STEP_OF = {"far": "large_buffers", "x86_wide": "half_rate"}  # of the file, where their names differ
# What is built in one go, if at all possible, where the device lists one of the extensions.
LISTED = {
    "subgroups": ("cl_khr_subgroups", "cl_intel_subgroups"),
    "integer_dot": ("cl_khr_integer_dot_product",),
    "fp16": ("cl_khr_fp16",),
    "fp64": ("cl_khr_fp64",),
}
REASON_LENGTH = 160
# A compiler's error line, less the place in the source.
_ERROR_LINE = re.compile(r"\berror:\s*(?:\S+:\d+:\d+:\s*)?(.+)", re.IGNORECASE)


def _need_listed(bench: ProbeBench, *extensions: str) -> None:
    """Refuse what a device of OpenCL C 1.x does not list; NVIDIA's have more than they list."""
    old = bench.device.opencl_c_version.startswith("OpenCL C 1.")
    if old and not bench.lists(*extensions) and probe_ptx.VENDOR not in bench.device.vendor.upper():
        raise RefusedError(f"{' and '.join(extensions)}: not listed by the device")


def step_fp16(bench: ProbeBench) -> int:
    """Exact products of halves, then sums that half must round and float would not."""
    _need_listed(bench, *LISTED["fp16"])
    return _multiply_add(bench, "fp16", "half_mad", np.float16, 2048.0)


def step_fp64(bench: ProbeBench) -> int:
    """Products and sums that need more bits than float has."""
    return _multiply_add(bench, "fp64", "double_mad", np.float64, 2.0**40)


def _multiply_add(bench: ProbeBench, file: str, name: str, dtype: Any, large: float) -> int:
    count = np.arange(32)
    a, b = (count + 1).astype(dtype), (3 - count % 7).astype(dtype)
    c = (large + 2 * count).astype(dtype)
    dst = np.zeros_like(c)
    kernel = bench.kernel(file, name)
    expect(bench.run(kernel, c.size, None, (a, b, c, dst), dst), a * b + c)
    return 1


def step_subgroups(bench: ProbeBench) -> int:
    """Sum and broadcast within each subgroup; returns the size of the first one."""
    _need_listed(bench, *LISTED["subgroups"])
    kernel = bench.kernel("subgroups", "subgroup_sum")
    local = bench.group_size(kernel)
    src = ((np.arange(2 * local) * 29) % 97 + 1).astype(np.uint32)
    out = np.zeros((src.size, 5), np.uint32)
    got = bench.run(kernel, src.size, local, (src, out), out)
    group = np.repeat([0, 1], local)
    want = got.copy()
    for key in {(g, s) for g, s in zip(group, got[:, 0], strict=True)}:
        members = np.flatnonzero((group == key[0]) & (got[:, 0] == key[1]))
        lanes = members[np.argsort(got[members, 1])]
        want[lanes, 1] = np.arange(lanes.size)
        want[lanes, 2] = lanes.size
        want[lanes, 3] = src[lanes].sum(dtype=np.uint32)
        want[lanes, 4] = src[lanes[0]]
    expect(got, want)
    return int(got[0, 2])


def step_integer_dot(bench: ProbeBench) -> int:
    """dot_4x8packed_* of cl_khr_integer_dot_product, three signednesses."""
    _need_listed(bench, *LISTED["integer_dot"])
    return check_dots(bench, "integer_dot")


def step_x86_vnni(bench: ProbeBench) -> int:
    """The x86 instruction vpdpbusd through inline assembly, and packs of vectors of 16."""
    _expect_cpu(bench)
    if not cpu_has_vnni():
        raise RefusedError("the CPU has no avx512_vnni")
    u = np.concatenate([four_bytes(seed) for seed in (1, 2)])
    s = np.concatenate([four_bytes(seed) for seed in (2, 3)])
    acc = np.arange(128, dtype=np.int32) * 1001 - 64000
    words = (u.view(np.int32).ravel(), s.view(np.int32).ravel(), acc)
    got = bench.run(bench.kernel("x86_vnni", "vnni"), 8, None, words, acc)
    products = u.astype(np.int32) * s.view(np.int8).astype(np.int32)
    expect(got, acc + products.sum(1, dtype=np.int32))
    return check_packs(bench, "x86_vnni", 16)


def step_x86_vbmi(bench: ProbeBench) -> int:
    """The x86 instruction vpermi2b through inline assembly: bytes looked up in a table."""
    _expect_cpu(bench)
    if not lists("avx512vbmi"):
        raise RefusedError("the CPU has no avx512vbmi")
    src, table = np.arange(256, dtype=np.uint8) * np.uint8(37), four_bytes(1).ravel()
    words = [array.view(np.int32) for array in (src, table, np.zeros_like(src))]
    got = bench.run(bench.kernel("x86_vbmi", "lookup"), src.size // 64, None, words, words[2])
    expect(got.view(np.uint8), table[src])
    return 1


def step_x86_madd(bench: ProbeBench) -> int:
    """The x86 instruction vpmaddwd through inline assembly, and packs of vectors of 8."""
    _expect_cpu(bench)
    if not lists("avx2"):
        raise RefusedError("the CPU has no avx2")
    a, b = (
        np.concatenate([four_bytes(s) for s in seeds]).view(np.int16) for seeds in ((1, 2), (2, 3))
    )
    acc = np.arange(128, dtype=np.int32) * 1001 - 64000
    words = (a.view(np.int32).ravel(), b.view(np.int32).ravel(), acc)
    got = bench.run(bench.kernel("x86_madd", "madd"), 16, None, words, acc)
    products = a.astype(np.int32) * b.astype(np.int32)
    expect(got, acc + products.sum(1, dtype=np.int32))
    return check_packs(bench, "x86_madd", 8)


def check_packs(bench: ProbeBench, file: str, width: int) -> int:
    """Floats rounded and packed as saturated bytes, four vectors together, within parts of 128 bits."""
    places = np.arange(8 * width)
    values = ((places * 37 % 701 - 200) / 2).astype(np.float32)
    values[::13] *= np.float32(1e6)
    words = np.zeros(4 * width, np.int32)
    got = bench.run(bench.kernel(file, f"pack{width}"), 2, None, (values, words), words)
    # Word k of part p of the packed vector is word p of the k-th vector's parts.
    whole = np.rint(values.astype(np.float64)).reshape(2, 4, width // 4, 4).swapaxes(1, 2)
    moved = np.clip(whole, -(2**15), 2**15 - 1) - 77
    both = np.stack([np.clip(moved, 0, 255), np.clip(moved, -128, 127)], 1)
    expect(got.view(np.uint8), both.astype(np.int64).astype(np.uint8).ravel())
    return 1


def step_prefetch(bench: ProbeBench) -> int:
    """Reads ahead into the cache by the compiler's builtin, beyond the buffer's end too."""
    _expect_cpu(bench)
    x = np.arange(1000, dtype=np.float32)
    y = np.zeros_like(x)
    expect(bench.run(bench.kernel("prefetch", "ahead"), x.size, None, (x, y), y), x + 1)
    return 1


def step_clock(bench: ProbeBench) -> int:
    """The cycle counter: it advances, and work takes some cycles of it."""
    _expect_cpu(bench)
    x = np.arange(64, dtype=np.float32)
    when = np.zeros((64, 2), np.uint64)
    got = bench.run(bench.kernel("clock", "ticks"), 64, None, (x, np.zeros_like(x), when), when)
    taken = (got[:, 1] - got[:, 0]).astype(np.int64)
    if not (got.all() and (taken > 0).all()):
        raise RefusedError(f"the counter stands still or goes back: {taken.min()} cycles")
    return 1


def step_host_memory(bench: ProbeBench) -> int:
    """Memory lent to the device, written and read by the host between kernels, without a copy or map."""
    _expect_cpu(bench)
    n, kernel = 1003, bench.kernel("saxpy", "saxpy")
    hosts = [pages(4 * n)[: 4 * n].view(np.float32) for _ in range(2)]
    buffers = [host_buffer(bench.context, host) for host in hosts]
    for turn in range(4):
        hosts[0][:] = np.arange(n) + turn
        hosts[1][:] = turn
        kernel(bench.queue, (n,), None, np.int32(3), *buffers)
        bench.queue.finish()
        expect(hosts[1], 3 * (np.arange(n) + turn) + turn)
    return 1


def _expect_cpu(bench: ProbeBench) -> None:
    if not bench.device.type & bench.cl.device_type.CPU:
        raise RefusedError("not a CPU")


def cpu_has_vnni() -> bool:
    """Tell whether this machine's CPU lists the feature avx512_vnni."""
    return lists("avx512_vnni")


STEPS: dict[str, Callable[[ProbeBench], int]] = {
    "saxpy": probe_core.step_saxpy,
    "barrier": probe_core.step_barrier,
    "loops": probe_core.step_loops,
    "longs": probe_core.step_longs,
    "local_memory": probe_core.step_local_memory,
    "fp16": step_fp16,
    "fp64": step_fp64,
    "subgroups": step_subgroups,
    "integer_dot": step_integer_dot,
    "x86_vnni": step_x86_vnni,
    "x86_vbmi": step_x86_vbmi,
    "x86_madd": step_x86_madd,
    "x86_bf16": probe_pairs.step_x86_bf16,
    "x86_amx": probe_amx.step_x86_amx,
    "fast_bf16": probe_pairs.step_fast_bf16,
    "half_rate": probe_pairs.step_half_rate,
    "ptx_dp4a": probe_ptx.step_ptx_dp4a,
    "ptx_mma": probe_ptx.step_ptx_mma,
    "ptx_ldmatrix": probe_ptx.step_ptx_ldmatrix,
    "ptx_cp_async": probe_ptx.step_ptx_cp_async,
    "prefetch": step_prefetch,
    "clock": step_clock,
    "host_memory": step_host_memory,
    "denormals": probe_core.step_denormals,
    "large_buffers": probe_core.step_large_buffers,
    "work_groups": probe_core.step_work_groups,
    "required_subgroups": probe_registers.step_required_subgroups,
    "large_registers": probe_registers.step_large_registers,
    "wave64": probe_registers.step_wave64,
    "multiply_rate": probe_rates.step_multiply_rate,
    "copy_rate": probe_rates.step_copy_rate,
    "launch_time": probe_rates.step_launch_time,
}


def build_most(bench: ProbeBench, steps: Sequence[str]) -> None:
    """Build as one program what the device should take of the kernels of these steps."""
    files = [*TOGETHER, *(name for name, listed in LISTED.items() if bench.lists(*listed))]
    cpu = bench.device.type & bench.cl.device_type.CPU
    if cpu:
        files += ["prefetch", "clock"]
    files = [file for file in files if STEP_OF.get(file, file) in steps]
    listed = {"x86_vnni": cpu_has_vnni(), "x86_madd": lists("avx2")}
    listed["x86_vbmi"] = lists("avx512vbmi")
    listed["x86_bf16"] = lists(probe_pairs.FEATURE)
    listed["x86_amx"] = has_tiles()
    listed["x86_wide"] = lists(probe_pairs.WIDE_FEATURE)
    asked = {name for name in listed if STEP_OF.get(name, name) in steps}
    assembly = [name for name, there in listed.items() if cpu and there and name in asked]
    if len(files) > 1 and not (assembly and bench.build_together([*files, *assembly], merge=True)):
        bench.build_together(files)


def find_device(cl: Any, want: dict[str, Any]) -> Any:
    """Return the device that `want` describes by positions and names."""
    platforms = cl.get_platforms()
    first = want["platform_index"]
    for platform in platforms[first : first + 1] + platforms:
        if platform.name.strip() != want["platform"]:
            continue
        devices = platform.get_devices()
        position = want["device_index"]
        if position < len(devices) and devices[position].name.strip() == want["name"]:
            return devices[position]
    raise RefusedError("the device is not visible in the probe's process")


def reason_of(err: Exception) -> str:
    """Return why a step failed, on one line: the compiler's first error, else the message."""
    lines = [line.strip() for line in str(err).splitlines() if line.strip()]
    error = next((m for m in map(_ERROR_LINE.search, lines) if m), None)
    text = f"error: {error.group(1)}" if error else (lines or [repr(err)])[0]
    return text if len(text) <= REASON_LENGTH else text[: REASON_LENGTH - 3] + "..."


def outcome(step: str, bench: ProbeBench) -> dict[str, Any]:
    """Run one step; return its JSON outcome. What fails in the merged kernel is tried with its own, too."""
    merged, bench.merged_asked = bench.merged, 0
    try:
        value = STEPS[step](bench)
    except Exception as err:
        if not bench.merged_asked or isinstance(err, SlowError):
            return {"step": step, "available": False, "reason": reason_of(err), "value": 0}
        bench.merged = None
        try:
            return outcome(step, bench)
        finally:
            bench.merged = merged
    return {"step": step, "available": True, "reason": "", "value": value}


def main(want: dict[str, Any]) -> None:
    """Run the steps that `want` lists, reporting on the real standard output only."""
    replies = reply_stream()

    def report(**line: Any) -> None:
        replies.write(json.dumps(line) + "\n")
        replies.flush()

    report(start="open")
    try:
        cl = load()
        bench = ProbeBench(cl, find_device(cl, want), want["options"])
    except Exception as err:
        report(step="open", available=False, reason=reason_of(err), value=0)
        return
    report(step="open", available=True, reason="", value=1)
    if want["joint"]:
        report(start=JOINT)
        build_most(bench, want["steps"])
        report(step=JOINT, available=True, reason="", value=1)
    for step in want["steps"]:
        report(start=step)
        done = outcome(step, bench)
        report(**done)
        if step in REQUIRED and not done["available"]:
            return

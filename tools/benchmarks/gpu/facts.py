#!/usr/bin/env python3
"""What the device and its driver are like: limits, compiler, launch costs, clocks; as JSON.

python tools/benchmarks/gpu/facts.py [--device D] [--part quick|slow|all] [--json F]
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tools" / "benchmarks")]

import numpy as np

from clnn.runtime.build.program import Device, program_binary
from clnn.runtime.device.device import DeviceInfo
from clnn.runtime.doctor.selection import select_device
from clnn.runtime.drivers.loader import load
from clnn.runtime.measure.peak import probe_kernel

LAUNCHES = 500
GROUPS = 2**16 + 100  # more than 16 bits count
KIB = 1024
LOCAL_KIB = (16, 32, 48, 64, 96, 128, 160, 192, 227)
QUERIES = (
    "LOCAL_MEM_SIZE",
    "MAX_CONSTANT_BUFFER_SIZE",
    "MAX_PARAMETER_SIZE",
    "MAX_CLOCK_FREQUENCY",
    "PROFILING_TIMER_RESOLUTION",
    "MEM_BASE_ADDR_ALIGN",
    "GLOBAL_MEM_CACHE_SIZE",
    "WARP_SIZE_NV",
    "REGISTERS_PER_BLOCK_NV",
    "MAX_WORK_ITEM_SIZES",
    "QUEUE_PROPERTIES",
)
# Instructions that clnn does not use yet: does the driver's compiler take them?
PTX_TRIALS = {
    "redux.sync (sm_80)": 'asm volatile("redux.sync.add.s32 %0, %1, 0xffffffff;"'
    ' : "=r"(x) : "r"(x));',
    "mbarrier (sm_80)": "__local ulong bar; uint at = (uint)(size_t)&bar;"
    ' asm volatile("mbarrier.init.shared.b64 [%0], 1;" : : "r"(at) : "memory");',
    "wgmma.fence (sm_90a)": 'asm volatile("wgmma.fence.sync.aligned;" : : : "memory");',
}
SMI = (
    "name",
    "driver_version",
    "clocks.sm",
    "clocks.max.sm",
    "clocks.mem",
    "power.limit",
    "temperature.gpu",
    "utilization.gpu",
    "memory.used",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device")
    parser.add_argument("--part", choices=("all", *PARTS), default="all")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    info = select_device(args.device)
    found: dict[str, Any] = {}
    asked = PARTS.get(args.part) or {
        name: look for part in PARTS.values() for name, look in part.items()
    }
    for name, look in asked.items():
        try:
            found[name] = look(Opened(info))
        except Exception as err:  # a driver refuses one question: the others are asked still
            found[name] = {"error": " ".join(f"{type(err).__name__}: {err}".split())[:300]}
        print(f"{name}: {json.dumps(found[name], default=str)}", flush=True)
        if args.json is not None:
            args.json.write_text(json.dumps(found, indent=1, default=str) + "\n", "utf-8")
    return 0


class Opened:
    """A device with a context and a queue whose commands are timed."""

    def __init__(self, info: DeviceInfo) -> None:
        cl = load()
        self.cl, self.info, self.device = cl, info, Device.open(info)
        flags = cl.command_queue_properties.PROFILING_ENABLE
        self.timed = cl.CommandQueue(self.device.context, properties=flags)
        self.plain = cl.CommandQueue(self.device.context)
        self.nvidia = "NVIDIA" in info.vendor.upper()

    def build(self, source: str, *options: str) -> Any:
        program = self.cl.Program(self.device.context, source)
        return program.build([*self.device.options, *options], cache_dir=False)

    def log(self, program: Any) -> str:
        kind = self.cl.program_build_info.LOG
        return str(program.get_build_info(self.device.handle, kind)).strip()

    def empty(self) -> tuple[Any, Any]:
        """Return (a kernel that stores one value, the buffer that it refers to)."""
        kernel = probe_kernel("peak_empty", "one", {})
        self.device.build({kernel.name: kernel.source})
        ready = self.device.kernel(kernel.source, kernel.name)
        target = self.cl.Buffer(self.device.context, self.cl.mem_flags.READ_WRITE, 4)
        ready.set_args(target)
        return ready, target


def identity(at: Opened) -> dict[str, Any]:
    """Names, versions and limits, as the driver states them."""
    info, stated = at.info, {}
    for name in QUERIES:
        try:
            value = at.device.handle.get_info(getattr(at.cl.device_info, name))
            stated[name] = value if isinstance(value, (int, list)) else str(value)
        except (at.cl.Error, AttributeError):
            continue
    return {
        "device": info.name,
        "platform": info.platform_version,
        "driver": info.driver_version,
        "opencl_c": info.opencl_c_version,
        "compute_units": info.compute_units,
        "compute_capability": info.compute_capability,
        "global_mem": info.global_mem,
        "max_alloc": info.max_alloc,
        "max_work_group": info.max_work_group_size,
        **stated,
        "extensions": " ".join(info.extensions),
    }


def capabilities(at: Opened) -> dict[str, str]:
    """What the probe built, ran and checked: "yes", or why not."""
    return {name: "yes" if cap else cap.reason for name, cap in vars(at.info.caps).items()}


def compiler(at: Opened) -> dict[str, Any]:
    """What the compiler says with -cl-nv-verbose, and the version and target of the PTX it makes."""
    kernel = probe_kernel("peak_fma", "v4", {"vec": 4, "chains": 8, "fused": True, "wg": (64,)})
    program = at.build(kernel.source, *(["-cl-nv-verbose"] if at.nvidia else []))
    binary = program_binary(program) or b""
    text = binary[:4000].decode("ascii", "replace")
    lines = re.findall(r"(?m)^\.(?:version|target|address_size)\b.*$", text)
    return {
        "log": at.log(program)[:2000],
        "binary_bytes": len(binary),
        "ptx": lines,
        "binary_begins": "" if lines else repr(binary[:16]),
    }


def local_memory(at: Opened) -> dict[str, Any]:
    """KiB of local memory that work, declared in a kernel and given as an argument."""
    given = declared = 0
    for size in LOCAL_KIB:
        declared = size if _works(lambda n=size: _declared(at, n)) else declared
        given = size if _works(lambda n=size: _given(at, n)) else given
    return {"stated": at.info.local_mem // KIB, "declared": declared, "as_argument": given}


def _works(run: Callable[[], bool]) -> bool:
    try:
        return run()
    except Exception:
        return False


LOCAL = """
__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void {name}(__global uint *out{argument})
{{
    {declared}
    const uint id = get_local_id(0);
    for (uint i = id; i < {words}; i += 64) words[i] = i;
    barrier(CLK_LOCAL_MEM_FENCE);
    uint sum = 0;
    for (uint i = id; i < {words}; i += 64) sum += words[{words} - 1 - i];
    out[id] = sum;
}}
"""


def _declared(at: Opened, kib: int) -> bool:
    words = kib * KIB // 4
    source = LOCAL.format(
        name="fill", argument="", words=words, declared=f"__local uint words[{words}];"
    )
    return _fills(at, at.build(source).fill, words, [])


def _given(at: Opened, kib: int) -> bool:
    words = kib * KIB // 4
    source = LOCAL.format(name="fill", argument=", __local uint *words", words=words, declared="")
    return _fills(at, at.build(source).fill, words, [at.cl.LocalMemory(4 * words)])


def _fills(at: Opened, kernel: Any, words: int, more: list[Any]) -> bool:
    out = at.cl.Buffer(at.device.context, at.cl.mem_flags.READ_WRITE, 256)
    kernel(at.plain, (64,), (64,), out, *more)
    found = np.empty(64, np.uint32)
    at.cl.enqueue_copy(at.plain, found, out)
    places = [np.arange(first, words, 64) for first in range(64)]
    want = np.array([(words - 1 - at_).sum() for at_ in places], np.int64)
    return bool((found == want.astype(np.uint32)).all())


def grids(at: Opened) -> dict[str, bool]:
    """Whether each dimension takes more groups than 16 bits count, as large images have."""
    found = {}
    for axis in range(3):
        source = (
            f"__kernel void mark(__global uint *out)\n"
            f"{{\n    out[get_group_id({axis})] = get_group_id({axis}) + 1;\n}}\n"
        )
        size = tuple(GROUPS if a == axis else 1 for a in range(3))
        found[f"dimension {axis}"] = _works(lambda s=source, n=size: _marks(at, s, n))
    return found


def _marks(at: Opened, source: str, size: tuple[int, ...]) -> bool:
    out = at.cl.Buffer(at.device.context, at.cl.mem_flags.READ_WRITE, 4 * GROUPS)
    at.cl.enqueue_fill_buffer(at.plain, out, np.uint32(0), 0, 4 * GROUPS)
    at.build(source).mark(at.plain, size, (1, 1, 1), out)
    found = np.empty(GROUPS, np.uint32)
    at.cl.enqueue_copy(at.plain, found, out)
    return bool((found == np.arange(1, GROUPS + 1)).all())


def launches(at: Opened) -> dict[str, float]:
    """Microseconds: of enqueueing one kernel, of a kernel in a full queue, of one launch waited for."""
    kernel, target = at.empty()
    enqueue, queue = at.cl.enqueue_nd_range_kernel, at.plain

    def seconds(count: int, wait: bool) -> tuple[float, float]:
        begin = perf_counter()
        for _ in range(count):
            enqueue(queue, kernel, (1,), (1,))
            if wait:
                queue.finish()
        given = perf_counter()
        queue.finish()
        return given - begin, perf_counter() - begin

    seconds(LAUNCHES, False)
    enqueued, whole = seconds(LAUNCHES, False)
    _, single = seconds(LAUNCHES // 5, True)
    del target
    return {
        "enqueue_us": enqueued / LAUNCHES * 1e6,
        "queued_us": whole / LAUNCHES * 1e6,
        "alone_us": single / (LAUNCHES // 5) * 1e6,
    }


def timer(at: Opened) -> dict[str, float]:
    """Nanoseconds: the smallest step between times of events, and an empty kernel's median."""
    kernel, target = at.empty()
    events = [at.cl.enqueue_nd_range_kernel(at.timed, kernel, (1,), (1,)) for _ in range(LAUNCHES)]
    at.timed.finish()
    times = np.array([(e.profile.start, e.profile.end) for e in events], np.int64)
    steps = np.diff(np.unique(times))
    del target
    return {
        "step_ns": float(steps.min()) if steps.size else 0.0,
        "empty_kernel_ns": float(np.median(times[:, 1] - times[:, 0])),
    }


def ptx_trials(at: Opened) -> dict[str, str]:
    """Which further instructions the driver's compiler takes, plain and for another architecture."""
    if not at.nvidia:
        return {"skipped": "not an NVIDIA device"}
    found = {}
    for name, statement in PTX_TRIALS.items():
        source = (
            "__kernel void trial(__global int *out)\n{\n    int x = get_local_id(0);\n"
            f"    {statement}\n    out[get_global_id(0)] = x;\n}}\n"
        )
        for options in ([], ["-cl-nv-arch", "sm_90a"]):
            label = f"{name} {' '.join(options)}".strip()
            try:
                at.build(source, *options)
                found[label] = "builds"
            except Exception as err:
                lines = [line.strip() for line in str(err).splitlines() if "error" in line.lower()]
                found[label] = (lines or [str(err)])[0][:200]
    return found


def smi(at: Opened) -> dict[str, str]:
    """Clocks, power and memory in use, as nvidia-smi says."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {"skipped": "there is no nvidia-smi"}
    command = [tool, f"--query-gpu={','.join(SMI)}", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    lines = done.stdout.strip().splitlines() or [done.stderr.strip()[:200]]
    return dict(zip(SMI, (part.strip() for part in lines[0].split(",")), strict=False))


# What may end the process comes last.
PARTS: dict[str, dict[str, Callable[[Opened], Any]]] = {
    "quick": {
        "identity": identity,
        "capabilities": capabilities,
        "nvidia-smi": smi,
        "launches": launches,
        "timer": timer,
    },
    "slow": {
        "compiler": compiler,
        "grids": grids,
        "local memory, KiB": local_memory,
        "PTX trials": ptx_trials,
    },
}

if __name__ == "__main__":
    sys.exit(main())

"""Probing: a device counts once a child process built, ran and checked kernels on it.

Drivers crash and hang, so the steps run in a child (`probe_child`) that reports each step; when
it dies or outlasts its time, the step it was in is marked and a new child does the rest. Results
are kept in the cache under all that decides them.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from clnn.cache.keys import fields_key
from clnn.cache.store import Store
from clnn.records import dataclass
from clnn.runtime.drivers import icd
from clnn.runtime.drivers.driver_listing import state_of
from clnn.runtime.drivers.loader import child_environment, loader_library, mapped_files
from clnn.runtime.drivers.vendors import Driver
from clnn.runtime.process.forking import run_python

VERSION = "4"
TIMEOUT_S = 120.0
# A result with a crash or a hang in it is believed for so long, then tried again.
DOUBTFUL_S = 3600.0

REQUIRED = ("open", "saxpy", "barrier", "loops", "longs")
# What is measured of GPUs, for estimates: not what a device can do.
MEASURED = ("multiply_rate", "copy_rate", "launch_time")
# PoCL compiles kernels for the sizes of their groups: with barriers, in half the time that it takes for any size.
FOR_SIZES = {"POCL_WORK_GROUP_SPECIALIZATION": "1"}
JOINT = "joint"  # a child's first build; where it crashes, the next child builds one by one


@dataclass(frozen=True)
class Capability:
    """Whether a device can do something; `reason` says why not. True and false like a bool."""

    available: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.available


UNPROBED = Capability(False, "not probed")


@dataclass(frozen=True)
class Capabilities:
    """What kernels may use on a device, when built with its `cl_std`; each was run and checked.

    fp16, fp64: half and double arithmetic. subgroups: reduce and broadcast. local_memory: the
    amount that DeviceInfo.usable_local_mem states. integer_dot: dot_4x8packed_* of
    cl_khr_integer_dot_product. x86_vnni: inline assembly `vpdpbusd` on int16 vectors, and packs of
    them, as `drivers/assembly.py` gives it to the compiler. x86_vbmi: `vpermi2b` on such vectors, likewise.
    x86_madd: `vpmaddwd` on int8 vectors, and
    packs of them, likewise. x86_bf16: inline assembly `vdpbf16ps`. fast_bf16: it adds products faster than
    float's multiply-adds do; measured. x86_amx: registers of tiles (AMX), for products of bytes and of bfloat16.
    half_rate: multiply-adds of 16 floats add no more products than those of 8, where registers hold 16; measured.
    ptx_dp4a: inline PTX `dp4a`. ptx_mma, ptx_ldmatrix, ptx_cp_async: inline PTX `mma.sync` of f16,
    bf16, tf32 and s8, `ldmatrix`, `cp.async` that fills with zeros. prefetch: `__builtin_prefetch` of any address, on
    CPUs. clock: the processor's cycle counter by `__builtin_readcyclecounter`, on CPUs. host_memory:
    memory that the host lends is used in place, so that each sees what the other wrote, on CPUs.
    denormals: numbers below the smallest normal float are kept. large_buffers: of more than 2 GiB.
    required_subgroups: kernels run in subgroups of the 16 that they ask for by `intel_reqd_sub_group_size`.
    large_registers: -cl-intel-256-GRF-per-thread gives work-items more registers. wave64: kernels run in
    waves of 64 where they ask for them by `target("wavefrontsize64")`, in others unasked, on AMD.
    work_groups: work-items side by side are faster than wide vectors, on CPUs whose drivers state no
    vectors; measured, not checked.
    """

    local_memory: Capability = UNPROBED
    fp16: Capability = UNPROBED
    fp64: Capability = UNPROBED
    subgroups: Capability = UNPROBED
    integer_dot: Capability = UNPROBED
    x86_vnni: Capability = UNPROBED
    x86_vbmi: Capability = UNPROBED
    x86_madd: Capability = UNPROBED
    x86_bf16: Capability = UNPROBED
    x86_amx: Capability = UNPROBED
    fast_bf16: Capability = UNPROBED
    half_rate: Capability = UNPROBED
    ptx_dp4a: Capability = UNPROBED
    ptx_mma: Capability = UNPROBED
    ptx_ldmatrix: Capability = UNPROBED
    ptx_cp_async: Capability = UNPROBED
    prefetch: Capability = UNPROBED
    clock: Capability = UNPROBED
    host_memory: Capability = UNPROBED
    denormals: Capability = UNPROBED
    large_buffers: Capability = UNPROBED
    work_groups: Capability = UNPROBED
    required_subgroups: Capability = UNPROBED
    large_registers: Capability = UNPROBED
    wave64: Capability = UNPROBED


UNPROBED_CAPABILITIES = Capabilities()
CAPABILITY_NAMES = tuple(field.name for field in fields(Capabilities))


@dataclass(frozen=True)
class ProbeTarget:
    """A device as a child process finds it again: positions and names, and its build option.

    driver: as in clnn.runtime.device.device.DeviceInfo.
    """

    platform_index: int
    platform: str
    platform_version: str
    device_index: int
    name: str
    driver_version: str
    cl_std: str
    driver: str = ""


@dataclass(frozen=True)
class StepResult:
    """Outcome of one probe step; `doubtful` marks a crash or a hang, `value` what was measured."""

    available: bool
    reason: str = ""
    value: int = 0
    doubtful: bool = False


DONE = StepResult(True)


@dataclass(frozen=True)
class ProbeResult:
    """What is known of a device after its probe; `why_not` is empty when it is usable.

    max_rounds: of a work-item's loops in all, after which the device ends them; 0: it never does.
    rates: as MEASURED names them, 0 where they are not known; see DeviceInfo.
    """

    why_not: str
    caps: Capabilities
    subgroup_size: int
    usable_local_mem: int
    max_rounds: int = 0
    rates: tuple[int, int, int] = (0, 0, 0)


def probe(
    target: ProbeTarget, *, refresh: bool = False, timeout_s: float = TIMEOUT_S
) -> ProbeResult:
    """Return the probe result of `target`, from the cache unless `refresh` is set."""
    store = Store(kind="probes")
    key = _key(target)
    steps = None if refresh else _stored(store, key)
    if steps is None:
        steps = run_steps(target, (*REQUIRED[1:], *CAPABILITY_NAMES, *MEASURED), timeout_s)
        _keep(store, key, steps)
    return _summary(steps)


def _summary(steps: Mapping[str, StepResult]) -> ProbeResult:
    def of(name: str) -> StepResult:
        return steps.get(name, StepResult(False, "not probed"))

    failed = next((name for name in REQUIRED if not of(name).available), "")
    caps = {name: Capability(of(name).available, of(name).reason) for name in CAPABILITY_NAMES}
    return ProbeResult(
        f"{failed}: {of(failed).reason}" if failed else "",
        Capabilities(**caps),
        of("subgroups").value,
        of("local_memory").value,
        of("loops").value,
        (of("multiply_rate").value, of("copy_rate").value, of("launch_time").value),
    )


def run_steps(
    target: ProbeTarget, names: Iterable[str], timeout_s: float = TIMEOUT_S
) -> dict[str, StepResult]:
    """Run probe steps on `target` in child processes; return name -> result, "open" included.

    The rest is left out once a step of REQUIRED fails. `timeout_s` bounds each child, and twice
    as much all of them.
    """
    waiting, joint = list(names), True
    results: dict[str, StepResult] = {}
    deadline = time.monotonic() + 2 * timeout_s
    while waiting:
        left = deadline - time.monotonic()
        if left <= 0:
            late = StepResult(False, "not tried: earlier steps used up the time", doubtful=True)
            return results | dict.fromkeys(waiting, late)
        found = _run_child(target, waiting, min(timeout_s, left), joint)
        joint = joint and found.pop(JOINT, DONE).available
        results |= found
        if any(name in results and not results[name].available for name in REQUIRED):
            break
        waiting = [name for name in waiting if name not in results]
    return results


def _run_child(
    target: ProbeTarget, names: list[str], timeout_s: float, joint: bool
) -> dict[str, StepResult]:
    """Run one child; return its results, with the step that it died in marked as doubtful.

    joint: whether it builds most of what it needs at once, in a step of that name.
    """
    want = {
        "platform_index": target.platform_index,
        "platform": target.platform,
        "device_index": target.device_index,
        "name": target.name,
        "options": [target.cl_std],
        "steps": names,
        "joint": joint,
    }
    env = child_environment(target.driver) | FOR_SIZES
    out, end = run_python("device.probe_child", want, timeout_s, env)
    results: dict[str, StepResult] = {}
    current = "open"
    for line in out.splitlines():
        record = _record(line)
        current = record.get("start", current)
        if "step" in record:
            results[record["step"]] = StepResult(
                record["available"], record["reason"], record["value"]
            )
    missing = [name for name in ("open", *names) if name not in results]
    refused = any(name in results and not results[name].available for name in REQUIRED)
    if missing and not refused:
        guilty = current if current in (JOINT, *missing) and current not in results else missing[0]
        results[guilty] = StepResult(False, end or "ended early", doubtful=True)
    return results


def _record(line: str) -> dict[str, Any]:
    """Parse one line of a child's report; a torn or foreign line counts as empty."""
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    if not isinstance(record, dict) or not isinstance(record.get("start", ""), str):
        return {}
    if "step" in record and not _is_step(record):
        return {}
    return record


def _is_step(record: Mapping[str, Any]) -> bool:
    kinds = {"step": str, "available": bool, "reason": str, "value": int}
    return all(isinstance(record.get(name), kind) for name, kind in kinds.items())


def _key(target: ProbeTarget) -> str:
    parts = [VERSION, target.platform, target.platform_version, target.name]
    parts += [target.driver_version, target.cl_std, *_driver_files(target.driver)]
    parts.append(_kernels_digest())
    return fields_key("clnn probe", parts)


@functools.cache
def _kernels_digest() -> str:
    """Return a digest of the probe's own kernels and steps."""
    from clnn.runtime.device.probe_bench import kernel_folder

    steps = sorted(Path(__file__).parent.glob("probe_*.py"))
    paths = [*steps, *sorted(kernel_folder().glob("*.cl"))]
    return fields_key("clnn probe kernels", [path.read_bytes() for path in paths])


def _driver_files(driver: str) -> list[str]:
    """Return path and time of change of the driver's library; of all libraries without a driver."""
    if driver:
        return [state_of(Driver("", driver))]
    library = loader_library()
    listed = icd.files_in_use(os.environ, library.parent if library else None)
    stems = {entry.stem for entry in listed if entry.present}
    paths = {entry.library for entry in listed if os.path.isabs(entry.library)}
    paths |= {path for path in mapped_files() if os.path.basename(path).split(".so")[0] in stems}
    return [f"{path}:{os.stat(path).st_mtime_ns}" for path in sorted(paths) if os.path.exists(path)]


def _stored(store: Store, key: str) -> dict[str, StepResult] | None:
    """Return the steps kept under `key`; None when absent, damaged or no longer believed."""
    entry = store.get(key)
    if entry is None:
        return None
    try:
        record = json.loads(entry.payload)
        if not isinstance(record["time"], (int, float)) or not isinstance(record["steps"], dict):
            return None
        if not all(_is_step({**step, "step": name}) for name, step in record["steps"].items()):
            return None
        steps = {name: StepResult(**step) for name, step in record["steps"].items()}
    except (ValueError, TypeError, KeyError):
        return None
    age = time.time() - record["time"]
    doubtful = any(step.doubtful for step in steps.values())
    return None if doubtful and not 0 <= age < DOUBTFUL_S else steps


def _keep(store: Store, key: str, steps: Mapping[str, StepResult]) -> None:
    record = {"time": time.time(), "steps": {name: vars(step) for name, step in steps.items()}}
    store.put(key, json.dumps(record).encode(), {"kind": "probe"})

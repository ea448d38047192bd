"""`clnn devices`: the OpenCL devices of this machine, usable or not."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from clnn.runtime.device.device import DeviceInfo, discover
from clnn.runtime.doctor.doctor import no_device
from clnn.runtime.measure.peak import known_peaks, measure_peaks

EXIT_OK, EXIT_NO_DEVICE = 0, 3
_SHOWN_CAPABILITIES = ("fp16", "fp64", "subgroups")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand to the parser of `clnn`."""
    parser = subparsers.add_parser(
        "devices",
        help="list the OpenCL devices",
        description="Lists the OpenCL devices in the order in which `auto` tries them. Exit"
        " status: 0, or 3 when none is usable.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--measure",
        action="store_true",
        help="measure arithmetic rate, bandwidth and launch time of each (kept in the cache)",
    )


def run(args: argparse.Namespace) -> int:
    """Print the list; return the exit status."""
    found = discover()
    if args.measure:
        for info in found:
            if info.usable:
                measure_peaks(info)
    if args.json:
        print(json.dumps([as_data(info) for info in found], indent=2))
    else:
        print(table(found) if found else no_device())
    return EXIT_OK if any(info.usable for info in found) else EXIT_NO_DEVICE


def as_data(info: DeviceInfo) -> dict[str, Any]:
    """Return a device as JSON data: its fields, capabilities with reasons, and measured peaks."""
    peaks = known_peaks(info) if info.usable else None
    more = {"usable": info.usable, "cl_std": info.cl_std, "peaks": peaks and asdict(peaks)}
    return {**asdict(info), **more}


def table(found: Sequence[DeviceInfo]) -> str:
    """Return the devices as a text table, one block of lines per device."""
    return "\n".join(line for info in found for line in _block(info))


def _block(info: DeviceInfo) -> list[str]:
    able = ", ".join(f"{name} {_yes(info, name)}" for name in _SHOWN_CAPABILITIES)
    state = "usable" if info.usable else f"NOT usable: {info.why_not}"
    rows = {
        "platform": f"{info.platform} ({info.platform_version})",
        "driver": f"{info.driver_version}, {info.version}",
        "language": f"{info.opencl_c_version}; {able}",
        "units": f"{info.compute_units}, work-groups of up to {info.max_work_group_size}"
        + (f"; ends a work-item's loops after {info.max_rounds} rounds" if info.max_rounds else ""),
        "memory": f"global {_size(info.global_mem)}, local {_size(info.local_mem)},"
        f" largest buffer {_size(info.max_alloc)}",
        "state": state,
    }
    peaks = known_peaks(info) if info.usable else None
    if peaks:
        rows["measured"] = (
            f"{peaks.flops / 1e9:.4g} GFLOP/s (float32), copies {peaks.bandwidth / 1e9:.4g} GB/s,"
            f" empty kernel {peaks.launch * 1e6:.3g} us"
        )
    if info.usable and info.type == "cpu":
        rows["bfloat16"] = _pairs(info)
    if info.multiply_rate and info.copy_rate:
        rows["estimates"] = (
            f"take {2 * info.multiply_rate / 1e3:.0f} GFLOP/s, {info.copy_rate / 1e3:.0f} GB/s and"
            f" {info.launch_ns / 1e3:.3g} us a launch, from the probe"
        )
    head = f"[{info.index}] {info.name} ({info.type})"
    return [head, *(f"    {name:<9} {text}" for name, text in rows.items())]


def _pairs(info: DeviceInfo) -> str:
    """Return how products of bfloat16 are computed on a CPU, and why not by its instructions."""
    if info.caps.x86_amx:
        return "multiplied by tiles of registers (AMX)"
    lacks = next((c for c in (info.caps.x86_bf16, info.caps.fast_bf16) if not c), None)
    how = "multiplied in pairs by vdpbf16ps"
    return how if lacks is None else f"multiplied as float32: {lacks.reason}"


def _yes(info: DeviceInfo, name: str) -> str:
    if not info.usable:
        return "?"
    if name == "subgroups" and info.caps.subgroups:
        return f"of {info.subgroup_size}"
    return "yes" if getattr(info.caps, name) else "no"


def _size(count: int) -> str:
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << shift:
            return f"{count / (1 << shift):.4g} {unit}"
    return f"{count} B"

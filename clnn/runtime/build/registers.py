"""What a compiler for GPUs is asked of registers, and what it tells of them in the build log.

NVIDIA's tells where it is asked to, Intel's by itself. A kernel whose registers do not suffice keeps
some of its values in memory, which is slow. Its build succeeds all the same, and only the log tells.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from clnn.records import dataclass
from clnn.runtime.drivers.loader import load
from clnn.target import LARGE_REGISTERS

VERBOSE = "-cl-nv-verbose"
LARGE = "-cl-intel-256-GRF-per-thread"  # half as many threads with twice the registers
_USED = re.compile(r"Used (\d+) registers")
_SPILLED = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
# Intel's, for kernels that lack registers only: "compiled SIMD32 allocated 128 regs and spilled around 204".
_INTEL = re.compile(r"allocated (\d+) regs and spilled around (\d+)")
_INTEL_REGISTER = 32  # bytes, at least


@dataclass(frozen=True)
class Registers:
    """The most that a kernel of a program takes: registers, and bytes of them kept in memory."""

    used: int
    spilled: int


def options_with(options: Sequence[str], source: str, takes_large: bool) -> list[str]:
    """Return the build options of a program: a device's own, and what the source asks of registers.

    takes_large: whether the device's compiler takes LARGE.
    """
    return [*options, *([LARGE] if takes_large and LARGE_REGISTERS in source else [])]


def are_told(platform: str, kind: str) -> bool:
    """Whether the compiler of a platform, for devices of a type, tells of kernels that lack registers."""
    return platform.startswith("NVIDIA") or (platform.startswith("Intel") and kind == "gpu")


def of_log(text: str) -> Registers | None:
    """Return what a build log tells of registers, None where it tells nothing."""
    used = [int(n) for n in _USED.findall(text)]
    spilled = [int(n) for pair in _SPILLED.findall(text) for n in pair]
    for registers, moved in _INTEL.findall(text):
        used.append(int(registers))
        spilled.append(int(moved) * _INTEL_REGISTER)
    if not used and not spilled:
        return None
    return Registers(max(used, default=0), max(spilled, default=0))


def spills_of(text: str) -> str:
    """Return what a build log tells of too few registers, "" where there are enough or none told."""
    registers = of_log(text)
    if registers is None or not registers.spilled:
        return ""
    return f"{registers.spilled} bytes of registers are kept in memory ({registers.used} registers used)"


def build_log(program: Any, device: Any) -> str:
    """Return the log of a program's build for a device, "" where there is none."""
    cl = load()
    try:
        return str(program.get_build_info(device, cl.program_build_info.LOG) or "")
    except cl.Error:
        return ""

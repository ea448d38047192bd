"""What a compiler for GPUs tells of registers: NVIDIA's, in the build log, where it is asked to.

A kernel whose registers do not suffice keeps some of its values in memory, which is slow. Its build
succeeds all the same, and only the log tells.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from clnn.runtime.drivers.loader import load

VERBOSE = "-cl-nv-verbose"
_USED = re.compile(r"Used (\d+) registers")
_SPILLED = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


@dataclass(frozen=True)
class Registers:
    """The most that a kernel of a program takes: registers, and bytes of them kept in memory."""

    used: int
    spilled: int


def of_log(text: str) -> Registers | None:
    """Return what a build log tells of registers, None where it tells nothing."""
    used = [int(n) for n in _USED.findall(text)]
    spilled = [int(n) for pair in _SPILLED.findall(text) for n in pair]
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

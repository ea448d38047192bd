"""What the host's processor says of itself, and which other one a driver was told to compile for."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from clnn.runtime.drivers.in_turn import INTEL

# Variables that name the processor that a driver compiles for, by the name of its platform. Drivers read them when they
# are loaded, and state the host's vectors all the same.
_NAMED_BY = {
    INTEL: "CL_CONFIG_CPU_TARGET_ARCH",
    "Portable Computing Language": "POCL_LLVM_CPU_NAME",
}
NOT_GIVEN = "the system does not let this process use AMX"
# Linux's system call on x86-64, what it is asked, and the number of the registers' state.
_ARCH_PRCTL, _ASK_FOR, _TILES = 158, 0x1023, 18
# Processes of 64 bits have larger numbers than this; they alone have that call.
_LONG = 2**32
# Names, as LLVM has them, of processors whose registers hold eight floats at most; those that begin so, too.
_NARROW = (
    *("corei7", "core-avx-i", "core-avx2", "nehalem", "westmere", "sandybridge", "ivybridge"),
    *("haswell", "broadwell", "alderlake", "raptorlake", "meteorlake", "arrowlake", "lunarlake"),
    *("bdver", "btver", "znver1", "znver2", "znver3", "x86-64-v2", "x86-64-v3"),
)


@lru_cache
def lists(feature: str) -> bool:
    """Tell whether this machine's processor lists a feature, such as avx512f; False where none is told."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return feature in text.split()


def has_tiles() -> bool:
    """Tell whether this machine's processor has registers of tiles (AMX), for bytes and bfloat16."""
    return all(map(lists, ("amx_tile", "amx_int8", "amx_bf16")))


@lru_cache
def may_use_tiles() -> bool:
    """Ask the system for registers of tiles, which no process has from its start; tell whether it gave them.

    They are given to all threads, for as long as the process runs.
    """
    if not has_tiles() or not sys.platform.startswith("linux") or sys.maxsize < _LONG:
        return False
    try:
        return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ASK_FOR, _TILES) == 0)
    except (OSError, AttributeError):
        return False


def compiled_for(platform: str, env: Mapping[str, str] = os.environ) -> str:
    """Return the processor that a platform's driver was told to compile for; "": it was told none."""
    return env.get(_NAMED_BY.get(platform, ""), "")


def is_narrow(processor: str) -> bool:
    """Tell whether registers of a processor, by its name, hold eight floats at most; False: not known."""
    return processor == "skylake" or processor.startswith(_NARROW)

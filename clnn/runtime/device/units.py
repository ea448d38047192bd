"""The parts of a device that hold work-groups, which estimates count in: how many, and how large.

Drivers count differently what OpenCL calls compute units: NVIDIA's multiprocessors and AMD's compute units, or
pairs of them, hold work-groups; Intel's execution units hold single threads, and 8 or 16 of them a work-group.
"""

from __future__ import annotations

import re
from dataclasses import replace

from clnn.records import dataclass
from clnn.runtime.device.device import DeviceInfo

KIB = 1024
# Compute capabilities of NVIDIA's multiprocessors with 64 lanes; others have 128.
HALF = {(6, 0), (7, 0), (7, 2), (7, 5), (8, 0)}
PAIRED = 10  # from this generation on AMD's units are pairs, four times 32 lanes
# CDNA 2 and 3, whose units have twice the registers; digits behind "gfx".
TWICE = ("90a", "940", "941", "942", "950")
# Bifrost and Valhall: a core adds 32 products at a time, and holds 512 work-items of up to 32 registers of the 64
# that one may have (Arm's guide to the Valhall shader core).
ARM = "mali", "immortalis"
# Qualcomm publishes no registers. Mesa's compiler for Adreno gives a work-item up to 48 vectors of four of them, and
# files that hold 64 or 96 such vectors of each; so tiles are kept as small as for 128.
ADRENO, ADRENO_REGISTERS = (
    re.compile(r"adreno|^fd\d{3}\b", re.IGNORECASE),
    128,
)  # Mesa names it FD618
# Architectures as Intel's drivers number them. Of some it is known that a work-item of 128 registers holds more values
# than ROOM of clnn/ops/shared/workgroup_tiles.py says: of Xe2, and of Xe3, to whose threads the compiler gives as
# many of 256 registers as they need; of Gen9 to Gen11, too, by their compiler, which is an older one.
XE2, ROOM_XE2, ROOM_OF = (20, 0), 100, {30: 112}
ROOM_GEN9 = 104
RESIDENT = 1024  # work-items of a unit that can be counted on, whatever more it may hold


@dataclass(frozen=True)
class Units:
    """count: how many hold a work-group each. lanes: products of float32 that one adds at a time.

    registers: of 32 bits, of a unit. resident: work-items of a unit that can be counted on.
    item_registers: of a work-item, 0 where all kernels have enough (NVIDIA 255, AMD 256). item_room, asks_for:
    as clnn.target.Target has them. The defaults are those of NVIDIA's newer multiprocessors, and of a device of
    which no more is known.
    """

    count: int
    lanes: int = 128
    registers: int = 65536
    resident: int = RESIDENT
    item_registers: int = 0
    item_room: int = 0
    asks_for: int = 0


def units_of(info: DeviceInfo) -> Units:
    """Return a device's units, from what its driver states."""
    vendor = info.vendor.lower()
    if info.type != "gpu":
        return Units(1 if info.in_caller else info.compute_units)
    if info.compute_capability:
        return Units(info.compute_units, 64 if info.compute_capability in HALF else 128)
    if "intel" in vendor:
        return _intel(info)
    if "advanced micro devices" in vendor or "amd" in vendor.split():
        return _amd(info)
    if vendor == "arm" or info.name.lower().startswith(ARM):
        return Units(info.compute_units, 32, 16384, 512, 64)
    if ADRENO.search(info.name):
        return Units(info.compute_units, item_registers=ADRENO_REGISTERS)
    return Units(info.compute_units)


def _amd(info: DeviceInfo) -> Units:
    """AMD's driver names a device by its architecture, such as gfx90a:sramecc+ or gfx1030."""
    named = re.match(r"gfx([0-9a-f]{3}|[0-9]{4})(?![0-9a-z-])", info.name)
    if named is None:
        return Units(info.compute_units)
    code = named[1]
    generation = int(code[:-2], 16) if len(code) == 3 else int(code[:-2])
    if generation >= PAIRED:
        return Units(info.compute_units, 128, 131072)
    return Units(info.compute_units, 64, 131072 if code in TWICE else 65536)


def _intel(info: DeviceInfo) -> Units:
    """Intel's driver counts execution units; local memory and the largest work-group tell what shares one.

    128 KiB: 8 of 16 lanes (Xe-HPC, Xe2, Xe3). 64 KiB: 8 of 8 lanes with groups of 256 work-items (Gen9 to Gen11),
    16 with larger ones (Xe-LP, Xe-LPG, Xe-HPG). A thread has 128 registers of 32 bytes, of 64 where there are 16
    lanes; 7 threads of each unit are counted on. The compiler takes subgroups as narrow as 8 of 8 lanes. Of 16 lanes
    it takes 32, unless the driver numbers the architecture, which is Xe2 or a later one: 16.
    """
    version = info.ip_version >> 22, info.ip_version >> 14 & 0xFF
    newer, old = version >= XE2, info.max_work_group_size <= 256
    wide = newer or info.local_mem >= 128 * KIB
    lanes = 16 if wide else 8
    together = 8 if wide or old else 16
    threads = 7 * together
    count = max(1, info.compute_units // together)
    resident = min(RESIDENT, threads * lanes)
    units = Units(count, lanes * together, threads * 128 * lanes, resident, 64 if wide else 128)
    if newer:
        room = ROOM_OF.get(version[0], ROOM_XE2)
        return replace(units, item_registers=128, item_room=room, asks_for=16)
    return replace(units, item_room=ROOM_GEN9) if old and not wide else units

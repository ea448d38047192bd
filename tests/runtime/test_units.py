"""What estimates take a GPU for, beside what its maker publishes: units, lanes, registers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

from clnn.ops.shared.workgroup_tiles import GemmShape, group_tiles, holds, second_launch
from clnn.runtime.device.units import Units, units_of
from clnn.target import Target

KIB = 1024


@dataclass(frozen=True)
class Published:
    """What a driver states of a device, its clock in GHz, and the TFLOP/s of float32 that are published.

    dual: products that one lane adds at a time where two instructions go together. ip: Intel's number of
    the architecture, and the release of it.
    """

    vendor: str
    name: str
    compute_units: int
    clock: float
    tflops: float
    capability: tuple[int, int] | None = None
    local: int = 64
    work_group: int = 1024
    dual: int = 1
    ip: tuple[int, int] = (0, 0)

    @property
    def info(self) -> SimpleNamespace:
        return SimpleNamespace(
            type="gpu",
            vendor=self.vendor,
            name=self.name,
            compute_units=self.compute_units,
            compute_capability=self.capability,
            local_mem=self.local * KIB,
            max_work_group_size=self.work_group,
            ip_version=self.ip[0] << 22 | self.ip[1] << 14 | 7,
        )


NV, AMD = "NVIDIA Corporation", "Advanced Micro Devices, Inc."
INTEL = "Intel(R) Corporation"
DEVICES = {
    "H100 SXM": Published(NV, "H100", 132, 1.98, 66.9, (9, 0), 48),
    "A100": Published(NV, "A100", 108, 1.41, 19.5, (8, 0), 48),
    "RTX 4090": Published(NV, "RTX 4090", 128, 2.52, 82.6, (8, 9), 48),
    "RTX 3060": Published(NV, "RTX 3060", 28, 1.777, 12.7, (8, 6), 48),
    "T4": Published(NV, "T4", 40, 1.59, 8.1, (7, 5), 48),
    "MI100": Published(AMD, "gfx908:sramecc+:xnack-", 120, 1.502, 23.1),
    "MI250X, one die": Published(AMD, "gfx90a:sramecc+:xnack-", 110, 1.7, 23.95),
    "RX Vega 64": Published(AMD, "gfx900:xnack-", 64, 1.546, 12.7),
    "RX 6900 XT": Published(AMD, "gfx1030", 40, 2.25, 23.04),
    "RX 7900 XTX": Published(AMD, "gfx1100", 48, 2.5, 61.4, dual=2),
    "UHD 630": Published(INTEL, "UHD 630", 24, 1.15, 0.44, None, 64, 256),
    "Iris Xe, 96 units": Published(INTEL, "Iris Xe", 96, 1.35, 2.07, None, 64, 512),
    "Arc A770": Published(INTEL, "Arc A770", 512, 2.1, 17.2, ip=(12, 55)),
    "Max 1550, both dies": Published(INTEL, "Max 1550", 1024, 1.6, 52.4, None, 128, ip=(12, 60)),
    "Arc B580": Published(INTEL, "Arc B580", 160, 2.67, 13.7, None, 128, ip=(20, 1)),
}


@pytest.mark.parametrize("name", DEVICES)
def test_lanes_give_the_published_rate(name: str) -> None:
    device = DEVICES[name]
    units = units_of(device.info)
    rate = 2 * units.count * units.lanes * device.dual * device.clock / 1e3
    assert rate == pytest.approx(device.tflops, rel=0.02)


@pytest.mark.parametrize(
    ("name", "units"),
    [
        ("H100 SXM", Units(132)),
        ("A100", Units(108, 64)),
        ("RX 6900 XT", Units(40, 128, 131072)),
        ("MI250X, one die", Units(110, 64, 131072)),
        ("RX Vega 64", Units(64, 64)),
        ("UHD 630", Units(3, 64, 57344, 448, 128, 104)),
        ("Arc A770", Units(32, 128, 114688, 896, 128)),
        ("Max 1550, both dies", Units(128, 128, 114688, 896, 64)),
        ("Arc B580", Units(20, 128, 114688, 896, 128, 100, 16)),
    ],
)
def test_units_hold_a_work_group_each(name: str, units: Units) -> None:
    assert units_of(DEVICES[name].info) == units


@pytest.mark.parametrize(
    ("ip", "has"),
    [
        ((0, 0), (64, 0, 0)),  # a driver that does not number architectures
        ((12, 60), (64, 0, 0)),
        ((12, 61), (64, 0, 0)),
        ((20, 1), (128, 100, 16)),
        ((20, 4), (128, 100, 16)),
        ((30, 0), (128, 112, 16)),
        ((35, 0), (128, 100, 16)),  # newer than what was compiled for
    ],
)
def test_the_architecture_tells_of_narrow_subgroups(ip: tuple[int, int], has: tuple) -> None:
    """Where registers are of 64 bytes. Without a number, as of Xe-HPC, whose subgroups are wider."""
    units = units_of(replace(DEVICES["Arc B580"], ip=ip).info)
    assert (units.item_registers, units.item_room, units.asks_for) == has
    assert units_of(replace(DEVICES["Arc B580"], ip=ip, local=64).info).lanes == 128


def test_without_a_number_registers_are_as_of_their_kind() -> None:
    for name, ip in (("UHD 630", (9, 0)), ("Iris Xe, 96 units", (12, 0)), ("Arc A770", (0, 0))):
        assert units_of(replace(DEVICES[name], ip=ip).info) == units_of(DEVICES[name].info)


def test_xe2_is_offered_tiles_without_asking() -> None:
    """Its compiler takes subgroups of 16 by itself, that of Xe-HPC does not: few tiles fit there."""
    sums, offered = GemmShape(512, 512, 512), {}
    for name in ("Arc B580", "Max 1550, both dies"):
        has = units_of(DEVICES[name].info)
        asked = {
            "item_registers": has.item_registers,
            "item_room": has.item_room,
            "asks_for": has.asks_for,
        }
        offered[name] = group_tiles(sums, Target("gpu", 4, 20, 1024, 131072, **asked))
    most = {n: max(s.tile.tm * s.tile.tn for s in splits) for n, splits in offered.items()}
    assert most == {"Arc B580": 64, "Max 1550, both dies": 16}


@pytest.mark.parametrize(
    ("vendor", "name"), [("ARM", "Mali-G78 r0p0"), ("Mesa", "Mali-G610 (Panfrost)")]
)
def test_cores_of_arm_have_few_registers(vendor: str, name: str) -> None:
    """64 of a work-item: tiles that need more are not offered."""
    units = units_of(Published(vendor, name, 10, 0.8, 0.5, None, 32, 1024).info)
    assert units == Units(10, 32, 16384, 512, 64)
    offered = Target("gpu", 4, 10, 256, 32768, item_registers=units.item_registers)
    sums = GemmShape(512, 512, 512)
    tiles = [choice.tile for choice in group_tiles(sums, offered)]
    assert tiles and max(tile.tm * tile.tn for tile in tiles) <= 32
    assert any(
        c.tile.tm * c.tile.tn > 32 for c in group_tiles(sums, replace(offered, item_registers=0))
    )
    assert all(holds(offered.register_modes[0], tile) for tile in tiles)


@pytest.mark.parametrize("name", ["QUALCOMM Adreno(TM)", "FD618", "Adreno (TM) 740"])
def test_tiles_for_adreno_are_small(name: str) -> None:
    units = units_of(Published("some maker", name, 3, 0.8, 1).info)
    assert units == Units(3, item_registers=128)
    few = Target("gpu", 4, 3, 1024, 32768, item_registers=units.item_registers)
    offered, all_of_them = (
        {choice.tile for choice in group_tiles(GemmShape(512, 512, 512), target)}
        for target in (few, replace(few, item_registers=0))
    )
    mode = few.register_modes[0]
    assert offered and all(holds(mode, tile) for tile in offered)
    assert not all(holds(mode, tile) for tile in all_of_them)


def test_of_other_devices_no_more_is_known_than_their_count() -> None:
    other = Published("Some maker", "Some GPU", 7, 1, 1).info
    assert units_of(other) == Units(7)
    for name in ("AMD Radeon RX 6600 (radeonsi)", "gfx9-generic", "gfx10-3-generic"):
        assert units_of(Published(AMD, name, 14, 1, 1).info) == Units(14)
    cpu = {**vars(DEVICES["UHD 630"].info), "type": "cpu"}
    assert units_of(SimpleNamespace(**cpu, in_caller=False)) == Units(24)
    assert units_of(SimpleNamespace(**cpu, in_caller=True)) == Units(1)
    plain = Target()
    assert (plain.lanes, plain.unit_registers, plain.resident) == (128, 65536, 1024)
    assert units_of(other) == Units(7, plain.lanes, plain.unit_registers, plain.resident)


def target(name: str) -> Target:
    units = units_of(DEVICES[name].info)
    known = {"lanes": units.lanes, "unit_registers": units.registers, "resident": units.resident}
    return Target("gpu", 4, units.count, 256, 49152, **known)


@pytest.mark.parametrize("size", [256, 1024, 2048])
def test_products_follow_the_units_that_hold_groups(size: int) -> None:
    """Counted as execution units, an Arc A770 would get smaller tiles, or sums in parts."""
    sums = GemmShape(size, size, size)
    best = group_tiles(sums, target("Arc A770"))[0]
    counted = group_tiles(sums, Target("gpu", 4, 512, 256, 49152))[0]
    assert best.slices == 1 < counted.slices
    assert counted.tile.bm * counted.tile.bn <= best.tile.bm * best.tile.bn


def test_a_launch_weighs_as_much_as_the_lanes_could_do_meanwhile() -> None:
    assert second_launch(Target("gpu")) == 60_000
    assert second_launch(target("A100")) == 30_000

"""tools/benchmarks/offline_table.py: what it reads of the compilers, the page that it writes, a short form of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from common import ROOT

TOOL = ROOT / "tools" / "benchmarks" / "offline_table.py"
sys.path.insert(0, str(TOOL.parent))

import offline_table as tool
from ptx_table import Tools

from clnn.runtime.device.units import units_of
from clnn.target import Target

# The smallest and the largest tile of each kind; what a short form compiles.
FEW = ("gemm_workgroup_f32_packed_t4r4_t64x64x8_i8x4", "conv2d_workgroup", "t128x128x32")


def test_cells() -> None:
    text = "; NumVgprs: {}\n; ScratchSize: {}\n; Occupancy: {}\n"
    assert tool.of_amd(text.format(190, 0, 8)) == "190, 8"
    assert tool.of_amd(text.format(128, 183, 4)) == "128, 4 (183)"
    for lacking in ("s_endpgm", text.format(1, 2, 3).replace("Scratch", "Private")):
        with pytest.raises(tool.UnreadableError):
            tool.of_amd(lacking)


MADE = "\n    execution_env:\n      grf_count:       {}\n      simd_size:       {}\n"
BYTES = "      slm_size:        32768\n      spill_size:      {}\n"
MEMORY = "    per_thread_memory_buffers:\n      - type:            scratch\n"


@pytest.mark.parametrize(
    ("spilled", "made", "how", "cell"),
    [
        (204, MADE.format(128, 32) + MEMORY, (128, 0), "32 (204)"),  # IGC 1
        (319, MADE.format(128, 32) + BYTES.format(319 * 64) + MEMORY, (128, 64), "32 (319)"),
        (16, MADE.format(128, 8) + BYTES.format(16 * 32) + MEMORY, (128, 32), "8 (16)"),
        (None, MADE.format(128, 16) + BYTES.format(256) + MEMORY, (128, 64), "16 (4)"),
        (None, MADE.format(128, 16), (128, 64), "16"),
        (None, MADE.format(128, 16), (128, 0), "16"),
        (None, MADE.format(256, 16), (256, 64), "16"),
        (None, MADE.format(192, 16), (128, 64), "16, 192"),  # a compiler that chooses
        (2, MADE.format(160, 32) + BYTES.format(2 * 64) + MEMORY, (128, 64), "32, 160 (2)"),
        (None, MADE.format(128, 8), (256, 32), "8, 128"),  # an option that changes nothing
    ],
)
def test_cells_of_intel(spilled: int | None, made: str, how: tuple[int, int], cell: str) -> None:
    log = "warning: in kernel 'k': [RetryManager] Start recompilation of the kernel\n"
    if spilled:
        log += f"warning: in kernel 'k': compiled SIMD8 allocated 128 regs and spilled around {spilled}\n"
    assert tool.of_intel(log, made, *how) == cell


def test_what_cannot_be_read_is_no_kernel_without_spills() -> None:
    fine, told = MADE.format(128, 16), "compiled SIMD16 allocated 128 regs and spilled around 7"
    some = fine + BYTES.format(448) + MEMORY
    assert tool.of_intel(told, some, 128, 64) == "16 (7)"
    for log, made, wide in (
        ("", "", 64),
        ("", fine.replace("simd_size", "width"), 64),
        ("", fine.replace("grf_count", "registers"), 64),
        ("", fine + fine, 64),
        ("", fine + MEMORY, 64),  # memory for what nobody tells of
        ("", fine + MEMORY, 0),
        ("", fine + BYTES.format(448), 64),
        ("", fine + BYTES.format(449) + MEMORY, 64),
        (told, fine + MEMORY, 64),  # bytes under another name
        (told, fine + BYTES.format(640) + MEMORY, 64),
        (told, fine, 0),
        (told.replace("around", "some"), fine, 0),
    ):
        with pytest.raises(tool.UnreadableError):
            tool.of_intel(log, made, 128, wide)


def test_a_compiler_that_tells_of_no_spills_is_noticed(monkeypatch) -> None:
    """All columns of a maker are tried by a kernel whose values cannot fit."""
    for cell, want in (("8", list(tool.IGC2)), ("8 (40)", [])):
        monkeypatch.setitem(tool.COMPILE, "igc2", lambda *_, cell=cell: cell)
        nothing = tool.Compilers(Tools(None, None, None), None, Path(), (), {})
        told = [line.split(":")[0] for line in tool.unseen(nothing, ["igc2"])]
        assert told == want
    assert tool.crowded(3).count("v2 = v2 * 0.5f + v0;") == 1


def every(cell: str) -> dict[str, str]:
    return {column: cell for columns in tool.COLUMNS.values() for column in columns}


def test_the_page_counts_what_spills() -> None:
    text = tool.page(
        {"a": every("8"), "b": every("8 (2)")}, {"intel": "2026-01-02, ocloc"}, {"b": ["skl"]}
    )
    assert text.startswith(tool.HEAD + "- Intel: 2026-01-02, ocloc\n")
    assert "Kernels, of 2, that spill: sm_80: 1;" in text and "pvc, SIMD16: 1; " in text
    assert "offered: sm_80: 1 of 2; " in text and "; skl: 0 of 1; tgllp: 1 of 2;" in text
    cells = ["*8 (2)*" if column == "skl" else "8 (2)" for column in every("")]
    assert text.splitlines()[-1] == f"| b | {' | '.join(cells)} |"
    assert tool.read(text) == (
        {"a": every("8"), "b": every("8 (2)")},
        {"intel": "2026-01-02, ocloc"},
    )


def test_columns_of_other_makers_stay_on_the_page() -> None:
    """Kernels that are no more go, new ones lack the others' columns."""
    before = {"amd": "2026-01-02, clang 19", "igc2": "2026-01-02, ocloc 26.27"}
    text = tool.page({"a": every("8"), "old": every("9")}, before, {})
    mine = dict.fromkeys(tool.NVIDIA, "7")
    rows, told = tool.read(
        tool.updated(text, {"a": mine, "new": mine}, {"nvidia": "2026-02-03, x"}, {})
    )
    assert rows["a"] == {**every("8"), **mine} and rows["new"] == {**every("-"), **mine}
    assert list(rows) == ["a", "new"]
    assert told == {**before, "nvidia": "2026-02-03, x"}


def test_the_page_lists_the_kernels_of_today() -> None:
    text = tool.PAGE.read_text("utf-8")
    assert text.startswith(tool.HEAD)
    rows, told = tool.read(text)
    assert list(rows) == [name for name, _ in tool.work_groups()] and set(told) == set(tool.COLUMNS)
    assert not any(cell == "-" for cells in rows.values() for cell in cells.values())
    assert tool.page(rows, told, tool.left_out()) == text


def test_no_kernel_spills_where_it_is_offered() -> None:
    """And each device is offered most of them in one way or another."""
    (rows, _), left = tool.read(tool.PAGE.read_text("utf-8")), tool.left_out()
    for name, cells in rows.items():
        spilling = {column for column, cell in cells.items() if "(" in cell}
        assert spilling <= set(left[name]), name
    for columns in (tool.INTEL, tool.IGC2):
        for device in {device for device, *_ in columns.values()}:
            ways = {column for column in columns if columns[column][0] == device}
            least = 12 if device == "tgllp" else 29
            assert sum(not ways <= set(absent) for absent in left.values()) >= least, device
    assert all(set(columns) <= set(tool.MODES) for columns in left.values())


# Local memory in KiB, the largest work-group and the architecture, as drivers state them.
STATED = {
    "skl": (64, 256, (9, 0)),
    "tgllp": (64, 512, (12, 0)),
    "mtl": (64, 1024, (12, 70)),
    "dg2": (64, 1024, (12, 55)),
    "pvc": (128, 1024, (12, 60)),
    "bmg": (128, 1024, (20, 1)),
    "ptl": (128, 1024, (30, 0)),
}


@pytest.mark.parametrize("name", STATED)
def test_the_modes_of_the_page_are_those_that_devices_have(name: str) -> None:
    """As their registers and two capabilities give them; the large ones where the option changes something."""
    local, group, (major, minor) = STATED[name]
    info = {"type": "gpu", "vendor": "Intel(R) Corporation", "name": name, "compute_units": 64}
    info |= {"local_mem": local << 10, "max_work_group_size": group, "compute_capability": None}
    units = units_of(SimpleNamespace(**info, ip_version=major << 22 | minor << 14))
    named = ("item_registers", "item_room", "asks_for")
    large = {"large_registers"} if name not in ("skl", "tgllp", "ptl") else set()
    features = frozenset({"required_subgroups", *large})
    target = Target("gpu", 4, features=features, **{what: getattr(units, what) for what in named})
    for columns in (tool.INTEL, tool.IGC2):
        listed = [tool.MODES[column] for column in columns if columns[column][0] == name]
        modes = [(m.registers, m.lanes, m.large, m.room) for m in target.register_modes]
        assert listed in ([], modes)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    command = [sys.executable, str(TOOL), "--root", str(tmp_path), "--for", "amd,intel,igc2"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "AMD: there is no clang" in done.stderr
    assert "Intel: there is no ocloc" in done.stderr
    nothing = tool.Compilers(Tools(None, None, None), None, tmp_path, (), {})
    assert "ptxas is missing" in nothing.lacks("nvidia")
    some = tool.Compilers(nothing.nvidia, tmp_path / "clang-19", tmp_path, (), {})
    assert some.lacks("amd").endswith(f"has no {', '.join(tool.AMD)}")
    command = [sys.executable, str(TOOL), "--for", "arm"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "arm is none of nvidia, amd, intel, igc2" in done.stderr


def stand_in(folder: Path, devices: str) -> Path:
    """Make a program that lists devices as ocloc does, in the place of ocloc."""
    place = folder / "usr/bin/ocloc-26"
    place.parent.mkdir(parents=True)
    place.write_text(f"#!/bin/sh\necho '     <device_type> can be: {devices}, version  or hex'\n")
    place.chmod(0o755)
    return place


def test_a_compiler_that_does_not_know_a_device_is_missing(tmp_path: Path) -> None:
    """Of Intel's compilers the older knows no Xe2, the newer no Gen9: each fills its own columns."""
    older = stand_in(tmp_path / "older", "skl, tgllp, dg2-g10, pvc-sdv, pvc")
    newer = stand_in(tmp_path / "newer", "tgllp, dg2, pvc, mtl-u, mtl, bmg, lnl, ptl")
    old, new = tool.find(tmp_path / "older"), tool.find(tmp_path / "newer")
    assert old.lacks("intel") == "" and new.lacks("igc2") == ""
    assert old.lacks("igc2") == f"{older} does not know bmg, mtl, ptl"
    assert new.lacks("intel") == f"{newer} does not know skl"


def test_a_folder_with_a_c_library_has_its_own_loader(tmp_path: Path) -> None:
    place = stand_in(tmp_path, "skl")
    assert tool.find(tmp_path).ocloc == (str(place),)
    library = tmp_path / "usr/lib/x86_64-linux-gnu"
    library.mkdir(parents=True)
    (library / "ld-linux-x86-64.so.2").touch()
    found = tool.find(tmp_path)
    assert found.ocloc[1:] == ("--library-path", str(library), str(place))
    assert str(tmp_path) not in found.environment.get("LD_LIBRARY_PATH", "")


@pytest.mark.parametrize("maker", tool.COLUMNS)
def test_a_few_kernels_spill_where_the_page_says_so(maker: str, monkeypatch) -> None:
    """Compilers of AMD's and Intel's devices may be unpacked in .cache/offline, newer ones in .cache/offline-igc2."""
    unpacked = ROOT / ".cache" / ("offline-igc2" if maker == "igc2" else "offline")
    compilers = tool.find(unpacked if unpacked.exists() else Path("/"))
    if why := compilers.lacks(maker):
        pytest.skip(why)
    if maker == "amd":
        monkeypatch.setenv("LD_LIBRARY_PATH", compilers.environment["LD_LIBRARY_PATH"])
    made, spilling = dict(tool.work_groups()), False
    listed, _ = tool.read(tool.PAGE.read_text("utf-8"))
    for part in FEW:
        name = next(n for n in made if part in n)
        _, cells = tool.cells_of(compilers, [maker], name, made[name])
        assert list(cells) == list(tool.COLUMNS[maker]) and "-" not in cells.values()
        assert [c for c in cells if "(" in cells[c]] == [c for c in cells if "(" in listed[name][c]]
        spilling |= any("(" in cell for cell in cells.values())
    assert spilling or not list(tool.unseen(compilers, [maker]))

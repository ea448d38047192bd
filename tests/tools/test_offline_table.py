"""tools/benchmarks/offline_table.py: what it reads of the compilers, the page that it writes, a short form of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from common import ROOT

TOOL = ROOT / "tools" / "benchmarks" / "offline_table.py"
sys.path.insert(0, str(TOOL.parent))

import offline_table as tool
from ptx_table import Tools

from clnn.target import Target

# The smallest and the largest tile of each kind; what a short form compiles.
FEW = ("gemm_workgroup_f32_packed_t4r4_t64x64x8_i8x4", "conv2d_workgroup", "t128x128x32")


def test_cells() -> None:
    text = "; NumVgprs: {}\n; ScratchSize: {}\n; Occupancy: {}\n"
    assert tool.of_amd(text.format(190, 0, 8)) == "190, 8"
    assert tool.of_amd(text.format(128, 183, 4)) == "128, 4 (183)"
    assert tool.of_amd("s_endpgm") == "-"
    told = "warning: kernel k  compiled SIMD32 allocated 128 regs and spilled around 204\n"
    assert tool.of_intel(told, "  simd_size:       32\n") == "32 (204)"
    assert tool.of_intel("Build succeeded.\n", "simd_size: 16") == "16"
    assert tool.of_intel("Build failed", "") == "-"


def every(cell: str) -> dict[str, str]:
    return {column: cell for columns in tool.COLUMNS.values() for column in columns}


def test_the_page_counts_what_spills() -> None:
    text = tool.page(
        {"a": every("8"), "b": every("8 (2)")}, {"intel": "2026-01-02, ocloc"}, {"b": ["skl"]}
    )
    assert text.startswith(tool.HEAD + "- Intel: 2026-01-02, ocloc\n")
    assert "Kernels, of 2, that spill: sm_80 1;" in text and "pvc, SIMD16 1; " in text
    assert "offered: sm_80 1 of 2; " in text and "; skl 0 of 1; tgllp 1 of 2;" in text
    cells = ["*8 (2)*" if column == "skl" else "8 (2)" for column in every("")]
    assert text.splitlines()[-1] == f"| b | {' | '.join(cells)} |"
    assert tool.read(text) == (
        {"a": every("8"), "b": every("8 (2)")},
        {"intel": "2026-01-02, ocloc"},
    )


def test_columns_of_other_makers_stay_on_the_page() -> None:
    """Kernels that are no more go, new ones lack the others' columns."""
    text = tool.page({"a": every("8"), "old": every("9")}, {"amd": "2026-01-02, clang 19"}, {})
    mine = dict.fromkeys(tool.NVIDIA, "7")
    rows, told = tool.read(
        tool.updated(text, {"a": mine, "new": mine}, {"nvidia": "2026-02-03, x"}, {})
    )
    assert rows["a"] == {**every("8"), **mine} and rows["new"] == {**every("-"), **mine}
    assert list(rows) == ["a", "new"]
    assert told == {"amd": "2026-01-02, clang 19", "nvidia": "2026-02-03, x"}


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
    for device in ("skl", "tgllp", "dg2", "pvc"):
        ways = {column for column in tool.MODES if column.startswith(device)}
        assert sum(not ways <= set(columns) for columns in left.values()) >= 30, device
    assert all(set(columns) <= set(tool.MODES) for columns in left.values())


def test_the_modes_of_the_page_are_those_that_devices_have() -> None:
    """As clnn.target derives them from the registers of a work-item and two capabilities."""
    both = frozenset({"required_subgroups", "large_registers"})
    told = {"skl": (128, frozenset()), "dg2": (128, both), "pvc": (64, both)}
    for device, (registers, features) in told.items():
        modes = Target("gpu", 4, features=features, item_registers=registers).register_modes
        listed = [mode for column, mode in tool.MODES.items() if column.startswith(device)]
        assert [(m.registers, m.lanes, m.large) for m in modes] == listed


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    command = [sys.executable, str(TOOL), "--root", str(tmp_path), "--for", "amd,intel"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "AMD: there is no clang" in done.stderr
    assert f"Intel: there is no {tmp_path}/usr/bin/ocloc" in done.stderr
    nothing = tool.Compilers(Tools(None, None, None), None, tmp_path, tmp_path, {})
    assert "ptxas is missing" in nothing.lacks("nvidia")
    some = tool.Compilers(nothing.nvidia, tmp_path / "clang-19", tmp_path, tmp_path, {})
    assert some.lacks("amd").endswith("has no gfx906, gfx90a, gfx1030, gfx1100")
    command = [sys.executable, str(TOOL), "--for", "arm"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "arm is none of nvidia, amd, intel" in done.stderr


@pytest.mark.parametrize("maker", tool.COLUMNS)
def test_a_few_kernels_spill_where_the_page_says_so(maker: str, monkeypatch) -> None:
    """Compilers of AMD's and Intel's devices may be unpacked in .cache/offline."""
    unpacked = ROOT / ".cache" / "offline"
    compilers = tool.find(unpacked if unpacked.exists() else Path("/"))
    if why := compilers.lacks(maker):
        pytest.skip(why)
    if maker != "nvidia":
        monkeypatch.setenv("LD_LIBRARY_PATH", compilers.environment["LD_LIBRARY_PATH"])
    made = dict(tool.work_groups())
    listed, _ = tool.read(tool.PAGE.read_text("utf-8"))
    for part in FEW:
        name = next(n for n in made if part in n)
        _, cells = tool.cells_of(compilers, [maker], name, made[name])
        assert list(cells) == list(tool.COLUMNS[maker]) and "-" not in cells.values()
        assert [c for c in cells if "(" in cells[c]] == [c for c in cells if "(" in listed[name][c]]

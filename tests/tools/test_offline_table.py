"""tools/benchmarks/offline_table.py: what it reads of the compilers, and the page that it writes."""

from __future__ import annotations

import subprocess
import sys
from datetime import date
from pathlib import Path

from common import ROOT

TOOL = ROOT / "tools" / "benchmarks" / "offline_table.py"
sys.path.insert(0, str(TOOL.parent))

import offline_table as tool


def test_cells() -> None:
    text = "; NumVgprs: {}\n; ScratchSize: {}\n; Occupancy: {}\n"
    assert tool.of_amd(text.format(190, 0, 8)) == "190, 8"
    assert tool.of_amd(text.format(128, 183, 4)) == "128, 4 (183)"
    assert tool.of_amd("s_endpgm") == "-"
    told = "warning: kernel k  compiled SIMD32 allocated 128 regs and spilled around 204\n"
    assert tool.of_intel(told, "  simd_size:       32\n") == "32 (204)"
    assert tool.of_intel("Build succeeded.\n", "simd_size: 16") == "16"
    assert tool.of_intel("Build failed", "") == "-"


def test_the_page_counts_what_spills() -> None:
    columns = len(tool.AMD) + len(tool.INTEL)
    rows = [["a", *["8"] * columns], ["b", *["8 (2)"] * columns]]
    text = tool.page(rows, "clang 19, ocloc 22", date(2026, 1, 2))
    assert "Kernels, of 2, that spill: gfx906 1," in text and "pvc, SIMD16 1.\n" in text
    assert text.splitlines()[-1] == "| b" + " | 8 (2)" * columns + " |"


def test_the_page_lists_the_kernels_of_today() -> None:
    text = tool.PAGE.read_text("utf-8")
    assert text.startswith(tool.HEAD)
    listed = [line.split(" | ")[0][2:] for line in text.splitlines() if line.startswith("| ")]
    assert listed[2:] == [name for name, _ in tool.work_groups()]


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    command = [sys.executable, str(TOOL), "--root", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "no ocloc, clang and libclc" in done.stderr

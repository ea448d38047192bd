"""tools/benchmarks/ptx_table.py: what it reads from the compilers, what it refuses, and that real tiles fit."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "benchmarks" / "ptx_table.py"
GOOD = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_90'
ptxas info    : Function properties for k
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 232 registers, used 1 barriers, 32768 bytes smem
"""
SPILLS = GOOD.replace(
    "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads",
    "64 bytes stack frame, 72 bytes spill stores, 80 bytes spill loads",
)
LARGE = "ptxas error   : Entry function 'k' uses too much shared data (0x10000 bytes, 0xc000 max)\n"
AMD = "; NumSgprs: 12\n; NumVgprs: 5\n; ScratchSize: 16\n; LDSByteSize: 256 bytes/workgroup\n"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("ptx_table", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules["ptx_table"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["ptx_table"]


def test_figures_of_both_compilers(tool):
    assert tool.of_ptxas(GOOD) == tool.Use(232, 0, 0, 32768)
    assert tool.of_ptxas(SPILLS) == tool.Use(232, 64, 80, 32768)
    assert tool.of_ptxas("ptxas info    : Used 10 registers, used 0 barriers\n") == tool.Use(10)
    assert tool.of_ptxas(GOOD + SPILLS.replace("232", "90")) == tool.Use(232, 64, 80, 32768)
    assert "too much shared data" in tool.of_ptxas(LARGE + GOOD).error
    assert tool.of_ptxas("").error and tool.of_amdgcn("s_endpgm").error
    assert tool.of_amdgcn(AMD) == tool.Use(5, 16, 0, 256)


def test_kernels_that_spill_or_fail_are_named(tool):
    rows = [
        ("good", "sm_90", tool.Use(10)),
        ("spilt", "sm_90", tool.Use(255, 64, 80)),
        ("gemm_mma_x", "sm_80", tool.Use(40, 512)),
        ("loop_epilogue", "sm_80", tool.Use(40, 512)),
        ("broken", "gfx906", tool.Use(error="no such thing")),
    ]
    assert tool.complaints(rows) == [
        "spilt spills 80 bytes on sm_90",
        "gemm_mma_x has 512 bytes of fragments in memory on sm_80",
        "broken does not compile for gfx906: no such thing",
    ]


def test_tables(tool):
    rows = [("a_kernel", "sm_90", tool.Use(10, 1, 2, 3)), ("b", "gfx906", tool.Use(error="no"))]
    text = tool.table(rows, markdown=False).splitlines()
    assert text[1].split() == ["a_kernel", "sm_90", "10", "1", "2", "3"]
    assert (
        len({line.index("sm_90") if "sm_90" in line else line.index("gfx906") for line in text[1:]})
        == 1
    )
    marked = tool.table(rows, markdown=True).splitlines()
    assert marked[2] == "| a_kernel | sm_90 | 10 | 1 | 2 | 3 |" and marked[3].count("| - ") == 4


def test_the_page_says_when_and_by_which_compilers(tool):
    text = tool.page([("a_kernel", "sm_90", tool.Use(10))], "clang 15, ptxas 13", date(2026, 1, 2))
    assert text.startswith(tool.HEAD + "## 2026-01-02, clang 15, ptxas 13\n\n| kernel |")
    assert text.endswith("| a_kernel | sm_90 | 10 | 0 | 0 | 0 |\n")


def test_the_page_lists_the_kernels_of_today(tool):
    """Their figures need the compilers; which kernels there are does not."""
    text = tool.PAGE.read_text("utf-8")
    assert text.startswith(tool.HEAD)
    listed = [line.split(" | ")[0][2:] for line in text.splitlines() if " | sm_80 | " in line]
    assert listed == [kernel for kernel, _, _ in tool.sources()]


def test_what_is_missing_is_said():
    """Without any tool on the path: a line for each, and exit status 2."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", MISSING, str(TOOL)],
        env={"PATH": "/nonexistent"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    assert [line.split()[0] for line in done.stderr.splitlines()] == ["clang", "libclc", "ptxas"]


MISSING = """
import pathlib, runpy, sys
sys.path[:] = [p for p in sys.path if "site-packages" not in p]
pathlib.Path.is_file = lambda path: False
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def compilers(tool):
    tools = tool.find_tools()
    if lacks := tools.missing():
        pytest.skip("; ".join(lacks))
    return tools


@pytest.mark.parametrize("kind", ["f16_kn", "bf16_nk", "tf32_kn", "s8_nk"])
def test_large_tiles_fit_the_registers(tool, compilers, kind, tmp_path):
    name, source = next((n, s) for n, s in tool.with_ptx() if kind in n and "_w64x64_s2" in n)
    rows = [(name, *found) for found in tool.on_nvidia(compilers, source, tmp_path)]
    assert [arch for _, arch, _ in rows] == list(tool.NVIDIA)
    assert not tool.complaints(rows) and all(150 < use.registers <= 255 for *_, use in rows)


def test_the_largest_tiles_of_convolutions_fit_the_registers(tool, compilers, tmp_path):
    sources = [(name, text) for name, text in tool.convolutions() if "_t128x256" in name]
    rows = [(n, *found) for n, s in sources for found in tool.on_nvidia(compilers, s, tmp_path)]
    assert len(rows) == 2 * len(tool.NVIDIA) and not tool.complaints(rows)
    # two warps of each of the unit's four schedulers, with all registers
    assert all(use.registers <= 255 and use.shared <= 48 * 1024 for *_, use in rows)


def test_a_tile_that_is_too_large_is_found(tool, compilers, tmp_path):
    from clnn.codegen.render import render
    from clnn.ops.shared.tensor_cores import MmaProduct, MmaTile, mma_params

    made = MmaProduct("f16", 512, 512, 512, 512, 512, (512, 1))
    source = render("gemm/mma.cl.mako", mma_params(made, MmaTile(128, 128, 32, 128, 64)))
    rows = [("gemm_mma_huge", *found) for found in tool.on_nvidia(compilers, source, tmp_path)]
    assert any("gemm_mma_huge spills" in line for line in tool.complaints(rows))


def test_kernels_of_work_groups_fit_the_registers(tool, compilers, tmp_path):
    """The first tile of each kind, and the widest transforms of Winograd's, for both makers."""
    made = dict(tool.work_groups())
    wanted = ["winograd_input_f4_v2", "winograd_output_f4_v2", "winograd_input_f2_v4"]
    kinds = ("gemm_work", "conv2d_work", "separable_work")
    wanted += [next(n for n in made if n.startswith(k)) for k in kinds]
    rows = [(n, *found) for n in wanted for found in tool.on_nvidia(compilers, made[n], tmp_path)]
    rows += [(n, *found) for n in wanted for found in tool.on_amd(compilers, made[n], tmp_path)]
    assert not tool.complaints(rows) and len(rows) >= 10


def test_portable_kernels_compile_for_both_makers(tool, compilers, tmp_path):
    name, source = next(tool.portable())
    rows = [(name, *found) for found in tool.on_nvidia(compilers, source, tmp_path)]
    rows += [(name, *found) for found in tool.on_amd(compilers, source, tmp_path)]
    assert not tool.complaints(rows) and {arch[:2] for _, arch, _ in rows} >= {"sm"}
    assert tool.versions(compilers).startswith("clang 1")

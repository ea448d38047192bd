#!/usr/bin/env python3
"""Compile kernels of work-groups for AMD's and Intel's GPUs without one: registers, spills, occupancy, SIMD width.

    python tools/benchmarks/offline_table.py --root FOLDER [--only NAME] [--write]

FOLDER is where the compilers are, / or one in which packages were unpacked (Debian: `apt-get download` and
`dpkg -x` of intel-opencl-icd, libigc1, libigdfcl1, libigdgmm12, libopencl-clang14, libllvmspirvlib14 for ocloc;
clang-19, libllvm19, libclang-cpp19, libclang-common-19-dev, libclc-19 for amdgcn). --write makes
docs/benchmarks/offline.md. Exit status 2 when a compiler is missing.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from ptx_table import ROOT, TIMEOUT_S, Tools, compile_for, work_groups

PAGE = ROOT / "docs" / "benchmarks" / "offline.md"
AMD = ("gfx906", "gfx90a", "gfx1030", "gfx1100")
WIDE = "-cl-intel-256-GRF-per-thread"
# column -> (device, build options, subgroup size that the kernel asks for or 0)
INTEL = {
    "skl": ("skl", "", 0),
    "tgllp": ("tgllp", "", 0),
    "dg2": ("dg2", "", 0),
    "dg2, 256 registers": ("dg2", WIDE, 0),
    "pvc": ("pvc", "", 0),
    "pvc, SIMD16": ("pvc", "", 16),
}
HEAD = """\
# Kernels of work-groups on AMD's and Intel's GPUs, by their compilers

Written by `python tools/benchmarks/offline_table.py --write` without a GPU. The kernels are the tiles among
the candidates for a product of 1024 x 1024 x 1024, a 3x3 convolution of 128 channels and 8 images of 56x56, and a
separable one of 128 channels and one such image ([names](registers.md)). *AMD*: vector registers, waves per SIMD that
they and local memory leave room for, bytes of scratch in brackets where there are any. *Intel*: the SIMD width that
the compiler chose, spilled registers in brackets where there are any. `dg2, 256 registers` is built with
`-cl-intel-256-GRF-per-thread`; `pvc, SIMD16` asks for `intel_reqd_sub_group_size(16)`.

"""


@dataclass(frozen=True)
class Compilers:
    """Where the compilers are. environment: what they need to find their libraries."""

    clang: Path
    library: Path
    ocloc: Path
    environment: dict[str, str]


def find(root: Path) -> Compilers | None:
    """Return the compilers under a folder; None unless all are there."""
    clang = next(iter(sorted(root.glob("usr/lib/llvm-*/bin/clang-[0-9]*"), reverse=True)), None)
    library, ocloc = root / "usr/lib/clc", root / "usr/bin/ocloc"
    if clang is None or not ocloc.exists() or not (library / f"{AMD[-1]}-amdgcn--.bc").exists():
        return None
    paths = [root / "usr/lib/x86_64-linux-gnu", clang.parents[1] / "lib"]
    return Compilers(
        clang, library, ocloc, {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(map(str, paths))}
    )


def of_amd(text: str) -> str:
    """Return the table's cell for clang's assembly for amdgcn."""
    names = ("NumVgprs", "Occupancy", "ScratchSize")
    found = [re.findall(rf"^; {name}: (\d+)", text, re.MULTILINE) for name in names]
    if not found[0]:
        return "-"
    registers, waves, scratch = (int(each[-1]) if each else 0 for each in found)
    return f"{registers}, {waves}" + (f" ({scratch})" if scratch else "")


def of_intel(log: str, binary: str) -> str:
    """Return the table's cell for what ocloc printed and made."""
    width = re.search(r"simd_size: +(\d+)", binary)
    if width is None:
        return "-"
    spilled = re.findall(r"spilled around (\d+)", log)
    return width[1] + (f" ({max(map(int, spilled))})" if spilled else "")


def on_amd(compilers: Compilers, source: str, arch: str, folder: Path) -> str:
    """Compile a kernel for one of AMD's architectures; return the table's cell."""
    tools = Tools(str(compilers.clang), compilers.library, None)
    library = compilers.library / f"{arch}-amdgcn--.bc"
    try:
        return of_amd(compile_for(tools, source, "amdgcn--", arch, library, folder))
    except RuntimeError:
        return "-"


def on_intel(compilers: Compilers, source: str, column: str, folder: Path) -> str:
    """Compile a kernel for one of Intel's devices; return the table's cell."""
    device, options, lanes = INTEL[column]
    if lanes:
        asked = f"__attribute__((intel_reqd_sub_group_size({lanes})))\n__kernel"
        source = source.replace("__kernel", asked)
    (folder / "kernel.cl").write_text(source, "utf-8")
    command = [str(compilers.ocloc), "compile", "-file", "kernel.cl", "-device", device]
    command += ["-options", f"-cl-std=CL1.2 {options}", "-out_dir", "made"]
    command += ["-internal_options", "-cl-intel-allow-zebin"]
    done = subprocess.run(
        command,
        cwd=folder,
        env=compilers.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
    )
    made = next(iter((folder / "made").glob("*.bin")), None)
    return of_intel(done.stdout, made.read_text("latin-1") if made else "")


def row(compilers: Compilers, name: str, source: str) -> list[str]:
    """Compile a kernel for all targets; return its row."""
    cells = [name]
    for column in (*AMD, *INTEL):
        with tempfile.TemporaryDirectory(prefix="clnn-offline-") as folder:
            compile_one = on_amd if column in AMD else on_intel
            cells.append(compile_one(compilers, source, column, Path(folder)))
    print(" | ".join(cells), flush=True)
    return cells


def page(rows: list[list[str]], told: str, day: date) -> str:
    """Return docs/benchmarks/offline.md."""
    head = ["kernel", *AMD, *INTEL]
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    lines.insert(1, "| --- |" + " ---: |" * (len(head) - 1))
    spills = [
        f"{column} {sum('(' in cells[k] for cells in rows)}"
        for k, column in enumerate(head[1:], start=1)
    ]
    count = f"Kernels, of {len(rows)}, that spill: {', '.join(spills)}.\n"
    return f"{HEAD}## {day.isoformat()}, {told}\n\n{count}\n" + "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--root", type=Path, default=Path("/"))
    parser.add_argument("--only", default="", help="part of the names of kernels to compile")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    asked = parser.parse_args()
    compilers = find(asked.root.resolve())
    if compilers is None:
        print(f"no ocloc, clang and libclc under {asked.root}: see --help", file=sys.stderr)
        return 2
    os.environ["LD_LIBRARY_PATH"] = compilers.environment["LD_LIBRARY_PATH"]
    chosen = [(name, source) for name, source in work_groups() if asked.only in name]
    with ThreadPoolExecutor(2) as pool:
        rows = list(pool.map(lambda each: row(compilers, *each), chosen))
    if asked.write:
        told = f"clang {compilers.clang.name.removeprefix('clang-')}, ocloc"
        PAGE.write_text(page(rows, told, date.today()), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

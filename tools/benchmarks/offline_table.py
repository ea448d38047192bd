#!/usr/bin/env python3
"""Compile kernels of work-groups for NVIDIA's, AMD's and Intel's GPUs without one: registers, spills, occupancy.

    python tools/benchmarks/offline_table.py [--root FOLDER] [--for nvidia,amd,intel,igc2] [--only NAME] [--write]

NVIDIA's are compiled by clang and ptxas, as tools/benchmarks/ptx_table.py finds them; AMD's by a clang and Intel's by
ocloc under FOLDER: / or one in which packages were unpacked (`apt-get download` and `dpkg -x`). Debian 12: clang-19,
libllvm19, libclang-cpp19, libclang-common-19-dev, libclc-19 for amdgcn; intel-opencl-icd, libigc1, libigdfcl1,
libigdgmm12, libopencl-clang14, libllvmspirvlib14 for `intel`, whose ocloc knows skl and no device newer than pvc. For
`igc2`, devices from Xe-LP to Xe3: intel-ocloc, libigc2, libigdfcl2, libc6, libgcc-s1, libstdc++6 and zlib1g of
Debian unstable (intel-ocloc 26.27 was used), in a folder of their own: where FOLDER has a C library, ocloc is run by
the loader that came with it. --for leaves makers out. --write writes their columns
into docs/benchmarks/offline.md, in which the others' stay as they are. Before all else each compiler gets a kernel that
must spill: what is said of it has to be found. Exit status 2 when a compiler is missing or does not know a device,
1 when it says what this tool cannot read.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from ptx_table import (
    ROOT,
    TIMEOUT_S,
    Tools,
    compile_for,
    find_tools,
    on_nvidia,
    versions,
    work_group_launches,
    work_groups,
)

if TYPE_CHECKING:
    from clnn.ops.launch import Launch

PAGE = ROOT / "docs" / "benchmarks" / "offline.md"
NVIDIA = ("sm_80", "sm_90", "sm_120")
AMD = ("gfx906", "gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1200")
WIDE = "-cl-intel-256-GRF-per-thread"
# column -> (device, build options, subgroup size that the kernel asks for or 0)
INTEL = {
    "skl": ("skl", "", 0),
    "tgllp": ("tgllp", "", 0),
    "dg2": ("dg2", "", 0),
    "dg2, 256 registers": ("dg2", WIDE, 0),
    "pvc": ("pvc", "", 0),
    "pvc, SIMD16": ("pvc", "", 16),
    "pvc, SIMD16, 256 registers": ("pvc", WIDE, 16),
}
IGC2 = {
    "tgllp, IGC 2": ("tgllp", "", 0),
    "mtl": ("mtl", "", 0),
    "mtl, 256 registers": ("mtl", WIDE, 0),
    "dg2, IGC 2": ("dg2", "", 0),
    "dg2, 256 registers, IGC 2": ("dg2", WIDE, 0),
    "pvc, IGC 2": ("pvc", "", 0),
    "pvc, SIMD16, IGC 2": ("pvc", "", 16),
    "pvc, SIMD16, 256 registers, IGC 2": ("pvc", WIDE, 16),
    "bmg": ("bmg", "", 0),
    "bmg, SIMD16, 256 registers": ("bmg", WIDE, 16),
    "ptl": ("ptl", "", 0),
}
WIDE_REGISTERS = {"pvc": 64, "bmg": 64, "ptl": 64}  # bytes, where they are not 32
COLUMNS = {"nvidia": NVIDIA, "amd": AMD, "intel": tuple(INTEL), "igc2": tuple(IGC2)}
NAMES = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel", "igc2": "Intel, IGC 2"}
CROWD = 80  # vectors of four values, for which no work-item has registers, whatever is asked
HEAD = """\
# Kernels of work-groups on NVIDIA's, AMD's and Intel's GPUs, by their compilers

Written by `python tools/benchmarks/offline_table.py --write` without a GPU. The kernels are the tiles among
the candidates for a product of 1024 x 1024 x 1024, a 3x3 convolution of 128 channels and 8 images of 56x56, and a
separable one of 128 channels and one such image ([names](registers.md)). *NVIDIA*: registers of a work-item, bytes of
them spilled in brackets where there are any. *AMD*: vector registers, waves per SIMD that
they and local memory leave room for, bytes of scratch in brackets where there are any. *Intel*: the SIMD width that
the compiler chose, how many registers of a thread where that is not what was asked (128, 256 by the option), and
spilled ones in brackets where there are any. Intel's devices are Gen9 (skl), Xe-LP (tgllp), Xe-LPG (mtl), Xe-HPG (dg2),
Xe-HPC (pvc), Xe2 (bmg; all cells of lnl were the same) and Xe3 (ptl, whose compiler chooses the registers of a thread).
*IGC 2* is a newer compiler: the only one for mtl, bmg and ptl. `256 registers` is built with
`-cl-intel-256-GRF-per-thread`; `SIMD16` asks for `intel_reqd_sub_group_size(16)`. Kernels in italics
are not offered so: their values exceed what clnn/ops/shared/workgroup_tiles.py says that the registers hold (`ROOM`,
or `item_room` of such a device), or they are Winograd's transforms, which ask for nothing. The first count is of all
kernels, as they were offered before that rule; the second is of those that are offered by it.

"""
# Kernels that ask for nothing, or for what a column says: of whose devices clnn knows the registers of a work-item.
# Column -> (registers of a work-item, lanes and large registers that are asked for, values that fit if not ROOM's).
MODES = {
    "skl": (128, 0, False, 104),
    "tgllp": (128, 0, False, 0),
    "dg2": (128, 0, False, 0),
    "dg2, 256 registers": (256, 0, True, 0),
    "pvc": (64, 0, False, 0),
    "pvc, SIMD16": (128, 16, False, 0),
    "pvc, SIMD16, 256 registers": (256, 16, True, 0),
    "tgllp, IGC 2": (128, 0, False, 0),
    "mtl": (128, 0, False, 0),
    "mtl, 256 registers": (256, 0, True, 0),
    "dg2, IGC 2": (128, 0, False, 0),
    "dg2, 256 registers, IGC 2": (256, 0, True, 0),
    "pvc, IGC 2": (64, 0, False, 0),
    "pvc, SIMD16, IGC 2": (128, 16, False, 0),
    "pvc, SIMD16, 256 registers, IGC 2": (256, 16, True, 0),
    "bmg": (128, 0, False, 100),
    "bmg, SIMD16, 256 registers": (256, 16, True, 0),
    "ptl": (128, 0, False, 112),
}


class UnreadableError(Exception):
    """A compiler said nothing, or something else, of what the table shows."""


@dataclass(frozen=True)
class Compilers:
    """Where the compilers are. environment: what AMD's and Intel's need to find their libraries.

    ocloc: Intel's, with the loader that runs it where that is not the system's.
    """

    nvidia: Tools
    clang: Path | None
    library: Path
    ocloc: tuple[str, ...]
    environment: dict[str, str]

    def lacks(self, maker: str) -> str:
        """Return what is missing to compile for a maker's devices, or ''."""
        if maker == "nvidia":
            return "; ".join(self.nvidia.missing())
        if maker != "amd":
            return self._ocloc_lacks(INTEL if maker == "intel" else IGC2)
        if self.clang is None:
            return "there is no clang"
        absent = [a for a in AMD if not (self.library / f"{a}-amdgcn--.bc").exists()]
        return f"{self.library} has no {', '.join(absent)}" if absent else ""

    def _ocloc_lacks(self, columns: Mapping[str, tuple[str, str, int]]) -> str:
        if not self.ocloc:
            return "there is no ocloc"
        listed = re.search(r"<device_type> can be: (.+)", self.ask("compile", "--help"))
        known = re.split(r",\s*", listed[1]) if listed else []
        # "dg2" stands for its members in older lists.
        absent = {
            device
            for device, *_ in columns.values()
            if not any(name == device or name.startswith(f"{device}-") for name in known)
        }
        return f"{self.ocloc[-1]} does not know {', '.join(sorted(absent))}" if absent else ""

    def ask(self, *words: str, folder: Path | None = None) -> str:
        """Return what ocloc prints. Raises OSError where it cannot be run."""
        done = subprocess.run(
            [*self.ocloc, *words],
            cwd=folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
        )
        return done.stdout

    def told(self, maker: str) -> str:
        """Return what the compilers are called on the page."""
        if maker == "nvidia":
            return versions(self.nvidia)
        if maker == "amd" and self.clang is not None:
            return f"clang {self.clang.name.removeprefix('clang-')}"
        with tempfile.TemporaryDirectory(prefix="clnn-offline-") as name:
            self.ask("query", "OCL_DRIVER_VERSION", folder=Path(name))
            said = next((p.read_text("utf-8") for p in Path(name).iterdir()), "")
        words = re.findall(r"[\w.]+", said)
        return f"ocloc {words[0] if words else '?'}"


def find(root: Path) -> Compilers:
    """Return the compilers: NVIDIA's wherever they are, the others' under a folder."""
    clang = next(iter(sorted(root.glob("usr/lib/llvm-*/bin/clang-[0-9]*"), reverse=True)), None)
    libraries = root / "usr/lib/x86_64-linux-gnu"
    paths = [libraries, *([clang.parents[1] / "lib"] if clang else [])]
    found = next(iter(sorted(root.glob("usr/bin/ocloc*"))), None)
    loader = libraries / "ld-linux-x86-64.so.2"
    ocloc = (str(found),) if found else ()
    environment = dict(os.environ)
    if root != Path("/") and loader.exists():
        ocloc = (str(loader), "--library-path", str(libraries), *ocloc) if ocloc else ()
        clang = None  # which no loader was unpacked for
    else:
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, paths))
    return Compilers(find_tools(), clang, root / "usr/lib/clc", ocloc, environment)


def of_amd(text: str) -> str:
    """Return the table's cell for clang's assembly for amdgcn. Raises UnreadableError."""
    names = ("NumVgprs", "Occupancy", "ScratchSize")
    found = [re.findall(rf"^; {name}: (\d+)", text, re.MULTILINE) for name in names]
    if not all(found):
        raise UnreadableError(f"clang's assembly lacks one of {', '.join(names)}")
    registers, waves, scratch = (int(each[-1]) for each in found)
    return f"{registers}, {waves}" + (f" ({scratch})" if scratch else "")


def of_intel(log: str, binary: str, asked: int = 128, wide: int = 0) -> str:
    """Return the table's cell for what ocloc printed and made.

    asked: registers of a thread. wide: bytes of one, 0 of IGC 1: its log tells of spilled registers, and its binary of
    memory for them. IGC 2's binary has their bytes; its log is silent of some. Raises UnreadableError.
    """
    width, registers = (
        re.findall(rf"^ +{name}: +(\d+)", binary, re.MULTILINE)
        for name in ("simd_size", "grf_count")
    )
    if len(width) != 1 or len(registers) != 1:
        raise UnreadableError("the binary lacks simd_size or grf_count of the kernel")
    told = re.findall(r"spilled around (\d+)", log)
    kept = re.findall(r"^ +spill_size: +(\d+)", binary, re.MULTILINE)
    spilled = max(map(int, told), default=0)
    nbytes = max(map(int, kept), default=0)
    has_memory = re.search(r"^ +- type: +scratch", binary, re.MULTILINE) is not None
    silent = bool(nbytes and not told)
    fits = nbytes == wide * spilled or (silent and wide and nbytes % wide == 0)
    if ("spill" in log and not told) or not fits or has_memory != bool(spilled or nbytes):
        said = f"{nbytes} bytes spilled by the binary, {spilled} registers by the log"
        raise UnreadableError(f"{said}, {'some' if has_memory else 'no'} memory for them")
    spilled = nbytes // wide if silent else spilled
    chosen = f", {registers[0]}" if int(registers[0]) != asked else ""
    return width[0] + chosen + (f" ({spilled})" if spilled else "")


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
    device, options, lanes = {**INTEL, **IGC2}[column]
    if lanes:
        asked = f"__attribute__((intel_reqd_sub_group_size({lanes})))\n__kernel"
        source = source.replace("__kernel", asked)
    (folder / "kernel.cl").write_text(source, "utf-8")
    command = ["compile", "-file", "kernel.cl", "-device", device]
    command += ["-options", f"-cl-std=CL1.2 {options}", "-out_dir", "made"]
    if column in INTEL:
        command += ["-internal_options", "-cl-intel-allow-zebin"]
    said = compilers.ask(*command, folder=folder)
    made = next(iter((folder / "made").glob("*.bin")), None)
    if made is None:
        return "-"
    wide = 0 if column in INTEL else WIDE_REGISTERS.get(device, 32)
    return of_intel(said, made.read_text("latin-1"), 256 if options else 128, wide)


def for_nvidia(compilers: Compilers, source: str, arch: str, folder: Path) -> str:
    """Compile a kernel for one of NVIDIA's architectures; return the table's cell."""
    ((_, use),) = on_nvidia(compilers.nvidia, source, folder, (arch,))
    spilled = f" ({use.spilled})" if use.spilled else ""
    return "-" if use.error else f"{use.registers}{spilled}"


COMPILE = {"nvidia": for_nvidia, "amd": on_amd, "intel": on_intel, "igc2": on_intel}


def crowded(count: int) -> str:
    """Return a kernel of so many vectors of four values, all of which change in each round."""
    lines = ["__kernel void crowded(const int rounds, __global float4* restrict x) {"]
    lines += ["  const size_t i = get_global_id(0), n = get_global_size(0);"]
    lines += [f"  float4 v{k} = x[i + {k} * n];" for k in range(count)]
    lines += ["  for (int r = 0; r < rounds; ++r) {"]
    lines += [f"    v{k} = v{k} * 0.5f + v{(k + 1) % count};" for k in range(count)]
    lines += ["  }", *(f"  x[i + {k} * n] = v{k};" for k in range(count)), "}"]
    return "\n".join(lines) + "\n"


def unseen(compilers: Compilers, makers: Sequence[str]) -> Iterator[str]:
    """Yield a line for each column of which the cell of a kernel that has to spill does not say so."""
    for maker in makers:
        _, cells = cells_of(compilers, [maker], "crowded", crowded(CROWD))
        for column, cell in cells.items():
            if "(" not in cell:
                yield f"{column}: a kernel of {4 * CROWD} values spills nothing: {cell}"


def cells_of(
    compilers: Compilers, makers: Sequence[str], name: str, source: str
) -> tuple[str, dict[str, str]]:
    """Compile a kernel for all devices of some makers; return its name, and column -> cell."""
    cells = {}
    for maker in makers:
        for column in COLUMNS[maker]:
            with tempfile.TemporaryDirectory(prefix="clnn-offline-") as folder:
                try:
                    cells[column] = COMPILE[maker](compilers, source, column, Path(folder))
                except UnreadableError as err:
                    raise UnreadableError(f"{name}, {column}: {err}") from None
    print(" | ".join([name, *cells.values()]), flush=True)
    return name, cells


Rows = dict[str, dict[str, str]]
Left = Mapping[str, Sequence[str]]


def left_out() -> Left:
    """Return kernel -> the columns of devices that are not offered it so."""
    from clnn.ops.conv.winograd_fused import VALUES
    from clnn.ops.conv.winograd_gpu import has_room_to_transform
    from clnn.ops.shared.workgroup_tiles import has_room, holds
    from clnn.target import RegisterMode

    def is_offered(launch: Launch, mode: RegisterMode) -> bool:
        params = launch.params
        if "fused" in launch.template:
            return has_room(mode, VALUES[params["tile"].bk])
        if "tile" in params:
            return holds(mode, params["tile"], "separable" in launch.template)
        values = (params["m"] + 2) ** 2 * params["vw"]
        return not (mode.lanes or mode.large) and has_room_to_transform(mode, values)

    modes = {column: RegisterMode(*mode) for column, mode in MODES.items()}
    return {
        str(launch.params["name"]): [c for c in modes if not is_offered(launch, modes[c])]
        for launch in work_group_launches()
    }


def page(rows: Rows, told: Mapping[str, str], left: Left) -> str:
    """Return docs/benchmarks/offline.md.

    told: maker -> the date and the compilers of its columns. left: kernel -> columns that it is not offered in.
    """

    def shown(name: str, column: str) -> str:
        cell = rows[name].get(column, "-")
        return f"*{cell}*" if column in left.get(name, ()) else cell

    columns = [column for maker in COLUMNS for column in COLUMNS[maker]]
    lines = [f"| {' | '.join(['kernel', *columns])} |", "| --- |" + " ---: |" * len(columns)]
    for name in rows:
        lines.append(f"| {' | '.join([name, *(shown(name, c) for c in columns)])} |")
    spills, offered = [], []
    for c in columns:
        there = [name for name in rows if c not in left.get(name, ())]
        spills.append(f"{c}: {sum('(' in cells.get(c, '') for cells in rows.values())}")
        offered.append(f"{c}: {sum('(' in rows[n].get(c, '') for n in there)} of {len(there)}")
    when = [f"- {NAMES[maker]}: {told[maker]}" for maker in COLUMNS if maker in told]
    count = f"Kernels, of {len(rows)}, that spill: {'; '.join(spills)}."
    after = f"Of those that are offered: {'; '.join(offered)}."
    return HEAD + "\n".join([*when, "", count, "", after, "", *lines]) + "\n"


def read(text: str) -> tuple[Rows, dict[str, str]]:
    """Return what a page holds: rows, and the date and the compilers of each maker's columns."""
    table = [line[2:-2].split(" | ") for line in text.splitlines() if line.startswith("| ")]
    head = table[0][1:] if table else []
    rows = {
        cells[0]: dict(zip(head, (cell.strip("*") for cell in cells[1:]), strict=True))
        for cells in table[2:]
    }
    makers = {name: maker for maker, name in NAMES.items()}
    told = {makers[name]: what for name, what in re.findall(r"(?m)^- ([^:]+): (.+)$", text)}
    return rows, told


def updated(text: str, new: Rows, told: Mapping[str, str], left: Left) -> str:
    """Return a page with new columns in place of their old ones."""
    rows, before = read(text)
    made = {name: {**rows.get(name, {}), **new[name]} for name in new}
    return page(made, {**before, **told}, left)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--root", type=Path, default=Path("/"))
    parser.add_argument(
        "--for", dest="makers", type=_makers, default=tuple(COLUMNS), metavar="LIST"
    )
    task = parser.add_mutually_exclusive_group()
    task.add_argument("--only", default="", help="part of the names of kernels to compile")
    task.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    asked = parser.parse_args()
    compilers = find(asked.root.resolve())
    lacks = [f"{NAMES[m]}: {why}" for m in asked.makers if (why := compilers.lacks(m))]
    if lacks:
        print("\n".join([*lacks, "See --help, or leave makers out by --for."]), file=sys.stderr)
        return 2
    if "amd" in asked.makers:
        os.environ["LD_LIBRARY_PATH"] = compilers.environment["LD_LIBRARY_PATH"]
    chosen = [(name, source) for name, source in work_groups() if asked.only in name]
    try:
        if blind := list(unseen(compilers, asked.makers)):
            print("\n".join(blind), file=sys.stderr)
            return 1
        with ThreadPoolExecutor(2) as pool:
            new = dict(pool.map(lambda each: cells_of(compilers, asked.makers, *each), chosen))
    except UnreadableError as err:
        print(err, file=sys.stderr)
        return 1
    if asked.write:
        day = date.today().isoformat()
        told = {maker: f"{day}, {compilers.told(maker)}" for maker in asked.makers}
        PAGE.write_text(updated(PAGE.read_text("utf-8"), new, told, left_out()), "utf-8")
    return 0


def _makers(text: str) -> tuple[str, ...]:
    unknown = [name for name in text.split(",") if name not in COLUMNS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is none of {', '.join(COLUMNS)}")
    return tuple(name for name in COLUMNS if name in text.split(","))


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Compile kernels for GPUs without one, and print the registers, spills and local memory they take.

    python tools/benchmarks/ptx_table.py [--only NAME | --write]

Kernels with inline PTX, and one of each other template with the parameters of a GPU, are compiled by
clang for nvptx64 with libclc and assembled by ptxas; the others for amdgcn too. Exit status 1 when a
kernel does not compile or spills, 2 when a tool is missing. Needs, on Debian: clang-15, libclc-15;
from PyPI: nvidia-cuda-nvcc (or CUDA's own ptxas on the path). --write makes docs/benchmarks/registers.md.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clnn.graph.ir import Node
    from clnn.ops.launch import Launch, Variant
    from clnn.ops.problem import Problem
    from clnn.ops.spec import OpSpec
    from clnn.types import Array

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("", "tests/support", "tests/golden")]
PAGE = ROOT / "docs" / "benchmarks" / "registers.md"
HEAD = """\
# Registers and local memory of kernels for GPUs

Written by `python tools/benchmarks/ptx_table.py --write`, which compiles kernels on a machine without a GPU.
It needs clang with libclc (Debian: `apt-get install clang-15 libclc-15`) and `ptxas` (CUDA, or
`pip install nvidia-cuda-nvcc`), and fails where a kernel spills registers, or where a kernel of tensor cores
keeps fragments in memory. NVIDIA's own OpenCL compiler may allocate registers otherwise.

The rows, in this order:

- `ptx_*`: the probes for single instructions;
- `gemm_mma_*`: products on tensor cores of 4096 x 4096 x 4096, with a bias and ReLU;
- `conv2d_mma_*`: 3x3 convolutions on tensor cores, 128 channels, 8 images of 56x56;
- `gemm_workgroup_*`, `winograd_*`, `conv2d_workgroup_*`, `separable_workgroup_*`: the tiles among the candidates for
  a product of 1024 x 1024 x 1024, for the same convolution in float32, and for a separable convolution of 128
  channels and one image of 56x56;
- one kernel of each other template, as small networks use it on a GPU.

In names, `t` gives rows x columns x terms of a work-group's tile, `w` those of a warp, `i` those of a
work-item, `s` the stages of the pipeline. *registers*: of a work-item; of gfx906 vector registers. *stack*: bytes of
private arrays in memory. *spilled*: bytes of registers that were moved to memory (of gfx906 counted as stack).
*local memory*: bytes of a work-group.

"""
CLC = (Path("/usr/lib/clc"), Path("/usr/share/clc"), Path("/usr/local/share/clc"))
NVIDIA = ("sm_80", "sm_90")
AMD = ("gfx906", "gfx900")
PTX_VERSION = "ptx75"
TIMEOUT_S = 300


@dataclass(frozen=True)
class Tools:
    """Where the tools are; None where they are not."""

    clang: str | None
    library: Path | None
    ptxas: str | None

    def missing(self) -> list[str]:
        """Return a line for each tool that is not there, with how to get it."""
        lines = []
        if self.clang is None:
            lines.append("clang is missing (Debian: apt-get install clang-15)")
        if self.library is None:
            lines.append("libclc for nvptx64 is missing (Debian: apt-get install libclc-15)")
        if self.ptxas is None:
            lines.append("ptxas is missing (pip install nvidia-cuda-nvcc, or CUDA on the path)")
        return lines


def find_tools() -> Tools:
    """Look for clang, libclc and ptxas on the path, in their usual folders and in Python's."""
    names = ["clang-15", *(f"clang-{n}" for n in range(20, 15, -1)), "clang"]
    clang = next((found for n in names if (found := shutil.which(n))), None)
    library = next((p for p in CLC if (p / "nvptx64--nvidiacl.bc").is_file()), None)
    installed = (p for folder in sys.path for p in Path(folder or ".").glob("nvidia/*/bin/ptxas"))
    ptxas = shutil.which("ptxas") or next((str(p) for p in installed), None)
    return Tools(clang, library, ptxas)


def versions(tools: Tools) -> str:
    """Return what the tools say of themselves."""
    said = [_output([str(tools.clang), "--version"]), _output([str(tools.ptxas), "--version"])]
    clang = re.search(r"clang version (\S+)", said[0])
    ptxas = re.search(r"V(\d[\d.]*)", said[1])
    return f"clang {clang[1] if clang else '?'}, ptxas {ptxas[1] if ptxas else '?'}"


def _output(command: list[str]) -> str:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S
    )
    return done.stdout


@dataclass(frozen=True)
class Use:
    """What one kernel takes on one architecture; `error`: why it could not be compiled.

    stack: bytes of private arrays that are not in registers. spilled: bytes of registers that were
    put there for want of room (of amdgcn both are `stack`). shared: bytes of local memory.
    """

    registers: int = 0
    stack: int = 0
    spilled: int = 0
    shared: int = 0
    error: str = ""


def of_ptxas(text: str) -> Use:
    """Read what `ptxas -v` printed about the kernels of a program: the most that any of them takes."""
    errors = re.findall(r"ptxas (?:error|fatal)\s*: (.+)", text)
    if errors:
        return Use(error=errors[0].strip())
    registers = [int(n) for n in re.findall(r"Used (\d+) registers", text)]
    if not registers:
        return Use(error="ptxas said nothing of registers")
    frames = re.findall(
        r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill", text
    )
    stack = max((int(frame[0]) for frame in frames), default=0)
    spilled = max((int(n) for frame in frames for n in frame[1:]), default=0)
    shared = [int(n) for n in re.findall(r"(\d+) bytes smem", text)]
    return Use(max(registers), stack, spilled, max(shared, default=0))


def of_amdgcn(text: str) -> Use:
    """Read the figures in the comments of clang's assembly for amdgcn; registers are vector ones."""
    names = ("NumVgprs", "ScratchSize", "LDSByteSize")
    found = [re.search(rf"^; {name}: (\d+)", text, re.MULTILINE) for name in names]
    if found[0] is None:
        return Use(error="clang said nothing of registers")
    registers, stack, shared = (int(match[1]) if match else 0 for match in found)
    return Use(registers, stack, 0, shared)


def compile_for(
    tools: Tools, source: str, target: str, cpu: str, library: Path, folder: Path
) -> str:
    """Return clang's assembly of OpenCL source. Raises RuntimeError with clang's first error."""
    given, made = folder / "kernel.cl", folder / "kernel.s"
    given.write_text(source, "utf-8")
    made.unlink(missing_ok=True)
    deep = ["-target-cpu", cpu, "-finclude-default-header", "-mlink-builtin-bitcode", str(library)]
    deep += ["-target-feature", f"+{PTX_VERSION}"] if target.startswith("nvptx") else []
    # -fgnu-keywords: `asm`, which NVIDIA's compiler knows in any case.
    command = [
        str(tools.clang),
        "-x",
        "cl",
        "-cl-std=CL1.2",
        "-fgnu-keywords",
        "-fverbose-asm",
        "-O3",
        "-S",
        "-target",
        target,
    ]
    command += [part for option in deep for part in ("-Xclang", option)]
    said = _output([*command, str(given), "-o", str(made)])
    if not made.is_file():
        errors = re.findall(r"error: (.+)", said)
        raise RuntimeError(errors[0] if errors else said.strip()[:300] or "clang failed")
    return made.read_text("utf-8")


def on_nvidia(
    tools: Tools, source: str, folder: Path, architectures: Sequence[str] = NVIDIA
) -> Iterator[tuple[str, Use]]:
    """Yield (architecture, use) for each of NVIDIA."""
    assert tools.library is not None
    library = tools.library / "nvptx64--nvidiacl.bc"
    try:
        text = compile_for(tools, source, "nvptx64--nvidiacl", "sm_80", library, folder)
    except RuntimeError as err:
        yield from ((arch, Use(error=str(err))) for arch in architectures)
        return
    (folder / "kernel.ptx").write_text(text, "utf-8")
    for arch in architectures:
        command = [str(tools.ptxas), "-v", f"-arch={arch}", str(folder / "kernel.ptx")]
        yield arch, of_ptxas(_output([*command, "-o", os.devnull]))


def on_amd(tools: Tools, source: str, folder: Path) -> Iterator[tuple[str, Use]]:
    """Yield (architecture, use) for the first of AMD that libclc has; nothing where it has none."""
    assert tools.library is not None
    for arch in AMD:
        library = tools.library / f"{arch}-amdgcn--.bc"
        if library.exists():
            try:
                text = compile_for(tools, source, "amdgcn--", arch, library, folder)
                yield arch, of_amdgcn(text)
            except RuntimeError as err:
                yield arch, Use(error=str(err))
            return


def with_ptx() -> Iterator[tuple[str, str]]:
    """Yield (kernel, source) of the probes and variants with inline PTX."""
    from clnn.codegen.render import render
    from clnn.ops.shared.functions import PostOp
    from clnn.ops.shared.tensor_cores import MmaProduct, MmaTile, mma_params

    for probe in sorted((ROOT / "kernels_cl" / "_probe").glob("ptx_*.cl")):
        yield probe.stem, probe.read_text("utf-8")
    size, deep = 4096, {"f16": 32, "bf16": 32, "tf32": 16, "s8": 64}
    bias = {"extras": {2: (0, (0, 1))}, "post_ops": (PostOp("add", operand=2), PostOp("relu"))}
    for kind, bk in deep.items():
        for rows in "kn":
            if (kind, rows) == ("s8", "k"):
                continue
            how = dict(
                bias,
                b_rows=rows,
                rounded=kind == "tf32",
                dst_type="half" if kind.endswith("f16") else "float",
            )
            made = MmaProduct(kind, size, size, size, size, size, (size, 1), **how)  # type: ignore[arg-type]
            for sizes in ((128, 128, bk, 64, 64), (128, 64, bk, 64, 32), (64, 64, bk, 32, 32)):
                for stages in (2, 3):
                    params = mma_params(made, MmaTile(*sizes, stages=stages))
                    params["batch"] = type(made.batch)((1,), ((0,),) * 4)
                    yield params["name"], render("gemm/mma.cl.mako", params)


def convolutions() -> Iterator[tuple[str, str]]:
    """Yield (kernel, source) of convolutions with inline PTX: 3x3, 128 channels, 56x56, batch 8."""
    from clnn.arith.quantised import Requantised
    from clnn.codegen.render import render
    from clnn.layout import TensorLayout, channels_last
    from clnn.ops.shared.tensor_cores import MmaConv, MmaTile, mma_conv_params
    from clnn.ops.shared.window import Window
    from clnn.types import U8

    window = Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
    edge = (0, 0, 1, 1)
    image = TensorLayout.make((8, 128, 56, 56), channels_last(4), edge, edge)
    arith = Requantised(77, False, 255, False, (1.0,) * 128, U8, 3, 0, 255)
    for kind, bk, dst_type in (("f16", 32, "half"), ("tf32", 16, "float"), ("u8", 64, "uchar")):
        how = {"arith": arith} if kind == "u8" else {}
        made = MmaConv(
            kind, image, image, 128, 128, 9 * 128, window, dst_type, "n", kind == "tf32", **how
        )  # type: ignore[arg-type]
        large = [(128, 256, bk, 64, 64)] if kind != "u8" else []
        for sizes in (*large, (128, 128, bk, 64, 64), (64, 64, bk, 32, 32)):
            params = mma_conv_params(made, MmaTile(*sizes))
            yield params["name"], render("conv/mma.cl.mako", params)
        for slices, stages in ((2, 4), (4, 2)):  # of chunks of 48 KiB in all
            sliced = MmaTile(16, 32, 2 * bk * slices, 16, 16, stages, slices=slices)
            params = mma_conv_params(made, sliced)
            yield params["name"], render("conv/mma.cl.mako", params)


def work_groups() -> Iterator[tuple[str, str]]:
    """Yield (kernel, source) of kernels of work-groups and of Winograd's transforms, for a GPU."""
    from clnn.codegen.render import render

    for launch in work_group_launches():
        yield str(launch.params["name"]), render(launch.template, launch.params)


def work_group_launches() -> Iterator[Launch]:
    """Yield launches of kernels of work-groups and of Winograd's transforms, for a GPU.

    Products of 1024 x 1024 x 1024, convolutions 3x3 of 128 channels, 8 images of 56x56, and
    separable convolutions of one such image: each shape of tile among the candidates.
    """
    import numpy as np

    from clnn.ops.conv.separable import Separable
    from clnn.ops.conv.spec import Conv2d
    from clnn.ops.gemm.spec import Gemm
    from clnn.ops.shared.functions import PostOp
    from clnn.ops.shared.window import Window

    def some(*shape: int) -> Array:
        return np.zeros(shape, np.float32)

    relu, window = (PostOp("relu"),), Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
    both = (some(128, 1, 3, 3), some(128), some(128, 128, 1, 1), some(128))
    made = [
        *candidates(Gemm(post_ops=relu), (1024, 1024), some(1024, 1024), None),
        *candidates(Conv2d(window, post_ops=relu), (8, 128, 56, 56), some(128, 128, 3, 3), None),
        *candidates(Separable(window, relu, relu), (1, 128, 56, 56), *both),
    ]
    seen = set()
    named = (v for v in made if "workgroup" in v.name or "fused" in v.name)
    chosen = (v for v in named if "+" not in v.name)
    for launch in (la for v in chosen for la in v.launches):
        tile = launch.params.get("tile")
        shown = tile and (tile.bm, tile.bn, tile.tm, tile.tn, tile.stages)
        key = (launch.template, shown or launch.params["name"])
        if key not in seen:
            seen.add(key)
            yield launch


def candidates(spec: OpSpec, shape: tuple[int, ...], *constants: Array | None) -> list[Variant]:
    """Return the candidates of a node with one input and constants, None left out, on a GPU."""
    from sources import GPU, make_plan

    from clnn.graph.ir import Graph, Node, check
    from clnn.types import TensorType

    fixed = {f"c{k}": array for k, array in enumerate(constants) if array is not None}
    types = {"x": TensorType(shape)} | {n: TensorType(array.shape) for n, array in fixed.items()}
    names = ("x", *(None if a is None else f"c{k}" for k, a in enumerate(constants)))
    types["y"] = spec.infer([types[n] if n else None for n in names])[0]
    node = Node("node", spec, names, ("y",))
    found: list[Variant] = []

    def note(node: Node, problem: Problem, variants: Sequence[Variant]) -> Variant:
        found.extend(node.spec.candidates(problem))
        return variants[0]

    make_plan(check(Graph((node,), types, fixed, ("x",), {"y": "y"})), GPU, note)
    return found


def portable() -> Iterator[tuple[str, str]]:
    """Yield (kernel, source): one of each other template, as small networks use it on a GPU.

    First what they choose, then what they choose where work-groups share nothing.
    """
    from small_graphs import GRAPHS
    from sources import GPU, first_variant, launches, make_plan, optimise

    from clnn.codegen.render import render

    def alone(node: Node, problem: Problem, variants: Sequence[Variant]) -> Variant:
        return next((v for v in variants if "workgroup" not in v.name.split("+")[0]), variants[0])

    seen = set()
    for choose, make in product((first_variant, alone), GRAPHS.values()):
        for _, planned in launches(make_plan(optimise(make()), GPU, choose)):
            launch = planned.launch
            if launch.template not in seen:
                seen.add(launch.template)
                yield str(launch.params["name"]), render(launch.template, launch.params)


Row = tuple[str, str, Use]


def sources() -> Iterator[tuple[str, str, bool]]:
    """Yield (kernel, source, whether it is compiled for AMD too) of every row's kernel."""
    for kernel, source in (*with_ptx(), *convolutions()):
        yield kernel, source, False
    for kernel, source in (*work_groups(), *portable()):
        yield kernel, source, True


def rows_of(tools: Tools, only: str) -> list[Row]:
    """Compile everything whose name has `only` in it."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="clnn-ptx-") as name:
        folder = Path(name)
        for kernel, source, everywhere in sources():
            if only in kernel:
                rows += [(kernel, *use) for use in on_nvidia(tools, source, folder)]
                rows += [(kernel, *use) for use in on_amd(tools, source, folder) if everywhere]
    return rows


def table(rows: Sequence[Row], markdown: bool) -> str:
    """Return the rows as text, columns aligned, or as a Markdown table."""
    head = ["kernel", "for", "registers", "stack", "spilled", "local memory"]
    cells = [head]
    for kernel, arch, use in rows:
        figures = (use.registers, use.stack, use.spilled, use.shared)
        cells.append([kernel, arch, *(map(str, figures) if not use.error else ["-"] * 4)])
    if markdown:
        lines = ["| " + " | ".join(line) + " |" for line in cells]
        return "\n".join([lines[0], "| --- | --- | ---: | ---: | ---: | ---: |", *lines[1:]])
    wide = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(c.ljust(w) for c, w in zip(line, wide, strict=True)).rstrip() for line in cells
    )


def page(rows: Sequence[Row], compilers: str, day: date) -> str:
    """Return docs/benchmarks/registers.md."""
    return f"{HEAD}## {day.isoformat()}, {compilers}\n\n{table(rows, markdown=True)}\n"


def complaints(rows: Sequence[Row]) -> list[str]:
    """Return a line for each kernel that does not compile or spills.

    Kernels of tensor cores must not have a stack either: their fragments belong into registers.
    """
    found = []
    for kernel, arch, use in rows:
        if use.error:
            found.append(f"{kernel} does not compile for {arch}: {use.error}")
        elif use.spilled:
            found.append(f"{kernel} spills {use.spilled} bytes on {arch}")
        elif use.stack and "_mma_" in kernel:
            found.append(f"{kernel} has {use.stack} bytes of fragments in memory on {arch}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    task = parser.add_mutually_exclusive_group()
    task.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    task.add_argument("--only", default="", help="part of the names of kernels to compile")
    asked = parser.parse_args()
    tools = find_tools()
    if lacks := tools.missing():
        print("\n".join(lacks), file=sys.stderr)
        return 2
    rows = rows_of(tools, asked.only)
    compilers = f"{versions(tools)}, {PTX_VERSION.upper()}"
    if asked.write:
        PAGE.write_text(page(rows, compilers, date.today()), "utf-8")
    else:
        print(f"{compilers}\n\n{table(rows, markdown=False)}")
    for line in (wrong := complaints(rows)):
        print(line, file=sys.stderr)
    return int(bool(wrong) or not rows)


if __name__ == "__main__":
    sys.exit(main())

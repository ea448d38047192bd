"""Kernel sources of small networks under fixed targets: pure text, no device.

As a script: writes them to a folder, one file each (tools/golden.py runs it in other revisions).
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path[:0] = [str(HERE.parent.parent), str(HERE.parent / "support")]

from small_graphs import GRAPHS

from clnn.codegen.render import render
from clnn.codegen.set_kernel import set_text
from clnn.codegen.set_texts import set_sources
from clnn.graph.ir import Node
from clnn.graph.passes import optimise
from clnn.ops.launch import Variant
from clnn.ops.problem import Problem
from clnn.ops.universal.functions import SETS
from clnn.plan.plan import Plan, PlannedLaunch
from clnn.plan.schedule import first_variant, make_plan
from clnn.target import Target

KERNELS = HERE / "kernels.txt"
CPU = Target("cpu", 16, 2, 256, 32768, frozenset({"fp64"}))
GPU = Target("gpu", 4, 16, 256, 32768, frozenset({"fp64"}))


def last_variant(node: Node, problem: Problem, variants: Sequence[Variant]) -> Variant:
    """Return the variant that takes any problem."""
    return variants[-1]


WAYS = {"cpu": (CPU, first_variant), "gpu": (GPU, first_variant), "any": (CPU, last_variant)}


def sources() -> dict[str, str]:
    """Return "network way node kernel" -> source text of every launch."""
    found: dict[str, str] = {}
    for graph_name, make in GRAPHS.items():
        for way, (target, choose) in WAYS.items():
            plan = make_plan(optimise(make()), target, choose)
            for node, planned in launches(plan):
                launch = planned.launch
                name = f"{graph_name} {way} {node} {launch.params['name']}"
                while name in found:
                    name += "'"
                found[name] = render(launch.template, launch.params)
    for program, functions in SETS.items():
        texts = set_sources(CPU, program)
        for function, text in zip(functions, texts, strict=True):
            found[f"set cpu function universal_{function}"] = text
        rows = "universal_rows" if program == "floats" else f"universal_{program}"
        found[f"set cpu rows {rows}"] = set_text(texts).source
    return found


def launches(plan: Plan) -> Iterator[tuple[str, PlannedLaunch]]:
    """Yield (node or border, launch) in the order of the plan."""
    for planned in plan.first_fills:
        yield "border", planned
    for step in plan.scheduled:
        for planned in (*step.fills, *step.launches):
            yield step.node.name, planned


def digests() -> dict[str, str]:
    """Return name -> SHA-256 of each source."""
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in sources().items()}


def stored() -> dict[str, str]:
    """Return name -> SHA-256 as kept in kernels.txt."""
    lines = KERNELS.read_text("utf-8").splitlines() if KERNELS.exists() else []
    rows = (line.partition("  ") for line in lines if line and not line.startswith("#"))
    return {name: digest for digest, _, name in rows}


def write(folder: Path) -> None:
    """Write each source to a file of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in sources().items():
        (folder / f"{name.replace(':', '_')}.cl").write_text(text, "utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))

"""Imports go one way: between rooms, between the wings of a room, and between modules.

Every import counts, whether at the top, in a function or for types only.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable

import pytest
from common import ROOT
from imports import Import, circles, imports_of, sources

TREES = sources(ROOT / "clnn")
EDGES = {edge for edge in imports_of(TREES) if edge[1].partition(".")[0] == "clnn"}

# From below to above: a room may import those of the lines before its own. "" is the package
# itself, which hands out the public names.
ROOMS = (
    ("_version", "errors", "records"),
    ("budget", "settings", "timeline", "traced", "types"),
    ("recorded",),
    ("recorded_arrays",),
    ("replays",),
    ("layout", "logs", "options", "target"),
    ("arith", "codegen.filters"),
    ("ops",),
    ("graph",),
    ("importers", "plan", "codegen"),
    ("cache",),
    ("runtime",),
    ("ports", "tune"),
    ("open_model", "qdq"),
    ("compile",),
    ("geared",),
    ("entry",),
    ("apis", "verification"),
    ("bridges",),
    ("onnxruntime",),
    ("api",),
    ("",),
    ("cli",),
    ("__main__",),
)
# The folders of a room, in the same way; the room's own modules are below all of them.
WINGS = {
    "apis": (("espdl", "mli", "openvx", "tidl"),),
    "bridges": (("qdq",),),
    "graph": (("passes",),),
    "importers": (("espdl",), ("onnx",)),
    "onnxruntime": (("capi",),),
    "ops": (
        ("shared",),
        (
            *(
                "conv",
                "elementwise",
                "gemm",
                "host",
                "movement",
                "pool",
                "recurrent",
                "resize",
                "rows",
            ),
            "trees",
        ),
        ("composed", "espdl", "quantised", "transformer", "universal"),
    ),
    "runtime": (
        ("process",),
        ("drivers",),
        ("device",),
        ("build", "doctor"),
        ("measure",),
        ("run",),
        ("stages",),
    ),
}
# What a family of ops may take from another: ONNX operators that become nodes of several families, and nodes
# made of two.
BETWEEN_FAMILIES = {
    ("conv", "clnn.ops.movement.pad"),
    ("conv", "clnn.ops.movement.views"),
    ("conv", "clnn.ops.pool.spec"),
    ("elementwise", "clnn.ops.movement.views"),
    ("rows", "clnn.ops.movement.views"),
    ("rows", "clnn.ops.elementwise.eltwise"),
    ("rows", "clnn.ops.elementwise.logic"),
    ("pool", "clnn.ops.rows.reduce"),
    ("recurrent", "clnn.ops.elementwise.eltwise"),
    ("recurrent", "clnn.ops.gemm.spec"),
    ("recurrent", "clnn.ops.movement.views"),
    ("transformer", "clnn.ops.composed.values"),
    ("transformer", "clnn.ops.quantised.few_bits"),
    ("transformer", "clnn.ops.quantised.products"),
}
# Where a package of others may be imported at run time.
HOMES = {
    "flatbuffers": ("clnn.importers",),
    "pyopencl": ("clnn.runtime",),
    "onnx": ("clnn.importers", "clnn.apis.onnx_backend"),
}


def place(module: str) -> tuple[str, str]:
    """Return the room and the wing of a module; "" where it lies in no wing."""
    _, *parts = module.split(".")
    listed = {room for line in ROOMS for room in line}
    room = next((r for n in (2, 1) if (r := ".".join(parts[:n])) in listed), "".join(parts[:1]))
    behind = parts[room.count(".") + 1 :]
    is_wing = bool(behind) and (ROOT / "clnn" / room / behind[0] / "__init__.py").exists()
    return room, behind[0] if is_wing else ""


def floor(name: str, lines: tuple[tuple[str, ...], ...]) -> int:
    """Return the number of the line that a room or wing stands in."""
    found = [number for number, line in enumerate(lines) if name in line]
    assert found, f"give {name} a place in ROOMS or WINGS"
    return found[0]


def upward(edges: Iterable[Import]) -> list[str]:
    """Return the imports of rooms and wings that do not stand below the importing one."""
    wrong = []
    for importer, imported in sorted(edges):
        (room, wing), (other_room, other_wing) = place(importer), place(imported)
        if room != other_room:
            fine = floor(room, ROOMS) > floor(other_room, ROOMS)
        elif wing != other_wing:
            lines = (("",), *WINGS.get(room, ()))
            fine = floor(wing, lines) > floor(other_wing, lines)
            fine = fine or (room == "ops" and (wing, imported) in BETWEEN_FAMILIES)
        else:
            fine = True
        if not fine:
            wrong.append(f"{importer} imports {imported}")
    return wrong


def defines_spec(tree: ast.Module) -> bool:
    """Whether a module defines an op."""
    return any(
        isinstance(node, ast.ClassDef)
        and any(ast.unparse(base) in ("OpSpec", "ViewSpec") for base in node.bases)
        for node in tree.body
    )


def kernels_that_know_ops(edges: Iterable[Import]) -> list[str]:
    """Return the imports of an op by what makes kernels: it is to know its problem only.

    In the families, that is every module but those that define ops or import ONNX's operators.
    """
    edges = sorted(edges)
    specs = {name for name, tree in TREES.items() if defines_spec(tree)}
    importers = {importer for importer, imported in edges if imported == "clnn.ops.onnx_registry"}
    return [
        f"{importer} imports {imported}"
        for importer, imported in edges
        if place(importer)[0] == "ops" and place(importer)[1]
        if imported in specs and importer not in specs | importers
    ]


def test_imports_go_one_way():
    wrong = upward(EDGES)
    assert not wrong, "\n".join(wrong)


def test_no_import_comes_back():
    wrong = [" -> ".join(circle) for circle in circles(EDGES)]
    assert not wrong, "\n".join(wrong)


def test_kernels_know_no_op():
    wrong = kernels_that_know_ops(EDGES)
    assert not wrong, "\n".join(wrong)


def test_an_import_turned_round_is_a_circle():
    """One from each wing to each other, and to itself."""
    one_each = {(place(edge[0]), place(edge[1])): edge for edge in sorted(EDGES)}
    for importer, imported in one_each.values():
        found = circles(EDGES | {(imported, importer)})
        assert any({importer, imported} <= set(circle) for circle in found)


@pytest.mark.parametrize(
    "importer,imported",
    [
        ("clnn.layout", "clnn.graph.ir"),
        ("clnn.ops.spec", "clnn.codegen.render"),
        ("clnn.plan.memory", "clnn.importers.onnx.load"),
        ("clnn.runtime.run.session", "clnn.tune.tuner"),
        ("clnn.runtime.process.child", "clnn.runtime.device.probe"),
        ("clnn.runtime.device.device", "clnn.runtime.doctor.doctor"),
        ("clnn.ops.launch", "clnn.ops.shared.loops"),
        ("clnn.ops.shared.loops", "clnn.ops.rows.rows"),
        ("clnn.ops.movement.views", "clnn.ops.elementwise.eltwise"),
        ("clnn.ops.gemm.spec", "clnn.ops.conv.spec"),
        ("clnn.graph.ir", "clnn.graph.passes.dead"),
        ("clnn.apis.mli.engine", "clnn.apis.openvx.status"),
        ("clnn.errors", "clnn"),
    ],
)
def test_a_planted_import_upwards_is_told(importer, imported):
    planted = upward(EDGES | {(importer, imported)})
    assert f"{importer} imports {imported}" in planted


def test_a_planted_import_of_an_op_by_a_kernel_is_told():
    planted = ("clnn.ops.resize.kernels", "clnn.ops.resize.spec")
    assert " imports ".join(planted) in kernels_that_know_ops(EDGES | {planted})


def test_every_way_to_import_is_seen(tmp_path):
    files = {
        "__init__.py": "",
        "low.py": "",
        "a.py": "import os\nfrom p import low\n",
        "b.py": "def f():\n    from p.low import thing\n",
        "c.py": "import importlib\nmodule = importlib.import_module('p.low')\n",
        "d.py": "if TYPE_CHECKING:\n    import p.low\n",
        "in/__init__.py": "from ..low import thing\n",
        "in/e.py": "from . import f\n",
        "in/f.py": "from .e import thing\n",
    }
    for name, text in files.items():
        (tmp_path / "p" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "p" / name).write_text(text, "utf-8")
    trees = sources(tmp_path / "p")
    found = imports_of(trees)
    assert {(m, "p.low") for m in ("p.a", "p.b", "p.c", "p.d")} <= found
    assert {("p.in.e", "p.in.f"), ("p.in.f", "p.in.e"), ("p.a", "os")} <= found
    assert ("p.d", "p.low") not in imports_of(trees, typing=False)
    assert [set(circle) for circle in circles(found)] == [{"p.in.e", "p.in.f"}]


@pytest.mark.parametrize("package", HOMES)
def test_one_room_imports(package):
    wrong = [
        f"{importer} imports {imported}"
        for importer, imported in sorted(imports_of(TREES, typing=False))
        if imported.split(".")[0] == package and not importer.startswith(HOMES[package])
    ]
    assert not wrong, "\n".join(wrong)


def test_import_touches_no_device_and_stays_light():
    code = "import sys, clnn; print([m for m in ('pyopencl', 'onnx', 'mako') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_import_of_the_onnxruntime_interface_is_light():
    """A program may import it and run nothing: what reads and compiles models comes with the first session."""
    heavy = ("pyopencl", "onnx", "mako", "clnn.compile", "clnn.entry", "clnn.runtime.run.session")
    code = f"import sys, clnn.onnxruntime; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_a_start_from_a_compiled_network_reads_no_ops():
    """What knows ops comes with the first plan that is made."""
    code = "import sys, clnn.entry; print([m for m in sys.modules if m.endswith('.spec')])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "['clnn.ops.spec']"


def test_no_relaxed_arithmetic_in_templates():
    text = "".join(p.read_text() for p in (ROOT / "kernels_cl").rglob("*.mako"))
    assert "native_" not in text and "half_exp" not in text and "fast-relaxed" not in text

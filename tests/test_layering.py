"""Imports go one way; OpenCL and onnx are each imported in one room only."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

CLNN = Path(__file__).resolve().parent.parent / "clnn"

# Each room may import from rooms of a lower number (and from itself).
ORDER = {
    "_version": 0,
    "errors": 0,
    "logs": 2,
    "settings": 1,
    "types": 1,
    "layout": 2,
    "options": 2,
    "target": 2,
    "codegen.filters": 3,
    "arith": 3,
    "ops": 4,
    "graph": 5,
    "importers": 6,
    "plan": 6,
    "codegen": 6,
    "cache": 7,
    "runtime": 8,
    "tune": 9,
    "compile": 10,
    "apis": 11,
    "verification": 11,
    "api": 12,
    "cli": 13,
    "__main__": 14,
}


def room(module: str) -> str:
    parts = module.split(".")[1:]
    two = ".".join(parts[:2])
    return two if two in ORDER else parts[0] if parts else ""


def imports() -> list[tuple[str, str, bool]]:
    """Return (importing module, imported module, whether only for type checking)."""
    found = []
    for path in sorted(CLNN.rglob("*.py")):
        name = ".".join(("clnn", *path.relative_to(CLNN).with_suffix("").parts)).removesuffix(
            ".__init__"
        )
        tree = ast.parse(path.read_text())
        typing_only = {
            id(inner)
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            for inner in ast.walk(node)
        }
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.Import):
                names = [a.name for a in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            found += [(name, n, id(node) in typing_only) for n in names]
    return found


def test_imports_go_one_way():
    wrong = []
    for importer, imported, typing_only in imports():
        if typing_only or not imported.startswith("clnn.") or importer == "clnn":
            continue
        above, below = room(importer), room(imported)
        assert above in ORDER, f"{importer}: give its room a place in ORDER"
        assert below in ORDER, f"{imported}: give its room a place in ORDER"
        if ORDER[below] > ORDER[above] or (ORDER[below] == ORDER[above] and above != below):
            wrong.append(f"{importer} imports {imported}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "package,homes",
    [
        ("pyopencl", ("clnn.runtime",)),
        ("onnx", ("clnn.importers", "clnn.apis.onnx_backend")),
    ],
)
def test_one_room_imports(package, homes):
    wrong = [
        f"{importer} imports {imported}"
        for importer, imported, typing_only in imports()
        if imported.split(".")[0] == package and not importer.startswith(homes) and not typing_only
    ]
    assert not wrong, "\n".join(wrong)


def test_import_touches_no_device_and_stays_light():
    code = "import sys, clnn; print([m for m in ('pyopencl', 'onnx', 'mako') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_no_relaxed_arithmetic_in_templates():
    text = "".join(p.read_text() for p in (CLNN.parent / "kernels_cl").rglob("*.mako"))
    assert "native_" not in text and "half_exp" not in text and "fast-relaxed" not in text

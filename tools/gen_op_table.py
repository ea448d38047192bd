#!/usr/bin/env python3
"""Write docs/operators.md from the registry of operators and ONNX's tests (--check: compare)."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "onnx_suite")]

import suite

from clnn.errors import ClnnError
from clnn.importers.onnx.fold import foldable
from clnn.importers.onnx.importer import import_onnx
from clnn.importers.onnx.limits import NEWEST_OPSET
from clnn.importers.onnx.stages.deciding import CONTROL
from clnn.ops.host.registry import host_ops
from clnn.ops.onnx_registry import onnx_importers
from clnn.types import DTYPES, F16

PATH = ROOT / "docs" / "operators.md"
AT_IMPORT = ("Constant", "Shape")
INTEGERS = [d.name for d in DTYPES if d.numpy.kind in "iu"]
HEAD = """\
# Operators

Models of opset 7 to {newest} are imported; of older ones, operators that opset 7 did not change,
and those of opset 6 that changed only their broadcasting. An operator runs as

- **own**: kernels written for it;
- **definition**: the operators by which ONNX defines it;
- **import**: at import only, from constants (shapes, axes, tables);
- **host**: with numpy, between two plans of the device ([stages](develop/stages.md));
- **stages**: what it repeats or chooses is plans of its own.

All of these are computed at import where their inputs are constants. `If` is taken apart where its
condition is constant, functions of a model are inlined. *Versions*: the operator sets in which the
operator took a form that clnn knows. *Element types*: of its main inputs; float64 needs a device
that has it. Operators without versions are no part of ONNX; those of the domain `clnn` are what it makes of others
([loops](develop/stages.md#loops)). *Tests*: how many of ONNX's own
backend tests pass, of how many; the rest is refused, for reasons that the notes give.

| operator | runs as | versions | element types | tests | notes |
| --- | --- | --- | --- | --- | --- |
"""


def text() -> str:
    cases = suite.all_cases().values()
    passed = Counter(suite.expected_passes().values())
    run = Counter(case.op for case in cases)
    own = {name for name in onnx_importers() if _has_schema(name)}
    defined = {op for op in passed if _has_schema(op)} - own
    names = sorted(own | {n for n in defined | _import_only(own) if _has_schema(n)})
    rows = [_row(name, name in own, passed[name], run[name], cases) for name in names]
    others = {name: "own" for name in onnx_importers() if not _has_schema(name)}
    for name in host_ops():
        if "::" in name:
            others[name] = "own, host" if name in others else "host"
    rows += [f"| `{name}` | {how} | | | | |" for name, how in sorted(others.items())]
    return HEAD.format(newest=NEWEST_OPSET) + "\n".join(rows) + "\n"


def _import_only(own: set[str]) -> set[str]:
    names = {s.name for s in onnx.defs.get_all_schemas() if not s.domain}
    return (
        {n for n in names if foldable(n) and n not in own}
        | {*AT_IMPORT, *CONTROL}
        | (names & set(host_ops()) - own)
    )


def _has_schema(name: str) -> bool:
    return onnx.defs.has(name, "")


def _row(name: str, own: bool, passed: int, run: int, cases: Sequence[suite.Case]) -> str:
    at_import = foldable(name) or name in AT_IMPORT
    how = "own" if own else "import" if at_import else "definition"
    if not own:
        how = "stages" if name in CONTROL else "host" if name in host_ops() else how
    tests = f"{passed} of {run}" if run else ""
    kinds = "" if how in ("import", "host", "stages") else element_types(name, cases)
    return f"| `{name}` | {how} | {versions(name)} | {kinds} | {tests} | {notes(name, cases)} |"


def versions(name: str) -> str:
    """Return the operator sets in which the operator changed, as far as clnn knows them."""
    found = {
        s.since_version
        for s in onnx.defs.get_all_schemas_with_history()
        if s.name == name and not s.domain and s.since_version <= NEWEST_OPSET
    }
    oldest = max((v for v in found if v <= 7), default=min(found))
    return ", ".join(str(v) for v in sorted(found) if v >= oldest)


def element_types(name: str, cases: Sequence[suite.Case]) -> str:
    """Return the types that ONNX allows and with which one of the operator's tests is imported."""
    listed = suite.expected_passes()
    models = [c for c in cases if c.op == name and c.name in listed and c.model.graph.input]
    found = [d.name for d in DTYPES if d != F16 and any(_takes(c, d.numpy) for c in models)]
    text = ", ".join(found)
    return text.replace(", ".join(INTEGERS), "all integers")


def _takes(case: suite.Case, dtype: np.dtype[Any]) -> bool:
    """Whether the case is imported when the inputs of its main type have another type."""
    allowed, same = _main_type(case)
    if allowed and _type_name(dtype) not in allowed:
        return False
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for value in model.graph.input:
        if value.name in same:
            new = onnx.helper.np_dtype_to_tensor_dtype(dtype)
            value.type.tensor_type.elem_type = new
    data = zip(model.graph.input, case.data_sets[0][0], strict=False)
    with np.errstate(invalid="ignore"):
        values = {v.name: a.astype(dtype) if v.name in same else a for v, a in data}
    try:
        import_onnx(model, {name: a.shape for name, a in values.items()}, values)
    except ClnnError:
        return False
    return True


def _main_type(case: suite.Case) -> tuple[frozenset[str], set[str]]:
    """Return what ONNX allows for the type of the first output (else input), and who has it."""
    node = case.model.graph.node[0]
    version = {o.domain: o.version for o in case.model.opset_import}[node.domain]
    schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    formal = [
        schema.inputs[min(k, len(schema.inputs) - 1)].type_str for k in range(len(node.input))
    ]
    made = schema.outputs[0].type_str
    main = made if made in formal else formal[0]
    rows = {c.type_param_str: frozenset(c.allowed_type_strs) for c in schema.type_constraints}
    names = {n for n, kind in zip(node.input, formal, strict=True) if kind == main}
    return rows.get(main, frozenset([main])), names


def _type_name(dtype: np.dtype[Any]) -> str:
    return f"tensor({ {'float32': 'float', 'float64': 'double'}.get(dtype.name, dtype.name) })"


def notes(name: str, cases: Sequence[suite.Case]) -> str:
    """Return the reasons for which tests of the operator are excluded."""
    rows, listed = suite.exclusions(), suite.expected_passes()
    found = [suite.exclusion(c.name, rows) for c in cases if c.op == name and c.name not in listed]
    return "; ".join(sorted({r for r in found if r}))


def main() -> int:
    if "--check" in sys.argv[1:]:
        current = PATH.exists() and PATH.read_text(encoding="utf-8") == text()
        if not current:
            print(f"{PATH.name} is not current: run python tools/gen_op_table.py", file=sys.stderr)
        return 0 if current else 1
    PATH.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

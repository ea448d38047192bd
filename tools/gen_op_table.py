#!/usr/bin/env python3
"""Write docs/operators.md from the registry of operators and ONNX's tests (--check: compare)."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import onnx

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "onnx_suite")]

import suite  # noqa: E402

from clnn.errors import ClnnError  # noqa: E402
from clnn.importers.onnx import import_onnx  # noqa: E402
from clnn.importers.onnx_fold import foldable  # noqa: E402
from clnn.importers.onnx_limits import NEWEST_OPSET  # noqa: E402
from clnn.ops._registry import onnx_importers  # noqa: E402
from clnn.types import DTYPES, F16  # noqa: E402

PATH = ROOT / "docs" / "operators.md"
HEAD = """\
# Operators

Models of opset 7 to {newest} are imported; of older ones, operators that opset 7 did not change,
and those of opset 6 that changed only their broadcasting. An operator runs as

- **own**: kernels written for it;
- **definition**: the operators by which ONNX defines it;
- **import**: at import only, from constants (shapes, axes, tables).

All of these are computed at import where their inputs are constants. `If` is taken apart where its
condition is constant, functions of a model are inlined. *Versions*: the operator sets in which the
operator took a form that clnn knows. *Element types*: of its first input; float64 needs a device
that has it. *Tests*: how many of ONNX's own backend tests pass, of how many; the rest is refused,
for reasons that the notes give.

| operator | runs as | versions | element types | tests | notes |
| --- | --- | --- | --- | --- | --- |
"""


def text() -> str:
    cases = suite.all_cases().values()
    passed = Counter(suite.expected_passes().values())
    run = Counter(case.op for case in cases)
    own = {name for name in onnx_importers() if "::" not in name}
    defined = {op for op in passed if _has_schema(op)} - own
    names = sorted(own | {n for n in defined | _import_only(own) if _has_schema(n)})
    rows = [_row(name, name in own, passed[name], run[name], cases) for name in names]
    others = sorted(name for name in onnx_importers() if "::" in name)
    rows += [f"| `{name}` | own | | | | |" for name in others]
    return HEAD.format(newest=NEWEST_OPSET) + "\n".join(rows) + "\n"


def _import_only(own: set[str]) -> set[str]:
    names = {s.name for s in onnx.defs.get_all_schemas() if not s.domain}
    return {n for n in names if foldable(n) and n not in own} | {"Constant", "If"}


def _has_schema(name: str) -> bool:
    return onnx.defs.has(name, "")


def _row(name: str, own: bool, passed: int, run: int, cases: Sequence[suite.Case]) -> str:
    how = "own" if own else "import" if foldable(name) or not passed else "definition"
    tests = f"{passed} of {run}" if run else ""
    kinds = "" if how == "import" else element_types(name, cases)
    return f"| `{name}` | {how} | {versions(name)} | {kinds} | {tests} | {notes(name, cases)} |"


def versions(name: str) -> str:
    """Return the operator sets in which the operator changed, as far as clnn knows them."""
    found = {s.since_version for s in onnx.defs.get_all_schemas_with_history()
             if s.name == name and not s.domain and s.since_version <= NEWEST_OPSET}  # fmt: skip
    oldest = max((v for v in found if v <= 7), default=min(found))
    return ", ".join(str(v) for v in sorted(found) if v >= oldest)


def element_types(name: str, cases: Sequence[suite.Case]) -> str:
    """Return the types with which one of the operator's tests is imported."""
    listed = suite.expected_passes()
    models = [c for c in cases if c.op == name and c.name in listed and c.model.graph.input]
    found = [d.name for d in DTYPES if d != F16 and any(_takes(c, d.numpy) for c in models)]
    return ", ".join(found)


def _takes(case: suite.Case, dtype: object) -> bool:
    """Whether the case is imported when all inputs of the first one's type have another type."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    old = model.graph.input[0].type.tensor_type.elem_type
    new = onnx.helper.np_dtype_to_tensor_dtype(dtype)
    same = _alike(case)
    for place, value in enumerate(model.graph.input):
        if value.type.tensor_type.elem_type == old and place in same:
            value.type.tensor_type.elem_type = new
    data = zip(model.graph.input, case.data_sets[0][0], strict=False)
    values = {v.name: a.astype(onnx.helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type))
              for v, a in data}  # fmt: skip
    try:
        import_onnx(model, {name: a.shape for name, a in values.items()}, values)
    except ClnnError:
        return False
    return True


def _alike(case: suite.Case) -> set[int]:
    """Return the places of the inputs that ONNX wants of the first one's type."""
    node = case.model.graph.node[0]
    version = {o.domain: o.version for o in case.model.opset_import}[node.domain]
    formal = onnx.defs.get_schema(node.op_type, version, node.domain).inputs
    kinds = [formal[min(k, len(formal) - 1)].type_str for k in range(len(node.input))]
    names = {n for n, kind in zip(node.input, kinds, strict=True) if kind == kinds[0]}
    return {k for k, v in enumerate(case.model.graph.input) if v.name in names}


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

"""What a tuning result holds for: a problem as text, its key, and the bucket of problems like it."""

from __future__ import annotations

import json
import math
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any

from clnn.cache.keys import fields_key
from clnn.codegen.render import template_hash
from clnn.ops.launch import Variant
from clnn.ops.problem import Operand, Problem
from clnn.ops.shared.functions import FUNCTIONS, PostOp
from clnn.ops.spec import OpSpec
from clnn.records import dataclass
from clnn.types import DType

SCHEMA = 1
PRODUCTS = ("conv2d", "gemm", "separable")  # ops that tensor cores take part in


@dataclass(frozen=True)
class Signature:
    """A problem: its parts as JSON data, their key, its bucket, and its size in that bucket."""

    parts: dict[str, Any]
    key: str
    bucket: str
    size: int


def signature(spec: OpSpec, problem: Problem) -> Signature:
    """Return the signature of a node's problem: spec, types, layouts, borders; no names, no data."""
    parts = {
        "op": spec.kind,
        "spec": canonical(spec),
        "inputs": [_operand(o) for o in problem.inputs],
        "outputs": [_operand(o) for o in problem.outputs],
        "target": [
            problem.target.kind,
            problem.target.vector,
            problem.target.winograd,
            *_tensor(spec, problem),
        ],
    }
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    size = max(problem.outputs[0].type.size, 1)
    return Signature(
        parts, fields_key("clnn tuning", [str(SCHEMA), text]), _bucket(spec, problem), size
    )


def _tensor(spec: OpSpec, problem: Problem) -> list[str]:
    """Return how products of a problem's operands may use tensor cores; nothing where they cannot."""
    target = problem.target
    kind = target.tensor_kind(problem.input(0).memory) if spec.kind in PRODUCTS else ""
    return [target.tensor, kind] if kind else []


def canonical(value: Any) -> Any:
    """Return `value` as JSON data.

    Left out are fields of dataclasses that hold their default, and those that are data, on which no
    time depends; so are parameters of functions of bytes.
    """
    if isinstance(value, DType):
        return value.name
    if isinstance(value, PostOp) and FUNCTIONS[value.fn].of_bytes:
        value = replace(value, params=())
    if is_dataclass(value) and not isinstance(value, type):
        shown = {
            f.name: getattr(value, f.name)
            for f in fields(value)
            if not f.metadata.get("data")
            and (f.default is MISSING or getattr(value, f.name) != f.default)
        }
        return {type(value).__name__: {name: canonical(item) for name, item in shown.items()}}
    if isinstance(value, (tuple, list)):
        return [canonical(item) for item in value]
    plain = value is None or isinstance(value, (bool, int, str))
    return value if plain else repr(value)


def _operand(operand: Operand | None) -> dict[str, Any] | None:
    if operand is None:
        return None
    layout = operand.layout
    parts: dict[str, Any] = {
        "type": operand.type.dtype.name,
        "shape": list(layout.shape),
        "pitches": list(layout.pitches),
    }
    if layout.has_padding:
        parts |= {
            "before": list(layout.before),
            "after": list(layout.after),
            "fill": repr(operand.fill),
        }
    if operand.stored is not None:
        parts["stored"] = operand.stored.name
    return parts | ({"const": True} if operand.const is not None else {})


def _bucket(spec: OpSpec, problem: Problem) -> str:
    """Return kind, window, groups, and channels or extents rounded to powers of two."""
    marks = _tensor(spec, problem)
    if marks:
        plain = replace(problem, target=replace(problem.target, tensor=""))
        return " ".join([_bucket(spec, plain), *marks])
    window, group = getattr(spec, "window", None), getattr(spec, "group", 1)
    first, out = problem.inputs[0], problem.outputs[0].type
    if window is None or first is None or first.type.rank < 3:
        shapes = [o.type.shape for o in (*problem.inputs[:2], problem.outputs[0]) if o is not None]
        return f"{spec.kind} " + " ".join("x".join(str(_rounded(d)) for d in s) for s in shapes)
    channels = first.type.shape[1]
    groups = "one" if group == 1 else "each" if group == channels else "some"
    kernel, strides = ("x".join(map(str, v)) for v in (window.kernel, window.strides))
    return f"{spec.kind} {first.memory.name} k{kernel} s{strides} {groups} " + (
        f"{_rounded(channels)}-{_rounded(out.shape[1])}"
    )


def _rounded(extent: int) -> int:
    return 1 << round(math.log2(extent)) if extent > 0 else 0


def templates_of(variant: Variant) -> str:
    """Return a hash over the text of the templates that a variant is made from."""
    listed = [template_hash(launch.template) for launch in variant.launches]
    return fields_key("clnn templates", listed)[:16]


def title(parts: dict[str, Any]) -> str:
    """Return a problem in short: "conv2d 1x64x56x56, 64x64x3x3 -> 1x64x56x56"."""
    ins = ", ".join("x".join(map(str, o["shape"])) for o in parts["inputs"] if o)
    outs = ", ".join("x".join(map(str, o["shape"])) for o in parts["outputs"])
    return f"{parts['op']} {ins} -> {outs}"

"""What a model asks for that clnn cannot do: every node at once, alike ones together."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from clnn.errors import UnsupportedOpError
from clnn.importers.onnx.fold import foldable
from clnn.importers.onnx.limits import NEWEST_OPSET, show
from clnn.records import dataclass

_MOST_ROWS = 50
_MOST_NAMES = 3
_NAME = 80

_SEQUENCES = (
    "ConcatFromSequence",
    "Optional",
    "OptionalGetElement",
    "OptionalHasElement",
    "SequenceAt",
    "SequenceConstruct",
    "SequenceEmpty",
    "SequenceErase",
    "SequenceInsert",
    "SequenceLength",
    "SequenceMap",
    "SplitToSequence",
)
_BY_DATA = ("NonZero", "NonMaxSuppression", "Unique", "Compress")

_NO_RE2 = "its expressions are those of RE2: pip install clnn[text]"
_REASONS = {
    **dict.fromkeys(
        ("Loop", "Scan"),
        "loops run a number of times that only the run knows; clnn "
        "plans every launch before the run",
    ),
    **dict.fromkeys(_SEQUENCES, "sequences and optionals are not tensors; clnn runs tensors only"),
    "RegexFullMatch": _NO_RE2,
    **dict.fromkeys(
        _BY_DATA, "the shape of its output depends on data; clnn plans memory for fixed shapes"
    ),
    "ImageDecoder": "decoding of image files is not a tensor operation; decode before the model",
}


@dataclass(frozen=True)
class Problem:
    """One node that cannot run, and why. kinds: the types of its inputs, as text."""

    node: str
    domain: str
    op_type: str
    opset: int | None
    kinds: str
    reason: str


def missing_reason(domain: str, op_type: str, opset: int | None) -> str:
    """Return why there is no importer for an operator."""
    if opset is None:
        return f"the model imports no operator set of domain {show(domain)}"
    if (domain, op_type) == ("com.microsoft", "Tokenizer"):
        return _NO_RE2
    if domain != "ai.onnx":
        return f"clnn has no operator of this name in domain {show(domain)}"
    try:
        since = onnx.defs.get_schema(op_type, opset, "").since_version
    except onnx.defs.SchemaError:
        return f"opset {opset} of ONNX has no such operator"
    if since > NEWEST_OPSET:
        return f"it changed in opset {since}; clnn knows ONNX up to opset {NEWEST_OPSET}"
    if foldable(op_type) and op_type not in _REASONS:
        return "clnn computes it at import only, from inputs that are constants"
    return _REASONS.get(op_type, "clnn has no such operator")


def is_final(problem: Problem) -> bool:
    """Whether no shapes and no values would let a node run: clnn lacks its operator."""
    key = problem.domain, problem.op_type, problem.opset
    return problem.reason == missing_reason(*key) and not foldable(problem.op_type)


def refuse(problems: Sequence[Problem]) -> None:
    """Raise UnsupportedOpError that lists all problems, if there are any."""
    if not problems:
        return
    groups: dict[tuple[object, ...], list[Problem]] = {}
    for problem in problems:
        key = (problem.domain, problem.op_type, problem.opset, problem.kinds, problem.reason)
        groups.setdefault(key, []).append(problem)
    rows = [_row(group) for group in list(groups.values())[:_MOST_ROWS]]
    if len(groups) > _MOST_ROWS:
        rows.append(f"... and {len(groups) - _MOST_ROWS} more kinds")
    listed = "\n  ".join(rows)
    raise UnsupportedOpError(
        f"{len(problems)} node(s) cannot run on clnn:\n  {listed}\n"
        "Supported operators are listed in docs/operators.md.",
        problems,
    )


def _row(group: Sequence[Problem]) -> str:
    first = group[0]
    names = ", ".join(show(p.node) for p in group[:_MOST_NAMES])
    more = f" and {len(group) - _MOST_NAMES} more" if len(group) > _MOST_NAMES else ""
    opset = "" if first.opset is None else f" (opset {first.opset})"
    return (
        f"{len(group)} x {first.domain[:_NAME]}::{first.op_type[:_NAME]}{opset} of "
        f"({first.kinds}): {first.reason}. Node {names}{more}"
    )

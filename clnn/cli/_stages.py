"""A program as a listing: its stages, what the host does between them, and what is read back."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from clnn.importers.onnx.stages.program import (
    ON_SHAPES,
    DeviceStage,
    HostStep,
    Program,
    StageInput,
    Step,
)
from clnn.importers.onnx.stages.read_back import bodies_of, read_by_host

MOST_KINDS = 6  # operators named in a row


def rows_of(program: Program, depth: int = 0) -> list[dict[str, Any]]:
    """Return a row for each stage, each row of steps on the host, and each node with bodies."""
    return _rows(program, read_by_host(program), depth)


def _rows(program: Program, read: frozenset[str], depth: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for on_host, group in groupby(program.steps, key=lambda step: isinstance(step, HostStep)):
        steps = list(group)
        if on_host:
            rows.append(_host_row(steps, depth))
            continue
        for step in steps:
            rows.append(_row(step, read, depth))
            for body, wanted in bodies_of(step, read):
                rows += _rows(body, read_by_host(body, wanted), depth + 1)
    return rows


def _row(step: Step, read: frozenset[str], depth: int) -> dict[str, Any]:
    row: dict[str, Any] = {"depth": depth, "place": step.op_type, "name": step.name}
    row |= {"nodes": [step.name], "why": step.why}
    if isinstance(step, DeviceStage):
        back = [info for info in step.makes if info.name in read]
        row |= {"place": "device", "nodes": list(step.nodes), "plan_for": list(step.fixed)}
        row |= {"reads_back": [info.name for info in back]}
        row |= {"bytes_read_back": sum(_bytes(b) for b in back if b.is_static)}
        row |= {"unknown_read_back": sum(not b.is_static for b in back)}
    return row


def _host_row(steps: Sequence[Step], depth: int) -> dict[str, Any]:
    reasons = dict.fromkeys(f"{s.op_type}: {s.why}" for s in steps if s.why.startswith("its "))
    deciding = {r: None for r in reasons if "inputs are on the host" not in r}
    plain = ON_SHAPES if all(s.why == ON_SHAPES for s in steps) else "works on what is here"
    return {
        "depth": depth,
        "place": "host",
        "name": "host",
        "nodes": [s.name for s in steps],
        "operators": dict(Counter(s.op_type for s in steps).most_common()),
        "why": "; ".join(deciding) or plain,
    }


def _bytes(info: StageInput) -> int:
    return math.prod(int(d) for d in info.shape or ()) * int(info.dtype.itemsize)


def text_of(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as lines."""
    stages = sum(row["place"] == "device" for row in rows)
    return "\n".join([f"stages   {stages} on the device, in the order of a run:", *_lines(rows)])


def _lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        margin, count = "  " * (row["depth"] + 1), len(row["nodes"])
        why = f"  ({row['why']})" if row["why"] else ""
        if row["place"] == "host":
            kinds = [f"{op} {n}" for op, n in row["operators"].items()]
            more = f" and {len(kinds) - MOST_KINDS} more" if len(kinds) > MOST_KINDS else ""
            yield f"{margin}host    {count} nodes: {', '.join(kinds[:MOST_KINDS])}{more}{why}"
        elif row["place"] == "device":
            yield f"{margin}device  {row['name']}: {count} nodes{why}"
            if row["reads_back"]:
                yield f"{margin}        reads back {_read_back(row)}"
            if row["plan_for"]:
                yield f"{margin}        a plan for each value of {', '.join(row['plan_for'])}"
        else:
            yield f"{margin}{row['place']:<7} {row['name']}{why}"


def _read_back(row: dict[str, Any]) -> str:
    unknown = row["unknown_read_back"]
    more = f", and {unknown} values of a size that the run knows" if unknown else ""
    return f"{len(row['reads_back'])} values, {row['bytes_read_back']} bytes{more}"

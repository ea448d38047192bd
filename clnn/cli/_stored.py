"""Compiled networks on the command line: what they say of their inputs, and what they hold."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

from clnn.cli import _common
from clnn.errors import SettingError
from clnn.records import dataclass

if TYPE_CHECKING:
    import argparse


@dataclass(frozen=True)
class StoredValue:
    """An input or output, as clnn.importers.onnx.info has them."""

    name: str
    dtype: str
    dims: tuple[int, ...]


@dataclass(frozen=True)
class StoredInfo:
    """Head data of a compiled network."""

    inputs: tuple[StoredValue, ...]
    outputs: tuple[StoredValue, ...]
    metadata: Mapping[str, str] = field(default_factory=dict)


def info_of(model: str) -> Any:
    """Return the head data of a model, compiled or not. Raises ModelError."""
    from clnn.runtime.run.compiled import is_compiled

    if not is_compiled(model):
        from clnn.importers.onnx.info import read_info

        return read_info(model)
    from clnn.runtime.run.saved import read_network

    plan = read_network(model).plan
    inputs, outputs = (
        tuple(StoredValue(p.name, p.type.dtype.name, p.type.shape) for p in ports)
        for ports in (plan.inputs, plan.outputs)
    )
    return StoredInfo(inputs, outputs)


def inspect(args: argparse.Namespace) -> int:
    """Print what a compiled network holds; return the exit status."""
    from clnn.plan.describe import describe
    from clnn.runtime.run.saved import read_network

    if args.arena or args.source or args.shape:
        raise SettingError(
            f"{args.model} is a compiled network: --arena, --source and --shape are for its model."
        )
    network = read_network(args.model)
    plan, rows = network.plan, describe(network.plan)
    report = {
        "model": args.model,
        "bytes": os.path.getsize(args.model),
        "made_for": network.made_for,
        "needs": sorted(network.needs),
        "inputs": {p.name: repr(p.type) for p in plan.inputs},
        "outputs": {p.name: repr(p.type) for p in plan.outputs},
        "ops": dict(Counter(row["op"] for row in rows)),
        "launches": len(plan.launches),
        "programs": len(network.binaries),
        "constant_bytes": network.data.size,
        "arena_bytes": plan.memory.total,
        "plan": rows,
    }
    ports = [
        f"{side:<8} {n}: {k}" for side in ("inputs", "outputs") for n, k in report[side].items()
    ]
    lines = [
        f"{args.model}: compiled for {network.made_for}, {report['bytes'] / 1e6:.1f} MB",
        *ports,
        f"needs    {', '.join(report['needs']) or 'nothing special'} of a {plan.target.kind}",
        f"holds    {report['constant_bytes'] / 1e6:.1f} MB of constants, {report['programs']} programs,"
        f" {report['launches']} launches; arena {report['arena_bytes'] / 1e6:.1f} MB",
    ]
    if args.plan:
        lines += [f"{r['node']:<28} {r['op']:<12} {r['variant']:<32} {r['output']}" for r in rows]
    _common.write_result(args, report, "\n".join(lines))
    return 0

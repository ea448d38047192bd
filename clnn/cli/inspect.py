"""`clnn inspect`: what a model holds, what of it clnn can run, and how: plan, memory, sources."""

from __future__ import annotations

import argparse
import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from clnn.cli import _common
from clnn.errors import (
    InputNameError,
    NoDeviceError,
    OpenShapeError,
    SettingError,
    ShapeError,
    UnsupportedOpError,
)

if TYPE_CHECKING:
    from clnn.graph.ir import Graph
    from clnn.importers.onnx.info import ModelInfo, ValueInfo
    from clnn.importers.onnx.stages.program import Program
    from clnn.layout import TensorLayout
    from clnn.options import Options
    from clnn.plan.plan import Plan
    from clnn.runtime.device.device import DeviceInfo

EXIT_UNSUPPORTED = 1
MOST_NAMES = 12


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand to the parser of `clnn`."""
    parser = subparsers.add_parser(
        "inspect",
        help="show what a model holds and how clnn runs it",
        description="Shows a model's operators and whether clnn can run them. Nothing is built or"
        " run; without a device, plans are made for a plain CPU. Exit status: 0, or 1 when nodes"
        " are not supported.",
    )
    _common.add_model(parser)
    parser.add_argument("--plan", action="store_true", help="show the steps: variants and layouts")
    parser.add_argument("--arena", action="store_true", help="show the memory map: offset by step")
    parser.add_argument(
        "--source", metavar="NODE", help="print the OpenCL of a node or kernel (name or glob)"
    )


def run(args: argparse.Namespace) -> int:
    """Print what is asked for; return the exit status."""
    from clnn.cli import _stored
    from clnn.importers.onnx.info import read_info
    from clnn.runtime.run.compiled import is_compiled

    _common.settle(args)
    if is_compiled(args.model):
        return _stored.inspect(args)
    info = read_info(args.model)
    report = {"model": args.model, "bytes": os.path.getsize(args.model), **asdict(info)}
    report["ops"], report["unsupported"] = dict(Counter(node.op for node in info.nodes)), []
    try:
        graph = _graph(args)
    except UnsupportedOpError as refused:
        program, err = _program(args, refused)
        if program is not None:
            return _show_stages(args, info, report, program)
        if args.plan or args.arena or args.source:
            raise err from None
        report["unsupported"] = [asdict(problem) for problem in err.problems]
        _common.write_result(args, report, f"{_head(args, info)}\n{_operators(report)}")
        return EXIT_UNSUPPORTED
    except ShapeError as err:
        if isinstance(err, OpenShapeError):
            program, _ = _program(args, UnsupportedOpError())
            if program is not None:
                return _show_stages(args, info, report, program)
        if args.plan or args.arena or args.source or args.shape:
            raise
        note = f"Whether it can run depends on its shapes: {err}"
        text = f"{_head(args, info)}\n{_operators(report, known=False)}\n{note}"
        _common.write_result(args, {**report, "note": note}, text)
        return 0
    parts = _parts(args, graph, report)
    _common.write_result(
        args, report, "\n".join([] if args.source else [_head(args, info), *parts]) or parts[0]
    )
    return 0


def _program(
    args: argparse.Namespace, refused: UnsupportedOpError
) -> tuple[Program | None, UnsupportedOpError]:
    """Return the program of a model of which values decide shapes or what runs, else the refusal."""
    from clnn.importers.onnx.stages.build import read_program
    from clnn.importers.onnx.stages.program import is_staged

    try:
        program = read_program(_settled(args)[0], _common.shapes_of(args))
    except UnsupportedOpError as err:
        return None, err
    return (program if is_staged(program) else None), refused


def _show_stages(
    args: argparse.Namespace, info: ModelInfo, report: dict[str, Any], program: Program
) -> int:
    from clnn.cli import _stages

    if args.plan or args.arena or args.source:
        raise SettingError(
            "the model runs in stages, whose plans are made for shapes that a run meets: there is no"
            " one plan to show. Leave --plan, --arena and --source away; Session.placement of a"
            " session that ran has all plans."
        )
    report["stages"] = _stages.rows_of(program)
    parts = [_head(args, info), _operators(report), _stages.text_of(report["stages"])]
    _common.write_result(args, report, "\n".join(parts))
    return 0


def _graph(args: argparse.Namespace) -> Graph:
    from clnn.api import load_graph, prepare

    model, options = _settled(args)
    return prepare(load_graph(model, _common.shapes_of(args)), options, device=args.device)


def _settled(args: argparse.Namespace) -> tuple[Any, Options]:
    """Return the model that runs, and the options that it runs with."""
    from clnn.api import settled

    options = _common.options_of(args)
    return settled(args.model, args.device, options, _common.shapes_of(args))


def _parts(args: argparse.Namespace, graph: Graph, report: dict[str, Any]) -> list[str]:
    """Return the texts of what is asked for, and add the same to `report`."""
    if not (args.plan or args.arena or args.source):
        return [_operators(report)]
    plan = _plan(args, graph)
    if args.source:
        report["sources"] = sources(plan, args.source)
        return ["\n".join(_source_text(s) for s in report["sources"])]
    parts = []
    report["arena_bytes"] = plan.memory.total
    if args.plan:
        report["steps"] = steps(plan)
        parts.append(_plan_text(plan, report["steps"]))
    if args.arena:
        report["arena"] = blocks(plan)
        parts.append(arena_map(plan))
    return parts


def _plan(args: argparse.Namespace, graph: Graph) -> Plan:
    from clnn.plan.schedule import make_plan
    from clnn.runtime.device.target import allowed, target_of
    from clnn.runtime.run.small import placed_on
    from clnn.settings import setting
    from clnn.target import Target
    from clnn.tune.choose import Ranked, chooser

    options = _common.options_of(args)
    separate = (options.arena or setting("CLNN_ARENA")) == "separate"
    info = _device(args)
    info = info and placed_on(graph, info, options)
    target = allowed(target_of(info) if info else Target(), options)
    with chooser(info, options.tune) if info else Ranked() as choose:
        return make_plan(graph, target, choose, separate=separate, guard=options.guard)


def _device(args: argparse.Namespace) -> DeviceInfo | None:
    """Return the device that would run it, None where there is none."""
    from clnn.runtime.doctor.selection import select_device

    try:
        return select_device(args.device)
    except NoDeviceError:
        if args.device is not None:
            raise
        _common.tell("note: no OpenCL device here; this is the plan for a plain CPU.")
        return None


def _head(args: argparse.Namespace, info: ModelInfo) -> str:
    opsets = ", ".join(f"{domain} {version}" for domain, version in info.opsets.items())
    lines = [
        f"model    {args.model}  {os.path.getsize(args.model)} bytes, opset {opsets}"
        + (f", by {info.producer}" if info.producer else ""),
        *(f"input    {_value(v)}" for v in info.inputs),
        *(f"output   {_value(v)}" for v in info.outputs),
        *(f"metadata {key} = {value[:60]}" for key, value in info.metadata.items()),
        f"size     {len(info.nodes)} nodes, {info.weights} weights",
    ]
    return "\n".join(lines)


def _value(value: ValueInfo) -> str:
    dims = "?" if value.dims is None else ", ".join(str(d or "?") for d in value.dims)
    kind = "text" if value.dtype == "object" else value.dtype or "not a tensor"
    return f"{value.name} {kind} [{dims}]"


def _operators(report: dict[str, Any], known: bool = True) -> str:
    """Return the table of operators: how many nodes, and whether they can run."""
    reasons: dict[str, Counter[str]] = {}
    for problem in report["unsupported"]:
        domain = problem["domain"]
        op = problem["op_type"] if domain == "ai.onnx" else f"{domain}::{problem['op_type']}"
        reasons.setdefault(op, Counter())[problem["reason"]] += 1
    blocked = " (or behind a node that is not)" if reasons else ""
    lines = [f"{'operator':<28} {'nodes':>5}  supported{blocked}"]
    for op, count in sorted(report["ops"].items(), key=lambda item: (-item[1], item[0])):
        bad = reasons.get(op)
        state = "yes" if known else "?"
        if bad:
            state = "NO  " + "; ".join(f"{n} of them: {reason}" for reason, n in bad.items())
        lines.append(f"{op:<28} {count:>5}  {state}")
    if report["unsupported"]:
        names = [problem["node"] for problem in report["unsupported"]]
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        lines.append(f"{len(names)} nodes cannot run: {', '.join(names[:MOST_NAMES])}{more}")
    return "\n".join(lines)


def steps(plan: Plan) -> list[dict[str, Any]]:
    """Return one row per step of the schedule: node, variant, launches, output and its place."""
    from clnn.plan.describe import shown

    rows = []
    for number, step in enumerate(plan.scheduled):
        name = step.node.outputs[0]
        placed = plan.placed[name]
        rows.append(
            {
                "number": number,
                "node": step.node.name,
                "op": step.node.spec.kind,
                "origin": step.node.origin,
                "variant": step.variant.name,
                "why": step.variant.why,
                "launches": len(step.launches),
                "fills": len(step.fills),
                "output": shown(step.problem.outputs[0]),
                "layout": layout_text(placed.layout),
                "storage": placed.storage,
                "kernels": [str(p.launch.params["name"]) for p in step.launches],
            }
        )
    return rows


def layout_text(layout: TensorLayout) -> str:
    """Return memory order and padding of a layout in short: "NHWC H+1+1 W+1+1"."""
    letters = "NCHW" if layout.rank == 4 else "NCW" if layout.rank == 3 else ""
    letters = letters or "".join(chr(ord("a") + axis) for axis in range(layout.rank))
    order = "".join(letters[axis] for axis in layout.order)
    pads = [
        f"{letters[a]}+{layout.before[a]}+{layout.after[a]}"
        for a in range(layout.rank)
        if layout.before[a] or layout.after[a]
    ]
    return " ".join([order or "scalar", *pads])


def _plan_text(plan: Plan, rows: Sequence[dict[str, Any]]) -> str:
    memory, launches = plan.memory, len(plan.launches)
    lines = [
        f"plan     {len(rows)} steps, {launches} launches, arena {memory.total} bytes (at least"
        f" {memory.lower_bound}), {plan.copied_bytes} bytes copied only to move them",
        f"{'#':>4} {'node':<28} {'op':<10} {'variant':<46} {'why':<7} {'output':<24} layout",
    ]
    for r in rows:
        mark = "" if r["launches"] else "  (a view)"
        why = r["why"] if r["launches"] else "-"
        names = f"{r['node'][-28:]:<28} {r['op'][:10]:<10} {r['variant'][:46]:<46} {why:<7}"
        lines.append(f"{r['number']:>4} {names} {r['output']:<24} {r['layout']}{mark}")
    return "\n".join(lines)


def sources(plan: Plan, pattern: str) -> list[dict[str, Any]]:
    """Return every distinct kernel of the nodes, variants or kernels that `pattern` names.

    Raises InputNameError where nothing has such a name.
    """
    from clnn.codegen.kernels import text_of

    found: dict[str, dict[str, Any]] = {}
    for step in plan.scheduled:
        for planned in (*step.fills, *step.launches):
            launch = planned.launch
            kernel = str(launch.params["name"])
            if any(fnmatchcase(n, pattern) for n in (step.node.name, step.variant.name, kernel)):
                source = text_of(launch).source
                entry = {
                    "kernel": kernel,
                    "template": launch.template,
                    "nodes": [],
                    "global": list(launch.global_size),
                    "local": list(launch.local_size),
                    "source": source,
                }
                found.setdefault(source, entry)["nodes"].append(step.node.name)
    if not found:
        names = [s.node.name for s in plan.scheduled if s.launches]
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        raise InputNameError(
            f"no node, variant or kernel is named {pattern!r}. Nodes with kernels are:"
            f" {', '.join(names[:MOST_NAMES])}{more}. `clnn inspect --plan` lists all."
        )
    return list(found.values())


def _source_text(entry: dict[str, Any]) -> str:
    head = [
        f"// {entry['kernel']}, from {entry['template']}",
        f"// nodes: {', '.join(dict.fromkeys(entry['nodes']))}",
        f"// global {entry['global']}, local {entry['local']}",
    ]
    return "\n".join([*head, entry["source"]])


def blocks(plan: Plan) -> list[dict[str, Any]]:
    """Return what lies in the arena: key, offset, bytes, and the steps it lives; by offset."""
    found = []
    for key, size in plan.block_bytes.items():
        first, last = _life(plan, key)
        found.append(
            {
                "key": key,
                "offset": plan.memory.offsets[key],
                "bytes": size,
                "first": first,
                "last": last,
            }
        )
    return sorted(found, key=lambda b: (b["offset"], b["first"]))


def _life(plan: Plan, key: str) -> tuple[int, int]:
    storage = plan.storages.get(key)
    if storage is not None:
        return storage.first, storage.last
    at = next(n for n, s in enumerate(plan.scheduled) if key.startswith(f"{s.node.name}#"))
    return at, at


MAP_ROWS, MAP_COLUMNS = 24, 96
_MARKS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def arena_map(plan: Plan) -> str:
    """Return the arena as text: a row per range of offsets, a column per step (or several)."""
    listed = blocks(plan)
    total, count = max(plan.memory.total, 1), len(plan.scheduled) + 1
    rows, columns = min(MAP_ROWS, total), min(MAP_COLUMNS, count)
    cells = [["."] * columns for _ in range(rows)]
    for number, block in enumerate(listed):
        mark = _MARKS[number % len(_MARKS)]
        for row in range(rows):
            low, high = row * total / rows, (row + 1) * total / rows
            if block["offset"] < high and block["offset"] + block["bytes"] > low:
                begin = block["first"] * columns // count
                end = math.ceil((block["last"] + 1) * columns / count)
                cells[row][begin:end] = mark * (end - begin)
    lines = [f"arena    {total} bytes; down: offset, across: steps 0 to {count - 1}"]
    for row, marks in enumerate(cells):
        lines.append(f"{row * total // rows:>12} {''.join(marks)}")
    for number, block in enumerate(listed):
        mark, place = _MARKS[number % len(_MARKS)], f"{block['offset']:>10} +{block['bytes']:<10}"
        lines.append(f"  {mark}  {place} steps {block['first']}-{block['last']}  {block['key']}")
    return "\n".join(lines)

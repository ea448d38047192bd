#!/usr/bin/env python3
"""Pairs of networks that must agree with each other: what no other engine needs to know.

    python tools/fuzz/metamorphic.py [--count N | --long] [--seed S] [--device D] [--state FILE]
    python tools/fuzz/metamorphic.py --only SEED [--device D]

Pair S + k is drawn from that number alone, with random Options, as one of:

- batch: a network for n images, and the same for one, or for any number, called n times;
- padding: Pad before a convolution or pooling, and the pads of that itself;
- views: slices, transposes, concatenations and their like, and the same with a copy behind each;
- memory: one arena, and a buffer for each value.

Each pair runs on clnn alone, in a child process as in tools/fuzz/networks.py. onnxruntime is asked only
where the two differ: whether the difference is one of rounding. Exit status: 0, 1 where a pair differs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools" / "fuzz")]

import cases
import image_kinds
import numpy as np
import onnx
from children import Limits, Progress, end_with_children, rows, said_of
from drawing import Drawer, Feeds, Network, evaluate_all
from onnx import helper
from side_by_side import work_on

import clnn
from clnn.errors import UnsupportedOpError

COUNT, LONG, GROUP = 100, 5_000, 16  # pairs: at most, and of a group
Run = Callable[[onnx.ModelProto, Sequence[Feeds], dict[str, Any]], list[list[np.ndarray]]]


@dataclass(frozen=True)
class Side:
    """A model and its calls; the results of all calls are joined along the first axis."""

    model: onnx.ModelProto
    calls: tuple[Feeds, ...]
    options: dict[str, Any]


@dataclass(frozen=True)
class Pair:
    """Two sides whose outputs, in their order, must be the same."""

    relation: str
    left: Side
    right: Side

    @property
    def ops(self) -> list[str]:
        """The relation and the operators of the left side."""
        return [self.relation, *(node.op_type for node in self.left.model.graph.node)]


def draw(seed: int) -> Pair:
    """Return the pair of a seed."""
    drawer = image_kinds.ImageDrawer(seed)
    relation = drawer.one_of((_batch, _batch, _padding, _views, _views, _memory))
    return relation(drawer)


def _outputs(net: Network, drawer: Drawer) -> list[str]:
    read = {name for node in net.nodes for name in node.input}
    return [n for n in net.made if n not in read or drawer.chance.random() < 0.15]


def _batch(drawer: image_kinds.ImageDrawer) -> Pair:
    count = drawer.up_to(5, 2)
    net = drawer.images(count, image_kinds.KINDS)
    options, outputs = cases.options(drawer.chance), _outputs(net, drawer)
    model, x = net.model(outputs), net.inputs[0]
    other = onnx.ModelProto()
    other.CopyFrom(model)
    extent = other.graph.input[0].type.tensor_type.shape.dim[0]
    if drawer.chance.random() < 0.3:
        extent.dim_param = "n"
    else:
        extent.dim_value = 1
    for output in other.graph.output:
        output.type.tensor_type.ClearField("shape")
    calls = tuple({**net.feeds, x: net.values[x][k : k + 1]} for k in range(count))
    return Pair("batch", Side(model, (net.feeds,), options), Side(other, calls, options))


def _padding(drawer: image_kinds.ImageDrawer) -> Pair:
    net, other = drawer.images(drawer.up_to(2), (image_kinds.unary,)), Network()
    x = net.made[-1] if net.made else net.inputs[0]
    nodes = image_kinds.padded_twice(drawer, x)
    options = cases.options(drawer.chance)
    shared = {"values": net.values, "inputs": net.inputs, "consts": net.consts}
    before = list(net.nodes)
    (as_op, out), (as_attribute, out_too) = nodes
    net, other = (
        Network(nodes=before + as_op, opset=net.opset, **shared),
        Network(nodes=before + as_attribute, opset=net.opset, **shared),
    )
    outputs = [[out], [out_too]]
    if len(as_op) > 1 and drawer.chance.random() < 0.3:  # so that it stays an operator of its own
        outputs = [[out, as_op[0].output[0]], [out_too, as_op[0].output[0]]]
        other.nodes.append(as_op[0])
    sides = [
        Side(_unshaped(one, names), (one.feeds,), options)
        for one, names in zip((net, other), outputs, strict=True)
    ]
    return Pair("padding", *sides)


def _views(drawer: image_kinds.ImageDrawer) -> Pair:
    net = drawer.images(drawer.up_to(3), (*image_kinds.VIEWS, *image_kinds.KINDS))
    options, outputs = cases.options(drawer.chance), _outputs(net, drawer)
    nodes: list[onnx.NodeProto] = []
    renamed: dict[str, str] = {}
    for node in net.nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [renamed.get(n, n) for n in node.input]
        nodes.append(copy)
        for name in node.output if node.op_type in image_kinds.MOVING else ():
            renamed[name] = f"{name}_copy"
            nodes.append(
                helper.make_node("Mul", [name, "one"], [renamed[name]], name=f"{name}_copy")
            )
    values = {**net.values, "one": np.ones((), np.float32)}
    other = Network(values, [*net.inputs, "one"], net.consts, nodes, net.opset)
    left = Side(_unshaped(net, outputs), (net.feeds,), options)
    names = [renamed.get(n, n) for n in outputs]
    return Pair("views", left, Side(_unshaped(other, names), (other.feeds,), options))


def _memory(drawer: image_kinds.ImageDrawer) -> Pair:
    net = drawer.images(drawer.up_to(3), (*image_kinds.VIEWS, *image_kinds.KINDS))
    model = net.model(_outputs(net, drawer))
    options = cases.options(drawer.chance) | {"merge": False, "arena": "shared"}
    apart = options | {"arena": "separate", "guard": int(drawer.one_of((0, 64)))}
    return Pair("memory", Side(model, (net.feeds,), options), Side(model, (net.feeds,), apart))


def _unshaped(net: Network, outputs: Sequence[str]) -> onnx.ModelProto:
    """Return the model whose outputs say neither extents nor where they come from."""
    model = net.model([])
    model.graph.output.extend(helper.make_tensor_value_info(name, 1, None) for name in outputs)
    return model


def on_clnn(device: str) -> Run:
    """Return what runs a model on a device with options, for each feeds."""

    def run(
        model: onnx.ModelProto, calls: Sequence[Feeds], options: dict[str, Any]
    ) -> list[list[np.ndarray]]:
        with clnn.compile_model(model, device, clnn.Options(**options)) as session:
            return [[made[o.name] for o in model.graph.output] for made in map(session, calls)]

    return run


def on_onnxruntime(
    model: onnx.ModelProto, calls: Sequence[Feeds], options: dict[str, Any]
) -> list[list[np.ndarray]]:
    """Run a model on onnxruntime, for each feeds."""
    return [[made[o.name] for o in model.graph.output] for made in evaluate_all(model, calls)]


def check(pair: Pair, run: Run) -> str:
    """Return how the sides of a pair differ, "" where they agree."""
    try:
        sides = [_joined(side, run) for side in (pair.left, pair.right)]
    except Exception as err:  # any error of a valid network is a finding
        return f"{pair.relation}: {said_of(err)}"
    dtype, told = pair.left.options["dtype"], []
    for number, (a, b) in enumerate(zip(*sides, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            told.append(f"output {number}: {a.dtype}{a.shape} for {b.dtype}{b.shape}")
            continue
        with np.errstate(invalid="ignore"):
            apart = np.where(a == b, 0, np.abs(a.astype(np.float64) - b))
        allowed = cases.TOLERANCE[dtype] / (10 if dtype == "f32" else 1)
        finite = np.where(np.isfinite(b), np.abs(b), 0)  # of a border below all numbers
        allowed *= max(1.0, float(finite.max(initial=0)))
        if not apart.max(initial=0) <= allowed and not _unsteady(pair, number, allowed):
            told.append(f"output {number}: {float(apart.max()):.3g} apart, allowed {allowed:.3g}")
    return f"{pair.relation}: {'; '.join(told)}" if told else ""


def _joined(side: Side, run: Run) -> list[np.ndarray]:
    made = run(side.model, side.calls, side.options)
    if len(made) == 1:
        return made[0]
    return [np.concatenate(parts) for parts in zip(*made, strict=True)]


def _unsteady(pair: Pair, number: int, allowed: float) -> bool:
    """Tell whether an output of the left side hangs on rounding: on what moves the inputs so far."""
    feeds, chance = pair.left.calls[0], np.random.default_rng(1)
    step = cases.STEPS[pair.left.options["dtype"]]
    moved = [
        {n: cases.moved(a, step, chance) for n, a in feeds.items()} for _ in range(cases.MOVES)
    ]
    want, *others = on_onnxruntime(pair.left.model, [feeds, *moved], {})
    far = [np.abs(o[number].astype(np.float64) - want[number]).max(initial=0) for o in others]
    return not max(far) <= allowed / 4


def worker(first: int, count: int, device: str, at_once: int) -> None:
    """Check pairs and say of each what became of it, a line of JSON each.

    at_once: how many are checked side by side, so that their programs are built together.
    """

    def one(seed: int) -> tuple[Pair, str]:
        pair = draw(seed)
        return pair, check(pair, on_clnn(device))

    for seed, (pair, wrong), cpu in work_on(first, count, one, at_once, device):
        refused = UnsupportedOpError.__name__ in wrong
        row = {"seed": seed, "wrong": "" if refused else wrong, "refused": refused, "cpu": cpu}
        print(json.dumps({**row, "ops": pair.ops, "options": pair.left.options}), flush=True)


def run(
    first: int, count: int, device: str, limits: Limits | None = None
) -> Iterator[dict[str, Any]]:
    """Yield a row for each pair, checked in children, in groups whose programs are built together."""

    def command(first: int, count: int, at_once: int) -> list[str]:
        worker = [sys.executable, __file__, "--worker", str(first), str(count), str(at_once)]
        return [*worker, "--device", device]

    return rows(first, count, command, limits or Limits(group=GROUP))


def main() -> int:
    args = _arguments()
    if args.worker:
        first, count, at_once = args.worker
        worker(first, count, args.device, at_once)
        return 0
    if args.only is not None:
        pair = draw(args.only)
        for side in (pair.left, pair.right):
            print(side.options, onnx.printer.to_text(side.model.graph)[:3000])
        wrong = check(pair, on_clnn(args.device))
        print(wrong or "nothing differs")
        return int(bool(wrong))
    end_with_children()
    so_far = Progress.of(args.state, args.seed)
    left = (LONG if args.long else args.count) - so_far.done
    for row in run(so_far.first + so_far.done, left, args.device):
        so_far.take(row)
        if row["wrong"]:
            print(
                f"{row['seed']}: {row['wrong']}\n  {row.get('options')} {row.get('ops')}",
                flush=True,
            )
    so_far.save()
    bad, each = len(so_far.wrong or {}), so_far.cpu / max(so_far.done, 1)
    print(
        f"{so_far.done} pairs, {bad} differ, {so_far.refused} refused, {each:.2f} CPU seconds each"
    )
    return int(bad > 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--long", action="store_true", help=f"{LONG} pairs")
    parser.add_argument("--seed", type=int, default=1, help="the first pair")
    parser.add_argument("--state", type=Path, help="file of what was done; goes on from it")
    parser.add_argument("--device", default=os.environ.get("CLNN_DEVICE", "auto"))
    parser.add_argument("--only", type=int, help="show and check one pair")
    parser.add_argument("--worker", nargs=3, type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

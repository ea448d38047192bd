#!/usr/bin/env python3
"""Random ONNX networks on clnn and on onnxruntime: what differs is made small and kept.

    python tools/fuzz/networks.py [--count N | --long] [--seed S] [--fresh N] [--device D] [--keep FOLDER]
    python tools/fuzz/networks.py --replay FOLDER/SEED

Network S + k is drawn from that number alone, with random Options, and runs in a child process, so that
a crash is one more finding. --fresh: so many more from a seed that the clock gives, which is printed.
Exit status: 0, 1 where something differs or crashes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools" / "fuzz")]

import numpy as np
import onnx
from drawing import Drawer, Network, evaluate

import clnn
from clnn.errors import UnsupportedOpError

COUNT, LONG = 300, 20_000
# Share of the largest magnitude that results may differ by, and that inputs are moved by to see which
# results hang on rounding.
TOLERANCE = {"f32": 2e-4, "tf32": 2e-2, "f16": 2e-2, "bf16": 8e-2}
STEPS = {"f32": 2e-6, "tf32": 1e-3, "f16": 1e-3, "bf16": 8e-3}


@dataclass(frozen=True)
class Case:
    """A network, which of its values are outputs, and the options it runs with."""

    net: Network
    outputs: tuple[str, ...]
    options: dict[str, Any]


def draw(seed: int) -> Case:
    """Return the case of a seed."""
    drawer = Drawer(seed)
    net = drawer.draw(drawer.up_to(8))
    chance, made = drawer.chance, net.made
    read = {name for node in net.nodes for name in node.input}
    outputs = [n for n in made if n not in read or chance.random() < 0.15]
    options: dict[str, Any] = {
        "fuse": bool(chance.random() < 0.85),
        "merge": bool(chance.random() < 0.7),
        "winograd": bool(chance.random() < 0.7),
        "guard": int(chance.choice([0, 0, 64])),
        "arena": str(chance.choice(["shared", "shared", "separate"])),
        "dtype": str(chance.choice(["f32"] * 8 + ["f16", "bf16", "tf32"])),
    }
    return Case(net, tuple(outputs), options)


def on_clnn(case: Case, device: str) -> dict[str, np.ndarray]:
    """Return clnn's outputs."""
    model = case.net.model(case.outputs)
    with clnn.compile_model(model, device, clnn.Options(**case.options)) as session:
        return session(case.net.feeds)


def differences(case: Case, got: dict[str, np.ndarray]) -> dict[str, str]:
    """Return output -> how it differs from onnxruntime's, beyond what moved inputs do to that."""
    model, dtype = case.net.model(case.outputs), case.options["dtype"]
    want = evaluate(model, case.net.feeds)
    moved = {
        n: np.asarray(a * (1 + STEPS[dtype] * (-1) ** k), a.dtype) if a.dtype.kind == "f" else a
        for k, (n, a) in enumerate(case.net.feeds.items())
    }
    other = evaluate(model, moved)
    found = {}
    for name in case.outputs:
        a, b = got[name], want[name]
        if a.shape != b.shape or a.dtype != b.dtype:
            found[name] = f"{a.dtype}{a.shape} for {b.dtype}{b.shape}"
            continue
        allowed = TOLERANCE[dtype] * max(1.0, float(np.abs(b).max(initial=0)))
        wide = [x.astype(np.float64) for x in (a, b, other[name])]
        apart, unsteady = np.abs(wide[0] - wide[1]), np.abs(wide[2] - wide[1])
        if not unsteady.max(initial=0) <= allowed / 4:
            continue
        if not apart.max(initial=0) <= allowed:
            place = np.unravel_index(int(np.argmax(np.nan_to_num(apart, nan=np.inf))), a.shape)
            at = tuple(map(int, place))
            found[name] = f"{a[place]} for {b[place]} at {at} of {a.shape}"
    return found


def check(case: Case, device: str) -> str:
    """Return what is wrong with a case, "" for nothing; refused forms are nothing."""
    if not case.outputs:
        return ""
    try:
        got = on_clnn(case, device)
    except UnsupportedOpError:
        return ""
    except Exception as err:  # any error of a valid network is a finding
        return f"{type(err).__name__}: {str(err)[:300]}"
    return "; ".join(f"{name}: {how}" for name, how in differences(case, got).items())


def minimise(case: Case, device: str) -> Case:
    """Return a smaller case that is wrong still: one output, fewer nodes, plainer options."""
    for name in case.outputs:
        one = _pruned(replace(case, outputs=(name,)))
        if check(one, device):
            case = one
            break
    for node in list(case.net.nodes):
        inputs = [*case.net.inputs, *node.output]
        kept = [n for n in case.net.nodes if n is not node]
        net = replace(case.net, inputs=inputs, nodes=kept)
        if not set(node.output) & set(case.outputs):
            smaller = _pruned(replace(case, net=net))
            case = smaller if check(smaller, device) else case
    defaults = clnn.Options()
    for key in case.options:
        plain = replace(case, options={**case.options, key: getattr(defaults, key)})
        case = plain if check(plain, device) else case
    return case


def _pruned(case: Case) -> Case:
    """Return the case without what its outputs do not hang on."""
    wanted, nodes = set(case.outputs), []
    for node in reversed(case.net.nodes):
        if wanted & set(node.output):
            nodes.insert(0, node)
            wanted |= set(node.input)
    net = replace(
        case.net,
        nodes=nodes,
        inputs=[n for n in case.net.inputs if n in wanted],
        consts=[n for n in case.net.consts if n in wanted],
    )
    return replace(case, net=net)


def keep(case: Case, folder: Path) -> None:
    """Write a case as files that `replay` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(case.net.model(case.outputs), str(folder / "model.onnx"))
    np.savez(folder / "inputs.npz", **case.net.feeds)
    (folder / "options.json").write_text(json.dumps(case.options), "utf-8")


def replay(folder: Path, device: str) -> str:
    """Return what is wrong with a case that was kept."""
    model = onnx.load(str(folder / "model.onnx"))
    with np.load(folder / "inputs.npz") as feeds:
        values = {name: feeds[name] for name in feeds.files}
    options = json.loads((folder / "options.json").read_text("utf-8"))
    outputs = tuple(o.name for o in model.graph.output)
    with clnn.compile_model(model, device, clnn.Options(**options)) as session:
        got = session(values)
    for tensor in model.graph.initializer:
        values[tensor.name] = onnx.numpy_helper.to_array(tensor)
    values |= evaluate(model, {i.name: values[i.name] for i in model.graph.input})
    consts = [t.name for t in model.graph.initializer]
    net = Network(values, [i.name for i in model.graph.input], consts, list(model.graph.node))
    return str(differences(Case(net, outputs, options), got) or "")


def worker(first: int, count: int, device: str, folder: Path) -> None:
    """Check networks and say of each what became of it, a line of JSON each."""
    for seed in range(first, first + count):
        print(json.dumps({"seed": seed}), flush=True)
        case = draw(seed)
        wrong = check(case, device)
        text = ""
        if wrong:
            case = minimise(case, device)
            text = onnx.printer.to_text(case.net.model(case.outputs).graph)[:1500]
            keep(case, folder / str(seed))
        ops = [node.op_type for node in case.net.nodes]
        row = {"seed": seed, "wrong": wrong, "ops": ops, "options": case.options, "text": text}
        print(json.dumps(row), flush=True)


def run(first: int, count: int, device: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each network, checked in children; one that dies or hangs is a finding."""
    end = first + count
    while first < end:
        command = [sys.executable, __file__, "--worker", str(first), str(end - first)]
        command += ["--device", device, "--keep", str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            at = first
            for line in child.stdout:
                if not line.startswith("{"):
                    continue
                row = json.loads(line)
                at = row["seed"]
                if "wrong" in row:
                    first = at + 1
                    yield row
        if first < end:
            yield {
                "seed": at,
                "wrong": f"the process ended with status {child.returncode}",
                "ops": [],
            }
            first = at + 1


def main() -> int:
    args = _arguments()
    if args.worker:
        worker(*args.worker, args.device, args.keep)
        return 0
    if args.replay:
        wrong = replay(args.replay, args.device)
        print(wrong or "nothing differs")
        return int(bool(wrong))
    spans = [(args.seed, LONG if args.long else args.count)]
    if args.fresh:
        spans.append((int(time.time()) * 1000 % 2**40, args.fresh))
    bad, met = 0, set()
    for first, count in spans:
        print(f"networks {first} to {first + count - 1}", flush=True)
        for row in run(first, count, args.device, args.keep):
            met |= set(row["ops"])
            if row["wrong"]:
                bad += 1
                print(
                    f"{row['seed']}: {row['wrong']}\n  {row.get('options')}\n{row.get('text', '')}"
                )
                print(f"  python tools/fuzz/networks.py --replay {args.keep / str(row['seed'])}")
    print(f"{sum(c for _, c in spans)} networks of {len(met)} operators, {bad} wrong")
    return int(bad > 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--long", action="store_true", help=f"{LONG} networks")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fresh", type=int, default=0, help="networks from a new seed besides")
    parser.add_argument("--device", default=os.environ.get("CLNN_DEVICE", "auto"))
    parser.add_argument("--keep", type=Path, default=Path("fuzz-findings"))
    parser.add_argument("--replay", type=Path, help="folder of a finding")
    parser.add_argument("--worker", nargs=2, type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

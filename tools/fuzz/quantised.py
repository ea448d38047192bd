#!/usr/bin/env python3
"""Random quantised networks on clnn, and on onnxruntime fused and unfused.

    python tools/fuzz/quantised.py [--count N] [--seed S] [--device D | --host] [--keep FOLDER]

Network S + k is drawn from that number alone: QDQ form, QLinear operators and dynamic quantisation, weights
per tensor and per channel, int8 and uint8, zero points anywhere. Every tensor of bytes that nothing reads is
an output. clnn has to give the same bytes where onnxruntime's two runs agree, and else be as near to the
fused run as the unfused one is. What differs is kept as model.onnx and inputs.npz. --host: the network as
clnn's passes leave it, computed by the operators' numpy references: no kernels, and many networks a minute.
Exit status: 0, 1 where something differs or crashes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools" / "fuzz")]

import numpy as np
import onnx
from children import Limits, end_with_children, rows
from drawing import Feeds, Network, reads
from quantised_kinds import KINDS, QuantisedDrawer
from side_by_side import work_on

import clnn
from clnn.compile import load_graph, prepare
from clnn.errors import ModelError, UnsupportedOpError
from clnn.graph.evaluate import evaluate
from clnn.verification.onnxruntime import OnnxRuntime
from clnn.verification.quantised import Shares, compare

PROPAGATION = ("QDQPropagationTransformer",)
COUNT, GROUP, HOST = 300, 16, "host"


def draw(seed: int) -> tuple[Network, tuple[str, ...]]:
    """Return the network of a seed, and its outputs.

    Nodes that nothing needs are left out: onnxruntime keeps them, and fuses less around what they read.
    """
    drawer = QuantisedDrawer(seed)
    drawer.begin()
    wanted, tries = drawer.up_to(5), 0
    while len(drawer.kept) <= wanted and tries < 30:
        tries += 1
        drawer.one_of(KINDS)(drawer)
    read = {name for node in drawer.net.nodes for name in reads(node)}
    ends = [b for b in drawer.kept if b.name not in read]
    outputs = [drawer.real(b) if drawer.chance.random() < 0.4 else b.name for b in ends]
    return _up_to(drawer.net, outputs), tuple(outputs)


def shares(model: bytes, feeds: Feeds, device: str) -> dict[str, Shares]:
    """Return output -> what clnn's run has in common with onnxruntime's. Raises what clnn raises.

    Where onnxruntime's passes make something that it does not run, the run without the one that moves
    quantisation stands for the fused one, or else the unfused one does.
    """
    unfused = fused = OnnxRuntime(model, 1, optimise=False)(feeds)
    for but in ((), PROPAGATION):
        with suppress(ModelError):
            fused = OnnxRuntime(model, 1, but=but)(feeds)
            break
    if device == HOST:
        got = evaluate(prepare(load_graph(model), clnn.Options()), feeds)
    else:
        with clnn.compile_model(model, device) as session:
            got = session(feeds)
    return {name: compare(got[name], fused[name], unfused[name]) for name in fused}


def wrong(found: dict[str, Shares]) -> str:
    """Return what is wrong, "" for nothing."""
    bad = {n: s for n, s in found.items() if s.missed and s.error > s.own}
    return "; ".join(f"{name}: {share.line()}" for name, share in bad.items())


def check(model: bytes, feeds: Feeds, device: str) -> tuple[str, bool]:
    """Return what is wrong with a model, and whether clnn refused it."""
    try:
        return wrong(shares(model, feeds, device)), False
    except UnsupportedOpError as err:
        return f"refused: {str(err)[:300]}", True
    except Exception as err:  # any error of a valid network is a finding
        return f"{type(err).__name__}: {str(err)[:300]}", False


def smallest(net: Network, outputs: tuple[str, ...], device: str) -> tuple[onnx.ModelProto, Feeds]:
    """Return the part of a network up to the first value that is wrong by itself."""
    for name in (*net.made, *outputs):
        small = _up_to(net, [name])
        if check(small.model([name]).SerializeToString(), small.feeds, device)[0]:
            return small.model([name]), small.feeds
    return net.model(outputs), net.feeds


def _up_to(net: Network, names: Iterable[str]) -> Network:
    """Return the part of a network that makes values."""
    needed, nodes = set(names), []
    for node in reversed(net.nodes):
        if needed & set(node.output):
            nodes.insert(0, node)
            needed |= set(reads(node))
    inputs, consts = ([n for n in some if n in needed] for some in (net.inputs, net.consts))
    return Network(net.values, inputs, consts, nodes, net.opset)


def worker(first: int, count: int, device: str, folder: Path, at_once: int) -> None:
    """Check networks and say of each what became of it, a line of JSON each.

    at_once: how many are checked side by side, so that their programs are built together.
    """

    def one(seed: int) -> tuple[Network, tuple[str, ...], str]:
        net, outputs = draw(seed)
        model = net.model(outputs).SerializeToString() if outputs else b""
        return net, outputs, check(model, net.feeds, device)[0] if outputs else ""

    opened = None if device == HOST else device
    for seed, (net, outputs, said), _ in work_on(first, count, one, at_once, opened):
        text = ""
        if said:
            model, feeds = smallest(net, outputs, device)
            kept = folder / str(seed)
            kept.mkdir(parents=True, exist_ok=True)
            onnx.save(model, str(kept / "model.onnx"))
            np.savez(kept / "inputs.npz", **feeds)
            text = onnx.printer.to_text(model.graph)[:2500]
        ops = [node.op_type for node in net.nodes]
        print(json.dumps({"seed": seed, "wrong": said, "ops": ops, "text": text}), flush=True)


def run(first: int, count: int, device: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each network, checked in children, in groups whose programs are built together."""

    def command(first: int, count: int, at_once: int) -> list[str]:
        worker = [sys.executable, __file__, "--worker", str(first), str(count), str(at_once)]
        return [*worker, "--device", device, "--keep", str(folder)]

    return rows(first, count, command, Limits(group=1 if device == HOST else GROUP))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=1, help="the first network")
    parser.add_argument("--device", default=os.environ.get("CLNN_DEVICE", "auto"))
    parser.add_argument("--host", dest="device", action="store_const", const=HOST)
    parser.add_argument("--keep", type=Path, default=Path("fuzz-findings"))
    parser.add_argument("--worker", nargs=3, type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        first, count, at_once = args.worker
        worker(first, count, args.device, args.keep, at_once)
        return 0
    end_with_children()
    done, bad, met = 0, 0, set()
    for row in run(args.seed, args.count, args.device, args.keep):
        done, bad, met = done + 1, bad + bool(row["wrong"]), met | set(row.get("ops", []))
        if row["wrong"]:
            print(f"{row['seed']}: {row['wrong']}\n{row.get('text', '')}", flush=True)
    print(f"{done} networks of {len(met)} operators, {bad} wrong")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Random quantised networks on clnn, and on onnxruntime fused and unfused.

    python tools/fuzz/quantised.py [--count N] [--seed S] [--device D | --host] [--open] [--keep FOLDER]

Network S + k is drawn from that number alone: QDQ form, QLinear operators and dynamic quantisation, weights
per tensor and per channel, int8 and uint8, zero points anywhere. Every tensor of bytes that nothing reads is
an output. clnn has to give the same bytes where onnxruntime's two runs agree, and else be as near to the
fused run as the unfused one is. What differs is kept as model.onnx and inputs0.npz and so on. --host: the network as
clnn's passes leave it, computed by the operators' numpy references: no kernels, and many networks a minute.
--open: axes of the input have names, and one session is called with one shape after another: larger ones,
ones, an empty batch, and the first again.
Exit status: 0, 1 where something differs or crashes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools" / "fuzz")]

import numpy as np
import onnx
import onnxruntime
from children import Limits, end_with_children, rows, said_of
from drawing import Feeds, Network, around, reads
from open_shapes import Dims, feeds_of_others, names, square, with_names
from quantised_kinds import KINDS, QuantisedDrawer
from side_by_side import work_on

import clnn
from clnn.compile import load_graph, prepare
from clnn.errors import ModelError, ShapeError, UnsupportedOpError
from clnn.graph.evaluate import evaluate
from clnn.verification.onnxruntime import OnnxRuntime
from clnn.verification.quantised import Shares, compare

PROPAGATION = ("QDQPropagationTransformer",)
COUNT, GROUP, HOST = 300, 16, "host"


def draw(seed: int, ties: bool = True) -> tuple[Network, tuple[str, ...]]:
    """Return the network of a seed, and its outputs; ties: of QuantisedDrawer.

    Nodes that nothing needs are left out: onnxruntime keeps them, and fuses less around what they read.
    """
    drawer = QuantisedDrawer(seed, ties)
    drawer.begin()
    wanted, tries = drawer.up_to(5), 0
    while len(drawer.kept) <= wanted and tries < 30:
        tries += 1
        drawer.one_of(KINDS)(drawer)
    read = {name for node in drawer.net.nodes for name in reads(node)}
    ends = [b for b in drawer.kept if b.name not in read]
    outputs = [drawer.real(b) if drawer.chance.random() < 0.4 else b.name for b in ends]
    return _up_to(drawer.net, outputs), tuple(outputs)


@dataclass(frozen=True)
class Case:
    """A network, its outputs, names of open axes, and what else it is fed than its own inputs."""

    net: Network
    outputs: tuple[str, ...]
    dims: Dims = field(default_factory=dict)
    more: tuple[Feeds, ...] = ()

    @property
    def model(self) -> onnx.ModelProto:
        """The case as a model."""
        return with_names(self.net.model(self.outputs), self.dims)

    @property
    def feeds(self) -> list[Feeds]:
        """All that it is fed, in the order of calls, the first one's again at the end."""
        more = [{name: feeds[name] for name in self.net.inputs} for feeds in self.more]
        return [self.net.feeds, *more, *([self.net.feeds] if more else [])]


def draw_open(seed: int) -> Case:
    """Return the network of a seed with open axes, and feeds that onnxruntime takes."""
    # Without ties: a window that is the whole image at some shape alone is added as any other.
    net, outputs = draw(seed, ties=False)
    chance = np.random.default_rng([seed, 1])
    if chance.random() < 0.3:
        net = replace(net, values={**net.values, **square(net.feeds)})
    case = Case(net, outputs, names(net.feeds, chance) if outputs else {})
    if not outputs:
        return case
    plain = OnnxRuntime(case.model.SerializeToString(), 1, optimise=False)

    def takes(feeds: Feeds) -> bool:
        try:
            with around[0]():
                plain(feeds)
            load_graph(case.model, {name: array.shape for name, array in feeds.items()})
        except ModelError:
            return False
        except ShapeError as err:  # onnxruntime rounds the extent of no window up to one
            return "does not fit" not in str(err) or "of extent 0 " in str(err)
        except UnsupportedOpError:
            pass
        return True

    if not takes(net.feeds):  # the square
        return replace(case, outputs=())
    return replace(case, more=tuple(feeds_of_others(net.feeds, case.dims, chance, takes)))


def shares(case: Case, device: str) -> list[dict[str, Shares]]:
    """Return for each call output -> what clnn's run has in common with onnxruntime's. Raises what clnn raises.

    Where onnxruntime's passes make something that it does not run, the run without the one that moves
    quantisation stands for the fused one, or else the unfused one does.
    """
    model = case.model.SerializeToString()
    got = _on_clnn(model, case, device)
    plain = OnnxRuntime(model, 1, optimise=False)
    found = []
    for feeds, made in zip(case.feeds, got, strict=True):
        with around[0]():
            unfused = fused = plain(feeds)
        for but in ((), PROPAGATION):
            with suppress(ModelError), around[0]():
                fused = OnnxRuntime(model, 1, but=but)(feeds)
                break
        found.append({name: compare(made[name], fused[name], unfused[name]) for name in fused})
    return found


def _on_clnn(model: bytes, case: Case, device: str) -> list[Feeds]:
    """Return clnn's outputs for each of the feeds, of one session, or of numpy references."""
    if device != HOST:
        with clnn.compile_model(model, device) as session:
            return [session(feeds) for feeds in case.feeds]
    made = []
    for feeds in case.feeds:
        shapes = {name: array.shape for name, array in feeds.items()} if case.dims else None
        made.append(evaluate(prepare(load_graph(model, shapes), clnn.Options()), feeds))
    return made


def wrong(found: list[dict[str, Shares]]) -> str:
    """Return what is wrong in any call, "" for nothing."""
    said = []
    for number, call in enumerate(found):
        bad = {n: s for n, s in call.items() if s.missed and s.error > s.own}
        place = f" in call {number}" if len(found) > 1 else ""
        said += [f"{name}{place}: {share.line()}" for name, share in bad.items()]
    return "; ".join(said)


def check(case: Case, device: str) -> tuple[str, bool]:
    """Return what is wrong with a case, and whether clnn refused it."""
    try:
        return wrong(shares(case, device)), False
    except UnsupportedOpError as err:
        return f"refused: {str(err)[:300]}", True
    except Exception as err:  # any error of a valid network is a finding
        return said_of(err), False


def smallest(case: Case, device: str) -> Case:
    """Return the part of a network up to the first value that is wrong by itself."""
    for name in (*case.net.made, *case.outputs):
        small = replace(case, net=_up_to(case.net, [name]), outputs=(name,))
        if check(small, device)[0]:
            return small
    return case


def _up_to(net: Network, wanted: Iterable[str]) -> Network:
    """Return the part of a network that makes values."""
    needed, nodes = set(wanted), []
    for node in reversed(net.nodes):
        if needed & set(node.output):
            nodes.insert(0, node)
            needed |= set(reads(node))
    inputs, consts = ([n for n in some if n in needed] for some in (net.inputs, net.consts))
    return Network(net.values, inputs, consts, nodes, net.opset)


def worker(first: int, count: int, device: str, folder: Path, at_once: int, shapes: bool) -> None:
    """Check networks and say of each what became of it, a line of JSON each.

    at_once: how many are checked side by side, so that their programs are built together. shapes: open ones.
    """

    onnxruntime.set_default_logger_severity(4)  # what it does not take is no news

    def one(seed: int) -> tuple[Case, str]:
        case = draw_open(seed) if shapes else Case(*draw(seed))
        return case, check(case, device)[0] if case.outputs else ""

    opened = None if device == HOST else device
    for seed, (case, said), _ in work_on(first, count, one, at_once, opened):
        text = ""
        if said:
            small = smallest(case, device)
            kept = folder / str(seed)
            kept.mkdir(parents=True, exist_ok=True)
            onnx.save(small.model, str(kept / "model.onnx"))
            for number, feeds in enumerate(small.feeds):
                np.savez(kept / f"inputs{number}.npz", **feeds)
            text = onnx.printer.to_text(small.model.graph)[:2500]
        ops = [node.op_type for node in case.net.nodes]
        print(json.dumps({"seed": seed, "wrong": said, "ops": ops, "text": text}), flush=True)


def run(
    first: int, count: int, device: str, folder: Path, shapes: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield a row for each network, checked in children, in groups whose programs are built together."""

    def command(first: int, count: int, at_once: int) -> list[str]:
        worker = [sys.executable, __file__, "--worker", str(first), str(count), str(at_once)]
        worker += ["--open"] if shapes else []
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
    parser.add_argument("--open", action="store_true", help="open axes, shape after shape")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-findings"))
    parser.add_argument("--worker", nargs=3, type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        first, count, at_once = args.worker
        worker(first, count, args.device, args.keep, at_once, args.open)
        return 0
    end_with_children()
    done, bad, met = 0, 0, set()
    for row in run(args.seed, args.count, args.device, args.keep, args.open):
        done, bad, met = done + 1, bad + bool(row["wrong"]), met | set(row.get("ops", []))
        if row["wrong"]:
            print(f"{row['seed']}: {row['wrong']}\n{row.get('text', '')}", flush=True)
    print(f"{done} networks of {len(met)} operators, {bad} wrong")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())

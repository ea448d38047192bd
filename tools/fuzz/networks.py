#!/usr/bin/env python3
"""Random ONNX networks on clnn and on onnxruntime: what differs is made small and kept.

    python tools/fuzz/networks.py [--count N | --long] [--seed S] [--fresh N] [--device D] [--keep FOLDER]
    python tools/fuzz/networks.py --long --from S --state FILE     # goes on where FILE says, if it is there
    python tools/fuzz/networks.py --replay FOLDER/SEED

Network S + k is drawn from that number alone, with random Options, and runs in a child process, so that
a crash is one more finding; so are ten minutes for one, and memory over the limit. --fresh: so many more
from a seed that the clock gives, which is printed. --state: file of what was done so far.
Exit status: 0, 1 where something differs or crashes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools" / "fuzz")]

import onnx
from cases import Case, check, draw, keep, minimise, outcome, replay
from children import Limits, Progress, end_with_children, rows
from side_by_side import work_on

COUNT, LONG, GROUP = 300, 20_000, 16  # networks: at most, and of a group


def worker(first: int, count: int, device: str, folder: Path, at_once: int) -> None:
    """Check networks and say of each what became of it, a line of JSON each.

    at_once: how many are checked side by side, so that their programs are built together.
    """

    def one(seed: int) -> tuple[Case, str, bool]:
        case = draw(seed)
        return case, *outcome(case, device)

    for seed, (case, wrong, refused), cpu in work_on(first, count, one, at_once, device):
        text = ""
        if wrong:
            keep(case, folder / f"{seed}-whole")
            case = minimise(case, lambda smaller: check(smaller, device))
            text = onnx.printer.to_text(case.model.graph)[:1500]
            keep(case, folder / str(seed))
        row = {
            "seed": seed,
            "wrong": wrong,
            "refused": refused,
            "cpu": cpu,
            "ops": [node.op_type for node in case.net.nodes],
            "options": case.options,
            "text": text,
        }
        print(json.dumps(row), flush=True)


def run(
    first: int, count: int, device: str, folder: Path, limits: Limits | None = None
) -> Iterator[dict[str, Any]]:
    """Yield a row for each network, checked in children, in groups whose programs are built together."""

    def command(first: int, count: int, at_once: int) -> list[str]:
        worker = [sys.executable, __file__, "--worker", str(first), str(count), str(at_once)]
        return [*worker, "--device", device, "--keep", str(folder)]

    return rows(first, count, command, limits or Limits(group=GROUP))


def main() -> int:
    args = _arguments()
    if args.worker:
        first, count, at_once = args.worker
        worker(first, count, args.device, args.keep, at_once)
        return 0
    end_with_children()
    if args.replay:
        wrong = replay(args.replay, args.device)
        print(wrong or "nothing differs")
        return int(bool(wrong))
    spans = [(args.seed, LONG if args.long else args.count, args.state)]
    if args.fresh:
        spans.append((int(time.time()) * 1000 % 2**40, args.fresh, None))
    bad = [_span(*span, args) for span in spans]
    return int(sum(bad) > 0)


def _span(seed: int, count: int, state: Path | None, args: argparse.Namespace) -> int:
    """Check networks from a seed on; return how many are wrong."""
    so_far = Progress.of(state, seed)
    first, limits = so_far.first + so_far.done, Limits(args.batch, args.group)
    print(f"networks {first} to {so_far.first + count - 1}", flush=True)
    for row in run(first, count - so_far.done, args.device, args.keep, limits):
        so_far.take(row)
        if row["wrong"]:
            print(f"{row['seed']}: {row['wrong']}\n  {row.get('options')}\n{row.get('text', '')}")
            folder = args.keep / str(row["seed"])
            print(f"  python tools/fuzz/networks.py --replay {folder}", flush=True)
    so_far.save()
    bad = len(so_far.wrong or {})
    for seed, how in (so_far.peer or {}).items():
        print(f"{seed}: not compared: {how}")
    print(
        f"{so_far.done} networks of {len(so_far.met or [])} operators, {bad} wrong,"
        f" {so_far.refused} refused, {so_far.cpu / max(so_far.done, 1):.2f} CPU seconds each"
    )
    return bad


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--long", action="store_true", help=f"{LONG} networks")
    parser.add_argument("--seed", "--from", type=int, default=1, help="the first network")
    parser.add_argument("--state", type=Path, help="file of what was done; goes on from it")
    parser.add_argument("--batch", type=int, default=Limits.batch, help="networks of one child")
    parser.add_argument("--group", type=int, default=GROUP, help="networks that are built together")
    parser.add_argument("--fresh", type=int, default=0, help="networks from a new seed besides")
    parser.add_argument("--device", default=os.environ.get("CLNN_DEVICE", "auto"))
    parser.add_argument("--keep", type=Path, default=Path("fuzz-findings"))
    parser.add_argument("--replay", type=Path, help="folder of a finding")
    parser.add_argument("--worker", nargs=3, type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

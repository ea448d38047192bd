#!/usr/bin/env python3
"""Time shipped defaults against the estimate's choices within whole networks, in turns.

    python tools/benchmarks/check_defaults.py MODEL.onnx... [--device D] [--file F] [--repeats N] [--keep F]

F is a file that `clnn tune --export-defaults` wrote; left out, the file that clnn ships for the
device. Both choices of kernels run side by side, --repeats times: what is printed for each problem is
the median of its gains, the times that the estimate's kernel takes over the default's, and for each
network that of whole runs. Defaults that the estimate chooses by itself are left out, and so are, with
a word, kernels that a problem does not have. --keep writes the lines whose gain is at least 1.02 in
every network that has their problem, and no others.
Exit status: 0, 1 where no line of the file belongs to these networks, 2 where a file cannot be used, 3
without a device.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from clnn.errors import ClnnError, SettingError
from clnn.graph.passes import optimise
from clnn.importers.onnx.importer import import_onnx
from clnn.options import Options
from clnn.runtime.device.device import DeviceInfo
from clnn.runtime.doctor.selection import select_device
from clnn.tune.contest import GAIN
from clnn.tune.defaults import Defaults, defaults_for, device_class, parse
from clnn.tune.network import Choice, DeviceNetwork, Network
from clnn.tune.signature import signature, title


def main() -> int:
    args = _arguments()
    try:
        info = select_device(args.device)
    except ClnnError as err:
        print(err, file=sys.stderr)
        return 3
    worst: dict[str, float] = {}
    try:
        lines, wanted = given(args.file, info)
        for path in args.models:
            for key, gain in check(path, info, wanted, args.repeats).items():
                worst[key] = min(gain, worst.get(key, gain))
    except (ClnnError, OSError) as err:
        print(err, file=sys.stderr)
        return 2
    if args.keep:
        args.keep.write_text("".join(f"{line}\n" for line in kept(lines, worst)), encoding="utf-8")
    good = sum(gain >= GAIN for gain in worst.values())
    print(f"{good} of {len(worst)} defaults are faster than the estimate's kernels by 2 % or more")
    return 0 if worst else 1


def given(file: Path | None, info: DeviceInfo) -> tuple[list[str], Defaults]:
    """Return the lines of a file and its choices, those that are shipped without one.

    Raises SettingError where the file is no file of defaults or is for another device.
    """
    if file is None:
        return [], defaults_for(info)
    lines = file.read_text("utf-8").splitlines()
    try:
        devices, choices = parse(lines)
    except (ValueError, KeyError, TypeError) as err:
        raise SettingError(f"{file} is no file of defaults: {err!r}.") from err
    if devices != device_class(info):
        raise SettingError(f"{file} is for {devices}, the device is {device_class(info)}.")
    return lines, choices


def check(
    path: Path, info: DeviceInfo, wanted: Mapping[str, str], repeats: int
) -> dict[str, float]:
    """Print the gains in a network; return those of its problems by key."""
    graph = optimise(import_onnx(path))
    network = DeviceNetwork(graph, info, Options(tune="off", states=1))
    try:
        found: dict[str, str] = {}
        for step in network.session({}).plan.scheduled:
            sig = signature(step.node.spec, step.problem)
            if wanted.get(sig.key, step.variant.name) != step.variant.name:
                found[sig.key] = title(sig.parts)
        choice = {key: wanted[key] for key in found}
        for step in network.session(choice).plan.scheduled if choice else ():
            key = signature(step.node.spec, step.problem).key
            if choice.get(key, step.variant.name) != step.variant.name:
                print(f"{path.stem}: {found[key]} has no kernel {choice.pop(key)}")
        if not choice:
            print(f"{path.stem}: no defaults")
            return {}
        gained, whole = gains(network, choice, repeats)
    finally:
        network.close()
    print(f"{path.stem}: {len(choice)} defaults, the network {whole:.3f}")
    for key, gain in sorted(gained.items(), key=lambda item: -item[1]):
        print(f"    {gain:.3f}  {found[key]}: {choice[key]}")
    return gained


def gains(network: Network, choice: Choice, repeats: int) -> tuple[dict[str, float], float]:
    """Return by problem, and for whole runs, how many times as long the estimate's kernels take."""
    layers: dict[str, list[float]] = {key: [] for key in choice}
    whole: list[float] = []
    for repeat in range(repeats):
        ways = [{}, choice] if repeat % 2 == 0 else [choice, {}]
        times, runs = network.profile(ways), network.latency(ways)
        turn = 1 if repeat % 2 == 0 else -1
        (before, after), (run, faster) = times[::turn], runs[::turn]
        for key, found in layers.items():
            found.append(before[key] / after[key])
        whole.append(run / faster)
    return {key: median(found) for key, found in layers.items()}, median(whole)


def kept(lines: list[str], worst: Mapping[str, float]) -> list[str]:
    """Return the first line and those whose gain is large enough, with that gain."""
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines[1:]]
    good = [r | {"gain": round(worst[r["key"]], 2)} for r in rows if worst.get(r["key"], 0) >= GAIN]
    return [*lines[:1], *map(json.dumps, good)]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL")
    parser.add_argument("--device", "-d", metavar="D")
    parser.add_argument("--file", type=Path, metavar="F", help="default: what is shipped")
    parser.add_argument("--repeats", type=int, default=5, metavar="N")
    parser.add_argument("--keep", type=Path, metavar="F", help="needs --file")
    args = parser.parse_args()
    if args.keep and not args.file:
        parser.error("--keep wants the lines of --file")
    return args


if __name__ == "__main__":
    sys.exit(main())

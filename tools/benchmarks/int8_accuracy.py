#!/usr/bin/env python3
"""What int8 costs a network in accuracy, and what it gains: against float32 on the same device.

The network is calibrated with variations of one input: moved, mirrored and dimmed. Others of these
and the input itself are the test. Printed are, for each output, the ratio of signal to noise in dB,
the share of inputs whose largest element stays where it was, memory, and times in turns.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import clnn
from clnn.graph.histograms import METHODS

Feed = dict[str, np.ndarray]
ROOM = 6  # of an extent, by which pictures are moved
LIGHT = (0.7, 1.1)


def variations(feed: Mapping[str, np.ndarray], count: int, seed: int) -> list[Feed]:
    """Return moved, mirrored and dimmed copies of the images of a feed."""
    random, found = np.random.default_rng(seed), []
    for number in range(count):
        made = {}
        for name, array in feed.items():
            low = [-(extent // ROOM) for extent in array.shape[-2:]]
            by = [int(random.integers(at, 1 - at)) for at in low]
            moved = np.roll(array[..., ::-1] if number % 2 else array, by, (-2, -1))
            made[name] = np.ascontiguousarray(moved * random.uniform(*LIGHT), array.dtype)
        found.append(made)
    return found


def compare(plain: Any, small: Any, feeds: Sequence[Feed]) -> dict[str, dict[str, float]]:
    """Return output -> its ratio of signal to noise in dB, and the share of equal largest elements."""
    signal: dict[str, list[float]] = {}
    for feed in feeds:
        want, got = plain(feed), small(feed)
        for name, array in want.items():
            right, noise = array.astype(np.float64), got[name] - array.astype(np.float64)
            same = float(got[name].argmax() == array.argmax())
            row = signal.setdefault(name, [0.0, 0.0, 0.0])
            row[:] = [row[0] + (right**2).sum(), row[1] + (noise**2).sum(), row[2] + same]
    return {
        name: {"snr": 10 * float(np.log10(s / max(n, 1e-30))), "top": same / len(feeds)}
        for name, (s, n, same) in signal.items()
    }


def times(sessions: Mapping[str, Any], feed: Feed, rounds: int) -> dict[str, float]:
    """Return session -> milliseconds of a call, the median of interleaved rounds."""
    found: dict[str, list[float]] = {name: [] for name in sessions}
    for number in range(rounds + 2):
        for name, session in sessions.items():
            begin = time.perf_counter()
            session(feed)
            if number > 1:
                found[name].append((time.perf_counter() - begin) * 1e3)
    return {name: median(taken) for name, taken in found.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure one model and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("input", type=Path, help=".npz with the model's inputs, as NAME or in:NAME")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--method", default="minmax", choices=METHODS)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--tests", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args(argv)
    arrays = {name.removeprefix("in:"): array for name, array in np.load(args.input).items()}
    plain = clnn.compile_model(args.model, args.device)
    feed = {port.name: arrays[port.name] for port in plain.inputs}
    samples = variations(feed, args.samples, 0)
    made = clnn.quantize_onnx(args.model, samples, args.device, method=args.method)
    small = clnn.compile_model(made.model, args.device)
    outputs = compare(plain, small, [feed, *variations(feed, args.tests, 1)])
    taken = times({"float32": plain, "int8": small}, feed, args.rounds)
    memory = {"float32": plain.placement.arena_bytes, "int8": small.placement.arena_bytes}
    for name, row in outputs.items():
        print(f"{name:<24} {row['snr']:6.1f} dB, largest element the same {row['top']:.0%}")
    print(f"memory {memory} bytes, time {taken} ms")
    if args.json:
        about = {"model": args.model.name, "outputs": outputs, "memory": memory, "ms": taken}
        args.json.write_text(json.dumps(about, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

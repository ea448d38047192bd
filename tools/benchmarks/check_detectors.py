#!/usr/bin/env python3
"""Run detectors on clnn and onnxruntime: are the boxes the same, and how long does it take?

    python tools/benchmarks/check_detectors.py FILE.onnx ... [--device NAME] [--runs N] [--images N]

Every box of one engine is held against the nearest box of the same label of the other. Where two
scores or overlaps are alike to the last bits, engines choose differently, and onnxruntime too when
it does not optimise the graph: it is printed beside. Where a box is further than --tolerance pixels
from any, the comparisons that part the engines are printed, with what float64 says of them (see
box_ties.py). The exit status is 1 where that is not rounding, unless onnxruntime's own boxes
without optimisation are as far.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools" / "benchmarks")]

import clnn


def distance(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> float:
    """Return the largest distance of a box to the nearest of the same label, in either direction.

    Infinity where there is none, or counts differ.
    """
    if len(ours["boxes"]) != len(theirs["boxes"]):
        return float("inf")
    if not len(ours["boxes"]):
        return 0.0
    apart = np.abs(ours["boxes"][:, None].astype(np.float64) - theirs["boxes"][None]).max(2)
    apart = np.where(ours["labels"][:, None] == theirs["labels"][None], apart, np.inf)
    return float(max(apart.min(0).max(), apart.min(1).max()))


def timed(run: Callable[[], Any], runs: int) -> tuple[float, float]:
    """Return the seconds of the first run, and the median of others."""
    times = []
    for _ in range(runs + 1):
        begin = perf_counter()
        run()
        times.append(perf_counter() - begin)
    return times[0], median(times[1:])


def unoptimised() -> Any:
    """Return options of onnxruntime by which it computes each node of a graph as it is."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def are_ties(path: str, image: np.ndarray, device: str) -> bool:
    """Print the comparisons in which the engines part; return whether rounding decides all of them."""
    import onnxruntime
    from box_ties import explain

    def ours(model: bytes) -> Callable[[Any], Any]:
        return clnn.compile_model(model, device)

    def theirs(model: bytes) -> Callable[[Any], Any]:
        engine = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        names = [info.name for info in engine.get_outputs()]
        return lambda feeds: dict(zip(names, engine.run(None, feeds), strict=True))

    found = explain(path, image, ours, theirs)
    for tie in found or ():
        print(f"  {'tie' if tie.is_one else 'no tie'}: {tie}")
    if not found:
        print("  other boxes: the comparison that parts the engines was not found")
    return bool(found) and all(tie.is_one for tie in found or ())


def check(path: str, args: argparse.Namespace) -> bool:
    """Print the figures of one detector; return whether its boxes are onnxruntime's."""
    import onnxruntime

    begin = perf_counter()
    session = clnn.compile_model(path, args.device)
    compiled = perf_counter() - begin
    cpu = ["CPUExecutionProvider"]
    engine = onnxruntime.InferenceSession(path, providers=cpu)
    plain = onnxruntime.InferenceSession(path, unoptimised(), providers=cpu)
    names = [info.name for info in engine.get_outputs()]
    shape = session.inputs[0].shape
    apart, same, counts = [0.0, 0.0], True, []
    rng = np.random.default_rng(0)
    images = [rng.random(shape, dtype=np.float32) for _ in range(args.images)]
    ours = timed(lambda: session({"image": images[0]}), args.runs)
    theirs = timed(lambda: engine.run(None, {"image": images[0]}), args.runs)
    for image in images:
        want, other = (
            dict(zip(names, e.run(None, {"image": image}), strict=True)) for e in (engine, plain)
        )
        ours_apart, their_own = (distance(x, want) for x in (session({"image": image}), other))
        if ours_apart > args.tolerance:
            same = (are_ties(path, image, args.device) or ours_apart <= their_own) and same
        apart = [max(apart[0], ours_apart), max(apart[1], their_own)]
        counts.append(len(want["boxes"]))
    stages = getattr(session, "stages", ())
    back, crossed = sum(s.read_back for s in stages), sum(s.crossed for s in stages)
    print(
        f"{Path(path).stem:<20} compile {compiled:6.2f} s  first {ours[0]:6.2f} s  later"
        f" {ours[1] * 1e3:7.1f} ms  onnxruntime {theirs[1] * 1e3:7.1f} ms  boxes {counts}"
        f"  largest difference {apart[0]:.4f} px (onnxruntime from itself {apart[1]:.4f})"
        f"  {len(stages)} stages, {back} bytes read back, {crossed} crossed"
    )
    return same


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--images", type=int, default=3)
    parser.add_argument("--tolerance", type=float, default=0.5, help="pixels")
    args = parser.parse_args()
    same = [check(path, args) for path in args.files]
    return int(not all(same))


if __name__ == "__main__":
    sys.exit(main())

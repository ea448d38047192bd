#!/usr/bin/env python3
"""Any shape: kernels that read extents against those made for one shape, and what a new shape costs.

    python tools/benchmarks/bench_shapes.py MODEL... [--device D] [--shapes N] [--seed S] [--rounds R]

MODEL is an .onnx file with one image as input (n, c, h, w), or the name of a network of
tools/benchmarks/make_bench_models.py; batch, height and width are taken as open. Printed for each: the time of the
kernels made for the first shape alone over that of those that serve all, median of rounds in turns; the same for the
last of N random shapes; of all N, the median and the largest time of the first call beyond that of the next ones; and
programs built in these calls. Kernels for small images are made before they begin, as by OpenSession.ready.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools" / "benchmarks")]

import make_bench_models

import clnn

BACKGROUND = clnn.Options(specialise="background")
SIDES = (96, 128, 160, 192, 224, 256, 288, 320)


def main() -> int:
    args = _arguments()
    with tempfile.TemporaryDirectory(prefix="bench-shapes-") as folder:
        print(
            "model, one shape / any shape: at the first, at another, new shape ms (median, largest),"
            " programs built for these"
        )
        for model in args.models:
            path = Path(model)
            if not path.exists():
                path = Path(folder, f"{model}.onnx")
                onnx.save(make_bench_models.MODELS[model](1), path)
            _measure(path, args)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--device", help="as for clnn.compile_model")
    parser.add_argument("--shapes", type=int, default=20, help="new shapes (default 20)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=11, help="rounds in turns (default 11)")
    return parser.parse_args()


def _measure(path: Path, args: argparse.Namespace) -> None:
    model, name, first = _opened(path)
    rng = np.random.default_rng(args.seed)
    feed = {name: rng.standard_normal(first).astype(np.float32)}
    with clnn.compile_model(model, args.device, BACKGROUND) as session:
        session(feed)
        with clnn.compile_model(path, args.device) as alone:
            ratio = _in_turns(alone, session, feed, args.rounds)
        _wait_for_small_images(session)
        built = session.build_counts[1]
        over = []
        for _ in range(args.shapes):
            shape = (int(rng.integers(1, 5)), first[1], *(int(rng.choice(SIDES)) for _ in range(2)))
            other = {name: rng.standard_normal(shape).astype(np.float32)}
            times = [_time(session, other) for _ in range(6)]
            over.append(1e3 * (times[0] - median(times[1:])))
        more = session.build_counts[1] - built
        with clnn.compile_model(model, args.device, shapes={name: shape}) as alone:
            there = _in_turns(alone, session.at({name: shape}), other, args.rounds)
    print(
        f"{path.stem}, {ratio:.3f}, {there:.3f}, {median(over):.0f}, {max(over):.0f}, {more}",
        flush=True,
    )


def _opened(path: Path) -> tuple[bytes, str, tuple[int, ...]]:
    """Return the model with batch, height and width open, its input, and the shape that it had."""
    model = onnx.load(path)
    value = model.graph.input[0]
    dims = value.type.tensor_type.shape.dim
    shape = tuple(int(d.dim_value) or 1 for d in dims)
    for axis, symbol in ((0, "batch"), (2, "height"), (3, "width")):
        dims[axis].Clear()
        dims[axis].dim_param = symbol
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    return model.SerializeToString(), value.name, shape


def _wait_for_small_images(session: Any) -> None:
    """Wait for kernels that are made by themselves, without asking for others."""
    gears: Any = session._gears
    gears.wait(None)


def _in_turns(one: Any, other: Any, feed: dict[str, Any], rounds: int) -> float:
    """Return the median over rounds of one's median time over the other's."""
    ratios = []
    for turn in range(rounds):
        order = (one, other) if turn % 2 else (other, one)
        times = {id(s): median(_time(s, feed) for _ in range(9)) for s in order}
        ratios.append(times[id(one)] / times[id(other)])
    return median(ratios)


def _time(session: Any, feed: dict[str, Any]) -> float:
    began = perf_counter()
    session(feed)
    return perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())

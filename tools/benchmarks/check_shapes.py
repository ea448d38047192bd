#!/usr/bin/env python3
"""Run one model at many shapes: is anything built after the first, are results right, is memory bounded?

    python tools/benchmarks/check_shapes.py MODEL --dims NAME=FROM:TO[:STEP]... [--first NAME=N...] [--shapes N]
        [--alone N] [--device D] [--seed S] [--integers NAME=N...] [--tolerance E]

MODEL is an .onnx file or what bench_shapes.py takes; where it has no open dimension, batch, height and width are
taken as open. Each extent of the first of --dims comes in turn, with random ones of the others; with --shapes, N
random shapes come instead. Each is held against onnxruntime, and the last --alone of them against a network compiled
for that shape alone. Integer inputs are 1, or drawn from 1 to N by --integers. The exit status is 1 where a program
was built after the first call (and what ready waits for), or an error passes the tolerance.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import onnx
import onnxruntime

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools" / "benchmarks")]

from bench_shapes import BACKGROUND, MODELS, error, opened, wait_for_small_images

import clnn

REPORTS = 10  # of the process's memory
Extents = Mapping[str, int]


def main() -> int:
    args = _arguments()
    with tempfile.TemporaryDirectory(prefix="check-shapes-") as folder:
        path = Path(args.model)
        if not path.exists():
            path = Path(folder, f"{args.model}.onnx")
            onnx.save(MODELS[args.model](1), path)
        return _check(path, args)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--dims", nargs="+", required=True, metavar="NAME=FROM:TO[:STEP]")
    parser.add_argument("--first", nargs="*", default=[], metavar="NAME=N")
    parser.add_argument("--shapes", type=int, default=0, help="random ones (default: in turn)")
    parser.add_argument("--alone", type=int, default=0, help="compared with a network of their own")
    parser.add_argument("--device", help="as for clnn.compile_model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--integers", nargs="*", default=[], metavar="NAME=N")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    return parser.parse_args()


def _check(path: Path, args: argparse.Namespace) -> int:
    rng = np.random.default_rng(args.seed)
    model = path.read_bytes()
    if not any(d.dim_param for i in onnx.load(path).graph.input for d in _dims(i)):
        model = opened(path)[0]
    integers, firsts = _numbers(args.integers), _numbers(args.first)
    ranges = {name: _range(text) for name, text in (one.split("=") for one in args.dims)}
    every = list(_extents(rng, ranges, args.shapes))
    first = {name: firsts.get(name, values[0]) for name, values in ranges.items()}
    engine = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    with clnn.compile_model(model, args.device, BACKGROUND) as session:
        session(_feeds(rng, session, first, integers))
        wait_for_small_images(session)
        built, memory, times, worst, other = session.build_counts[1], [_resident()], [], 0.0, 0.0
        for turn, extents in enumerate(every):
            feeds = _feeds(rng, session, extents, integers)
            began = perf_counter()
            outs = session(feeds)
            times.append(1e3 * (perf_counter() - began))
            worst = max(worst, *map(error, outs.values(), engine.run(list(outs), feeds)))
            if (turn + 1) % -(-len(every) // REPORTS) == 0:
                memory.append(_resident())
        for extents in every[len(every) - args.alone :]:
            feeds = _feeds(rng, session, extents, integers)
            shapes = {name: array.shape for name, array in feeds.items()}
            with clnn.compile_model(model, args.device, shapes=shapes) as alone:
                want = alone(feeds)
            got = session(feeds)
            other = max(other, *(error(got[name], want[name]) for name in want))
        more = session.build_counts[1] - built
    print(
        f"{path.stem}: {len(every)} shapes, {more} programs built after the first, largest error {worst:.1e}, call ms"
        f" (median, largest) {median(times):.1f}, {max(times):.1f}, MB {' '.join(map(str, memory))}"
    )
    if args.alone:
        print(f"{path.stem}: {args.alone} shapes against networks of their own: {other:.1e}")
    return int(more > 0 or max(worst, other) > args.tolerance)


def _dims(value: Any) -> Any:
    return value.type.tensor_type.shape.dim


def _numbers(given: Sequence[str]) -> dict[str, int]:
    return {name: int(number) for name, number in (one.split("=") for one in given)}


def _range(text: str) -> range:
    """Return the extents of FROM:TO:STEP, TO among them; of one number, that one."""
    low, *more = map(int, text.split(":"))
    high, step = (*more, *(low, 1)[len(more) :])
    return range(low, high + 1, step)


def _extents(
    rng: np.random.Generator, ranges: Mapping[str, range], count: int
) -> Iterator[Extents]:
    """Yield each extent of the first dimension with random ones of the others, or random ones of all."""
    turns = next(iter(ranges))
    for extent in [None] * count if count else ranges[turns]:
        found = {name: int(rng.choice(values)) for name, values in ranges.items()}
        yield found if extent is None else {**found, turns: extent}


def _feeds(
    rng: np.random.Generator, session: Any, extents: Extents, integers: Mapping[str, int]
) -> dict[str, Any]:
    """Return random inputs of these extents."""
    feeds = {}
    for info in session.inputs:
        shape = tuple(d if isinstance(d, int) else extents[d] for d in info.shape)
        if info.dtype.kind == "f":
            feeds[info.name] = rng.standard_normal(shape).astype(info.dtype)
        else:
            feeds[info.name] = rng.integers(1, integers.get(info.name, 1) + 1, shape, info.dtype)
    return feeds


def _resident() -> int:
    """Return how many megabytes of memory the process has."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) // 1024


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Time of an item in Session.stream beside a loop of calls, in turns: does overlapping gain?

    python tools/benchmarks/bench_stream.py [MODEL] [--device D] [--depth N] [--items N] [--rounds N]
        [--prepare | --take S]

Without MODEL: one convolution that shrinks a picture of 3x2160x3840 sixteenfold, so that copies
weigh as much as they can. Each item is a new picture: one of a few that are there, with --prepare
made from bytes to floats in between, or with --take after a wait of S seconds as for a camera.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import clnn
from clnn.graph.ir import Graph, Node, check
from clnn.ops.conv.spec import Conv2d
from clnn.ops.shared.window import Window
from clnn.types import TensorType

PICTURE = (1, 3, 2160, 3840)
Feed = dict[str, np.ndarray]


def large_input() -> Graph:
    """Return one convolution of 4x4 windows, 4 apart, from a large picture to 8 channels."""
    weights = np.random.default_rng(0).standard_normal((8, 3, 4, 4)).astype(np.float32)
    spec = Conv2d(Window((4, 4), (4, 4), (1, 1), (0, 0), (0, 0)))
    types = {"x": TensorType(PICTURE), "w": TensorType(weights.shape)}
    types["y"] = spec.infer([types["x"], types["w"]])[0]
    return check(
        Graph((Node("conv", spec, ("x", "w"), ("y",)),), types, {"w": weights}, ("x",), {"y": "y"})
    )


def pictures(
    session: clnn.Session, count: int, prepare: bool, take: float
) -> Callable[[], Iterator[Feed]]:
    """Return a function that begins an iterator over `count` items."""
    random = np.random.default_rng(1)
    raw = [
        {i.name: random.integers(0, 256, i.shape, np.uint8) for i in session.inputs}
        for _ in range(3)
    ]
    ready = [{n: as_floats(a) for n, a in one.items()} for one in raw]

    def items() -> Iterator[Feed]:
        for number in range(count):
            if take:
                time.sleep(take)
            if prepare:
                yield {n: as_floats(a) for n, a in raw[number % 3].items()}
            else:
                yield ready[number % 3]

    return items


def as_floats(picture: np.ndarray) -> np.ndarray:
    """Return bytes as float32 around zero."""
    return (picture.astype(np.float32) - 127.5) / 58.0


def seconds_each(outputs: Iterator[dict[str, np.ndarray]], count: int) -> float:
    """Return the time of an item of an iterator of outputs."""
    begin = time.perf_counter()
    for _ in outputs:
        pass
    return (time.perf_counter() - begin) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--device")
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--items", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--take", type=float, default=0.0, metavar="S")
    args = parser.parse_args()
    with clnn.compile_model(args.model or large_input(), args.device) as session:
        items = pictures(session, args.items, args.prepare, args.take)
        loop, stream = [], []
        for number in range(args.rounds + 1):
            one = seconds_each((session(feed) for feed in items()), args.items)
            two = seconds_each(session.stream(items(), args.depth), args.items)
            if number:
                loop.append(one)
                stream.append(two)
        ratios = sorted(a / b for a, b in zip(loop, stream, strict=True))
        print(
            f"{session.device.title}\n{args.model or 'large picture'}: calls"
            f" {median(loop) * 1e3:.2f} ms, stream of depth {args.depth}"
            f" {median(stream) * 1e3:.2f} ms an item; calls over stream"
            f" {median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
        )


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Any shape: kernels that read extents against those made for one shape, and what a new shape costs.

    python tools/benchmarks/bench_shapes.py MODEL... [--device D] [--shapes N] [--seed S] [--rounds R] [--touched MB]
        [--trace MS] [--batch-alone]

MODEL is an .onnx file with one image as input (n, c, h, w), the name of a network of
tools/benchmarks/make_bench_models.py, or "recogniser", of lines of text 48 pixels high; batch, height and width are
taken as open, but for that height, and with --batch-alone the batch only.

Printed for each: the time of the kernels made for the first shape alone over that of those that serve all, median of
rounds in turns; the same for the last of N random shapes; of all N, the median and the largest time of the first call
beyond that of the next ones, and how many took more than 40 ms; the median and the largest CPU time in which a shape
is made ready, by the calling thread; what the same shapes, ready now, take more in a call after the same rest, and
how many more than 40 ms, which is the machine's; programs built in these calls; and the largest error against
onnxruntime's outputs, relative to the largest magnitude of each. Kernels for small images are made before they begin,
as by OpenSession.ready. A virtual machine takes long for memory that it never had: TOUCHED MB of it are written and
given back before, 0 for none. With --trace, each new shape that costs more than MS is printed with what its thread,
the process's other threads and other processes did meanwhile, as the system counts it. With --rounds 0 networks are
not compared with those made for one shape.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter, sleep, thread_time
from typing import Any

import numpy as np
import onnx
import onnxruntime

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools" / "benchmarks")]

import make_bench_models
from shape_trace import Moment, between, loop_ms

import clnn

BACKGROUND = clnn.Options(specialise="background")
TEXT_HEIGHT = 48
# For which onnxruntime's threads look for work, once they are there and after each run, on processors of a call.
REST_S = 0.05
MOST_MS = 40  # that a new shape is to take over its run
SIDES = (96, 128, 160, 192, 224, 256, 288, 320)


def main() -> int:
    args = _arguments()
    np.ones(args.touched << 20, np.uint8)
    with tempfile.TemporaryDirectory(prefix="bench-shapes-") as folder:
        print(
            "model, one shape / any shape: at the first, at another, new shape ms over its run (median,"
            f" largest, over {MOST_MS}), CPU ms to make it ready (median, largest), the same shape, ready, over its"
            f" run after the same rest (median, largest, over {MOST_MS}), programs built for these, error"
        )
        for model in args.models:
            path = Path(model)
            if not path.exists():
                path = Path(folder, f"{model}.onnx")
                onnx.save(MODELS[model](1), path)
            _measure(path, args)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--device", help="as for clnn.compile_model")
    parser.add_argument("--shapes", type=int, default=20, help="new shapes (default 20)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=11, help="rounds in turns (default 11)")
    parser.add_argument("--touched", type=int, default=2048, help="MB of memory (default 2048)")
    parser.add_argument("--batch-alone", action="store_true", help="sides are not open")
    parser.add_argument("--trace", type=float, metavar="MS", help="print shapes that cost more")
    return parser.parse_args()


def _measure(path: Path, args: argparse.Namespace) -> None:
    model, name, first = opened(path, args.batch_alone)
    rng = np.random.default_rng(args.seed)
    feed = {name: rng.standard_normal(first).astype(np.float32)}
    with clnn.compile_model(model, args.device, BACKGROUND) as session:
        session(feed)
        ratio = there = float("nan")
        if args.rounds:
            with clnn.compile_model(path, args.device) as alone:
                ratio = _in_turns(alone, session, feed, args.rounds)
        wait_for_small_images(session)
        built = session.build_counts[1]
        engine = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        over, made, known, errors = [], [], [], []
        sleep(REST_S)
        for shape in _shapes(rng, first, args.shapes, args.batch_alone):
            other = {name: rng.standard_normal(shape).astype(np.float32)}
            loop, before = loop_ms(), Moment.now()
            began, whole = thread_time(), perf_counter()
            session.prepare({name: shape})
            made.append(1e3 * (thread_time() - began))
            ready = perf_counter() - whole
            between_them = Moment.now()
            called = perf_counter()
            outs = session(other)
            whole = ready + perf_counter() - called
            after = Moment.now()
            later = [_time(session, other) for _ in range(5)]
            over.append(1e3 * (whole - median(later)))
            if args.trace is not None and over[-1] > args.trace:
                _tell(shape, over[-1], (before, between_them, after), later, (loop, loop_ms()))
            errors += map(error, outs.values(), engine.run(list(outs), other))
            sleep(REST_S)
            known.append(1e3 * (_time(session, other) - median(later)))
            session(feed)
            sleep(REST_S)
        more = session.build_counts[1] - built
        if args.rounds:
            with clnn.compile_model(model, args.device, shapes={name: shape}) as alone:
                there = _in_turns(alone, session.at({name: shape}), other, args.rounds)
    print(
        f"{path.stem}, {ratio:.3f}, {there:.3f}, {_spread(over)}, {median(made):.0f}, {max(made):.0f}, "
        f"{_spread(known)}, {more}, {max(errors):.1e}",
        flush=True,
    )


def _spread(times: list[float]) -> str:
    return f"{median(times):.0f}, {max(times):.0f}, {sum(t > MOST_MS for t in times)}"


def _tell(
    shape: tuple[int, ...],
    cost: float,
    moments: tuple[Moment, Moment, Moment],
    later: list[float],
    loops: tuple[float, float],
) -> None:
    """Print where the time of a shape went: before and after it was ready, beside its later runs."""
    before, ready, after = moments
    runs = " ".join(f"{1e3 * run:.1f}" for run in later)
    print(f"  {shape}: {cost:.1f} ms over its run; later runs {runs}")
    print(f"    a loop took {loops[0]:.2f} before, {loops[1]:.2f} after")
    print(f"    made ready: {between(before, ready)}")
    print(f"    first call: {between(ready, after)}", flush=True)


def recogniser(n: int) -> onnx.ModelProto:
    """Return a network that reads lines of text: convolutions, a bidirectional LSTM, scores of letters."""
    net = make_bench_models.Net("recogniser", (n, 3, TEXT_HEIGHT, 320))
    x = "x"
    for width, stride in ((32, 2), (64, 2), (128, 2), (128, 1)):
        x = net.relu(net.conv(net.relu(net.conv(x, width, 3, stride)), width, 3))
    columns = net.add("ReduceMean", [x], axes=[2], keepdims=0)
    steps = net.add("Transpose", [columns], perm=[2, 0, 1])
    hidden = 96
    weights = [net.random(2, 4 * hidden, k, gain=1.0) for k in (128, hidden)]
    y = net.add("LSTM", [steps, *weights], hidden_size=hidden, direction="bidirectional")
    y = net.add("Transpose", [y], perm=[2, 0, 1, 3])
    y = net.add("Reshape", [y, net.const(np.array([0, 0, 2 * hidden], np.int64))])
    y = net.add("MatMul", [y, net.random(2 * hidden, 100, gain=1.0)])
    return net.model(net.add("Softmax", [y], axis=-1))


MODELS = {**make_bench_models.MODELS, "recogniser": recogniser}


def _shapes(
    rng: np.random.Generator, first: tuple[int, ...], count: int, batch_alone: bool = False
) -> list[tuple[int, ...]]:
    """Return random shapes, each another one than those before and the first; batches in turn."""
    if batch_alone:
        return [(first[0] + 1 + k, *first[1:]) for k in range(count)]
    found: dict[tuple[int, ...], None] = {}
    while len(found) < count:
        height, width = (int(rng.choice(SIDES)) for _ in range(2))
        if first[2] == TEXT_HEIGHT:
            height, width = TEXT_HEIGHT, int(rng.integers(20, 900))
        shape = (int(rng.integers(1, 5)), first[1], height, width)
        if shape != first:
            found[shape] = None
    return list(found)


def error(got: Any, want: Any) -> float:
    """Return the largest error relative to the largest magnitude that is wanted."""
    if got.shape != want.shape:
        return float("inf")
    return float(np.abs(got - want).max() / np.abs(want).max())


def opened(path: Path, batch_alone: bool = False) -> tuple[bytes, str, tuple[int, ...]]:
    """Return the model with batch, height and width open, its input, and the shape that it had.

    batch_alone: height and width are not.
    """
    model = onnx.load(path)
    value = model.graph.input[0]
    dims = value.type.tensor_type.shape.dim
    shape = tuple(int(d.dim_value) or 1 for d in dims)
    axes = (0,) if batch_alone else (0, 3) if path.stem == "recogniser" else (0, 2, 3)
    for axis in axes:
        symbol = {0: "batch", 2: "height", 3: "width"}[axis]
        dims[axis].Clear()
        dims[axis].dim_param = symbol
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    return model.SerializeToString(), value.name, shape


def wait_for_small_images(session: Any) -> None:
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

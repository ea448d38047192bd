#!/usr/bin/env python3
"""LSTM and GRU layers beside onnxruntime's, in turns, and how near they are to what the device reaches.

    python tools/benchmarks/bench_recurrent.py [--device D] [--hidden N ...] [--steps N ...] [--batch N ...]
        [--ops LSTM GRU] [--rounds N] [--pause MS]

A step reads all recurrent weights once, and multiplies them by each sequence's state: its least time is the
longer of both, at the rate at which all units read as many bytes again and again, and at the rate of
multiply-adds, both measured just before. The inputs' product adds its multiply-adds. Widths of input and
state are equal, states are given, results are compared before anything is timed. Each engine's calls are timed
as in a loop, behind others of its own, or with a pause before each. Engines rest in between, since threads
of onnxruntime keep cores busy for a while after its runs. `empty` is the least time
of a kernel that does nothing and the wait for it, in the same turns; `reached` is what the layer needs at
least of what it took, `with a launch` that and `empty`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import clnn
from clnn.runtime.device.device import select
from clnn.runtime.drivers.loader import load
from clnn.runtime.measure.peak import PeakBench

GATES = {"GRU": 3, "LSTM": 4}
VECTOR, ITEM = 16, 4  # floats of a vector, bytes of one
REST = 0.05  # seconds: onnxruntime's threads look for work for 32 ms after a run, and take cores for it
AHEAD, AHEAD_S, TIMED = (
    40,
    0.02,
    8,
)  # calls ahead, and the seconds they may take; calls that are timed
READ = """\
__attribute__((reqd_work_group_size(1, 1, 1)))
__kernel void read_again(__global const float16 *src, __global float16 *dst, const int count, const int rounds)
{
    __global const float16 *mine = src + get_global_id(0) * count;
    float16 a = 0, b = 0, c = 0, d = 0;
    for (int n = 0; n < rounds; ++n)
        for (int k = 0; k + 4 <= count; k += 4) {
            a += mine[k];
            b += mine[k + 1];
            c += mine[k + 2];
            d += mine[k + 3];
        }
    dst[get_global_id(0)] = a + b + c + d;
}
"""
Sizes = tuple[str, int, int, int]


class Limits:
    """What a device reaches: floating-point operations, and bytes read from near memory, per second."""

    def __init__(self, device: str) -> None:
        self.info = select(device)
        self.bench = PeakBench(self.info)
        self.bench.device.build({"read_again": READ})
        self.flops = self.bench.flops()
        self._rates: dict[int, float] = {}

    def rate(self, nbytes: int) -> float:
        """Return bytes per second, where the units read `nbytes` between them over and over."""
        if nbytes not in self._rates:
            units = self.info.compute_units
            count = max(nbytes // (units * VECTOR * ITEM), 4)
            src = self.bench.buffer(count * units * VECTOR * ITEM)
            dst = self.bench.buffer(units * VECTOR * ITEM)
            kernel = self.bench.device.kernel(READ, "read_again")
            rounds = max(1, (1 << 29) // nbytes)
            kernel.set_args(src, dst, np.int32(count), np.int32(rounds))
            seconds = self.bench.best(kernel, units, 1)
            self._rates[nbytes] = rounds * count * units * VECTOR * ITEM / seconds
        return self._rates[nbytes]

    def empty(self) -> Callable[[], object]:
        """Return what enqueues a kernel that does nothing, and waits for it."""
        cl, device = load(), self.bench.device
        kernel, queue = device.kernel(READ, "read_again"), cl.CommandQueue(device.context)
        self._buffers = [self.bench.buffer(VECTOR * ITEM) for _ in range(2)]  # arguments hold none
        kernel.set_args(*self._buffers, np.int32(0), np.int32(0))

        def call() -> None:
            cl.enqueue_nd_range_kernel(queue, kernel, (1,), (1,))
            queue.finish()

        call()
        return call

    def least(self, sizes: Sizes) -> float:
        """Return the least seconds of a layer."""
        op, hidden, steps, batch = sizes
        weights = GATES[op] * hidden * hidden
        multiply = 2 * weights * batch / self.flops
        return steps * (max(weights * ITEM / self.rate(weights * ITEM), multiply) + multiply)


def layer(sizes: Sizes) -> tuple[bytes, dict[str, np.ndarray]]:
    """Return a model of one layer, and its feeds."""
    op, hidden, steps, batch = sizes
    rng, rows = np.random.default_rng(0), GATES[op] * hidden

    def normal(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / hidden**0.5).astype(np.float32)

    weights = {"W": normal(1, rows, hidden), "R": normal(1, rows, hidden), "B": normal(1, 2 * rows)}
    feeds = {"X": normal(steps, batch, hidden) * np.float32(hidden**0.5)}
    names = ["h0", "c0"] if op == "LSTM" else ["h0"]
    feeds |= {name: normal(1, batch, hidden) for name in names}
    outputs = ["Y", "Y_h", "Y_c"][: len(names) + 1]
    node = helper.make_node(op, ["X", "W", "R", "B", "", *names], outputs, hidden_size=hidden)
    graph = helper.make_graph(
        [node],
        "layer",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in feeds.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return model.SerializeToString(), feeds


def in_turns(
    calls: list[Callable[[], object]], rounds: int, pause: float = 0.0
) -> list[list[float]]:
    """Return the seconds of each call, some of one after some of the other, and a rest before each.

    pause: seconds before each call; without, some go ahead that are not timed.
    """
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, seconds in zip(calls, taken, strict=True):
            time.sleep(REST)
            end = time.perf_counter() + AHEAD_S
            call()
            for _ in range(0 if pause else AHEAD):
                if time.perf_counter() < end:
                    call()
            for _ in range(TIMED):
                if pause:
                    time.sleep(pause)
                begin = time.perf_counter()
                call()
                seconds.append(time.perf_counter() - begin)
    return taken


def measured(sizes: Sizes, device: str, limits: Limits, rounds: int, pause: float) -> str:
    """Return one line of the table."""
    model, feeds = layer(sizes)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = limits.info.compute_units
    other = onnxruntime.InferenceSession(model, options)
    with clnn.compile_model(model, device) as session:
        pairs = zip(other.run(None, feeds), session.run(None, feeds), strict=True)
        error = max(float(np.abs(a - b).max()) for a, b in pairs)
        calls = [lambda: other.run(None, feeds), lambda: session.run(None, feeds), limits.empty()]
        theirs, ours, empty = in_turns(calls, rounds, pause)
    least, (op, hidden, steps, batch) = limits.least(sizes), sizes
    figures = [median(theirs), median(ours), min(theirs), min(ours), least, min(empty)]
    cells = [op, hidden, steps, batch, *(f"{1e6 * f:.0f}" for f in figures)]
    cells += [f"{median(theirs) / median(ours):.2f}", f"{min(theirs) / min(ours):.2f}"]
    reached = least / min(ours), (least + min(empty)) / min(ours)
    cells += [*(f"{share:.2f}" for share in reached), f"{error:.0e}"]
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--ops", nargs="+", default=["LSTM", "GRU"], choices=GATES)
    parser.add_argument("--hidden", nargs="+", type=int, default=[128, 256, 512])
    parser.add_argument("--steps", nargs="+", type=int, default=[1, 16, 274])
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--pause", type=float, default=0.0, help="milliseconds before each call")
    args = parser.parse_args()
    limits = Limits(args.device)
    print(f"{limits.info.title}: {limits.flops / 1e9:.0f} GFLOP/s; times in us\n")
    heads = (
        "op hidden steps batch onnxruntime clnn least_onnxruntime least_clnn possible empty ratio"
    )
    heads += " ratio_of_least reached with_a_launch error"
    print("| " + " | ".join(h.replace("_", " ") for h in heads.split()) + " |")
    print("| --- " + "| ---: " * (len(heads.split()) - 1) + "|")
    for sizes in product(args.ops, args.hidden, args.steps, args.batch):
        print(measured(sizes, args.device, limits, args.rounds, args.pause / 1e3), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

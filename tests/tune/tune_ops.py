"""An op whose kernels go wrong in every way, a graph of it, and tuning runs in other processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from clnn.graph.ir import Graph, Node, check
from clnn.layout import TensorLayout
from clnn.ops.launch import In, Launch, Out, Scratch, Variant
from clnn.ops.problem import Operand, Problem
from clnn.ops.spec import OpSpec
from clnn.target import Target
from clnn.types import TensorType

HERE = Path(__file__).resolve().parent
KERNELS = HERE / "kernels"
MODES = (
    "right",
    "slow",
    "broken",
    "wrong",
    "unwritten",
    "outside",
    "input",
    "tires",
    "crash",
    "endless",
)


@dataclass(frozen=True)
class Double(OpSpec):
    """y = 2 x. The first mode is the ranked one, all are candidates."""

    modes: tuple[str, ...] = ("slow", "right")

    kind = "double"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        assert inputs[0] is not None
        return (inputs[0],)

    def reference(self, *inputs):
        return (2 * inputs[0],)

    def variants(self, problem: Problem) -> list[Variant]:
        return [double(problem, self.modes[0]), double(problem, "slow")]

    def candidates(self, problem: Problem) -> list[Variant]:
        return [double(problem, mode, k) for k, mode in enumerate(self.modes)]


def double(problem: Problem, mode: str, cost: float = 0.0) -> Variant:
    params = {
        "name": f"double_{mode}",
        "size": problem.outputs[0].type.size,
        "mode": mode,
        "wg": (1,),
    }
    args = (In(0), Scratch("runs", 4), Out(0))
    launch = Launch("tuned_double.cl.mako", params, args, (1,), (1,))
    return Variant(f"double_{mode}", (launch,), cost)


def problem(size: int = 100) -> Problem:
    operand = Operand(TensorType((size,)), TensorLayout.make((size,)))
    return Problem((operand,), (operand,), Target())


def graph(*modes: str, size: int = 100) -> Graph:
    """x -> Double -> y."""
    types = {n: TensorType((size,)) for n in ("x", "y")}
    return check(
        Graph((Node("double", Double(modes), ("x",), ("y",)),), types, {}, ("x",), {"y": "y"})
    )


def doubled(session) -> bool:
    """Whether a session of `graph` is right."""
    x = np.arange(100, dtype=np.float32)
    return bool((session({"x": x})["y"] == 2 * x).all())


TUNING = """
import json, sys
from tune_ops import graph
from clnn.options import Options
from clnn.runtime.process import worker
from clnn.runtime.device.device import select
from clnn.tune.bench import Limits
from clnn.tune.tuner import TuneRequest, tune_graph

begin = worker.Worker._start
def start(self):
    begin(self)
    print(json.dumps({"child": self.pid}), flush=True)
worker.Worker._start = start
want = json.loads(sys.argv[1])
limits = Limits(run_s=want["run_s"], jobs=1)
request = TuneRequest("full", 60.0, resume=want["resume"])
report = tune_graph(graph(*want["modes"], size=want["size"]), select(want["device"]), Options(), request,
                    limits=limits)
layer = report.layers[0]
print(json.dumps({"state": layer.state, "after": layer.after, "faults": layer.faults}), flush=True)
"""


def start_tuner(
    device: str, *modes: str, size: int = 100, run_s: float = 20.0, resume: bool = False
) -> subprocess.Popen[str]:
    """Start a process that tunes `graph`; it prints its children's pids and then its result."""
    import json

    want = {"device": device, "modes": modes, "size": size, "run_s": run_s, "resume": resume}
    path = [str(HERE), *sys.path]
    return subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path[:] = {path!r}\n{TUNING}", json.dumps(want)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "CLNN_KERNEL_PATH": str(KERNELS)},
    )

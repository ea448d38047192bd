"""Cases of whole graphs: views, joined and split tensors, borders that are refilled, a network."""

from __future__ import annotations

from collections.abc import Callable

import harness
import numpy as np
from harness import check_memory, compare, normal
from simulator import DEVICE
from table import put

from clnn.graph.ir import Graph, Node, check
from clnn.graph.passes import optimise
from clnn.ops._base import OpSpec
from clnn.ops._functions import Step
from clnn.ops._window import Window
from clnn.ops.conv2d import Conv2d
from clnn.ops.eltwise import Eltwise
from clnn.ops.gemm import Gemm
from clnn.ops.pool import Pool
from clnn.ops.reduce import Reduce
from clnn.ops.resize import Resize
from clnn.ops.softmax import Softmax
from clnn.ops.views import Concat, Reshape, Slice, slice_of
from clnn.options import Options
from clnn.runtime.device import select
from clnn.runtime.session import Session
from clnn.types import TensorType
from clnn.verification.reference import reference_values


class Builder:
    """A graph made node by node; methods return the name of the new value."""

    def __init__(self, **inputs: tuple[int, ...]) -> None:
        self.types = {n: TensorType(s) for n, s in inputs.items()}
        self.inputs = tuple(inputs)
        self.nodes: list[Node] = []
        self.consts: dict[str, np.ndarray] = {}

    def add(self, spec: OpSpec, *inputs: str | None) -> str:
        """Add a node."""
        out = f"v{len(self.nodes)}"
        self.types[out] = spec.infer([None if n is None else self.types[n] for n in inputs])[0]
        self.nodes.append(Node(f"n{len(self.nodes)}", spec, inputs, (out,)))
        return out

    def const(self, *shape: int) -> str:
        """Add a constant of small random numbers."""
        name = f"w{len(self.consts)}"
        self.consts[name] = normal(shape, len(self.consts)) / 3
        self.types[name] = TensorType(shape)
        return name

    def conv(self, x: str, oc: int, k: int = 3, stride: int = 1, group: int = 1) -> str:
        """Add a convolution with a bias, padded to keep the extent."""
        weights = self.const(oc, self.types[x].shape[1] // group, k, k)
        side = (k // 2, k // 2)
        win = Window((k, k), (stride, stride), (1, 1), side, side)
        return self.add(Conv2d(win, group), x, weights, self.const(oc))

    def graph(self, *outputs: str) -> Graph:
        """Return the graph with these outputs."""
        return check(Graph(tuple(self.nodes), self.types, self.consts, self.inputs,
                           {f"out{k}": n for k, n in enumerate(outputs)}))  # fmt: skip


def run(graph: Graph, arena: str) -> None:
    """Compile a graph as it is used, run it twice and compare with the references of its ops."""
    feeds = {name: normal(graph.types[name].shape, 50) for name in graph.inputs}
    want = reference_values(graph, feeds)
    options = Options(guard=harness.GUARD, arena=arena)
    with Session(optimise(graph), select(DEVICE), options) as session:
        for _ in range(2):
            got = session(feeds)
            for public, name in graph.outputs.items():
                compare(got[public], want[name], 1e-4, public)
        if arena == "separate":
            check_memory(session, "graph")


RELU = Eltwise((Step("relu"),))
ADD = Eltwise((Step("add", operand=1),))


def joined() -> Graph:
    """Convolutions written into one joined tensor with a border, and read from it again."""
    b = Builder(x=(1, 3, 5, 6))
    parts = [b.conv("x", 4), b.conv("x", 5, 1)]
    whole = b.add(Concat(1), *parts)
    return b.graph(b.conv(whole, 4), whole)


def cut() -> Graph:
    """A convolution of a slice, whose cut side has no border: taps outside are checked."""
    b = Builder(x=(1, 5, 6, 5))
    v = b.add(RELU, b.conv("x", 9))
    top = b.add(slice_of((1, 9, 6, 5), 2, 0, 4), v)
    front = b.add(slice_of((1, 9, 6, 5), 1, 2, 5), v)
    return b.graph(b.conv(top, 7), b.conv(front, 4), b.conv(front, 5, group=5))


def reversed_() -> Graph:
    """A tensor added to itself upside down."""
    b = Builder(x=(1, 4, 5, 3))
    v = b.conv("x", 4)
    back = b.add(Slice((0, 0, 4, 0), (1, 4, 5, 3), (1, 1, -1, 1)), v)
    return b.graph(b.add(ADD, back, v))


def borders() -> Graph:
    """Borders of several widths in one arena: some are filled again in each run."""
    b = Builder(x=(1, 3, 6, 6))
    v = "x"
    for k in (3, 1, 5, 3):
        v = b.add(RELU, b.conv(v, 4, k))
    return b.graph(v)


def network() -> Graph:
    """A small network: residual block, pooling, upsampling, joined branches, classifier."""
    b = Builder(x=(1, 3, 7, 7))
    stem = b.add(RELU, b.conv("x", 8, stride=2))
    block = b.conv(b.add(RELU, b.conv(stem, 8, group=8)), 8, 1)
    body = b.add(RELU, b.add(ADD, block, stem))
    small = b.add(Pool(Window((2, 2), (2, 2), (1, 1), (0, 0), (0, 0)), "max"), body)
    large = b.add(Resize((1, 8, 4, 4), (1.0, 1.0, 2.0, 2.0)), small)
    both = b.conv(b.add(Concat(1), body, large), 9)
    mean = b.add(Reduce("mean", (2, 3)), both)
    flat = b.add(Reshape((1, 9)), mean)
    scores = b.add(Gemm(), flat, b.const(9, 10), b.const(10))
    return b.graph(b.add(Softmax((1,)), scores))


GRAPHS: tuple[Callable[[], Graph], ...] = (joined, cut, reversed_, borders, network)
for _make in GRAPHS:
    put(f"graph_{_make.__name__.strip('_')}", lambda make=_make: run(make(), "separate"))
for _make in (borders, network):
    # Oclgrind takes what the host writes into the middle of a buffer for uninitialised.
    put(
        f"graph_{_make.__name__}_in_one_arena",
        lambda make=_make: run(make(), "shared"),
        modes=("optimised",),
    )

"""Cases of whole graphs: views, joined and split tensors, borders that are refilled, networks."""

from __future__ import annotations

from collections.abc import Callable

import harness
from harness import check_memory, compare, normal
from simulator import DEVICE
from small_graphs import GRAPHS, Builder
from table import MODES, put

from clnn.graph.ir import Graph
from clnn.graph.passes import optimise
from clnn.ops.conv.transpose import ConvTranspose
from clnn.ops.movement.views import Concat, Reshape, Slice, slice_of
from clnn.options import Options
from clnn.runtime.device.device import select
from clnn.runtime.run.session import Session
from clnn.verification.reference import reference_values


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


def joined() -> Graph:
    """Convolutions written into one joined tensor with a border, and read from it again."""
    b = Builder(x=(1, 3, 5, 6))
    whole = b.add(Concat(1), b.conv("x", 4), b.conv("x", 5, 1))
    return b.graph(b.conv(whole, 4), whole)


def cut() -> Graph:
    """A convolution of a slice, whose cut side has no border: taps outside are checked."""
    b = Builder(x=(1, 5, 6, 5))
    v = b.post_ops("relu", b.conv("x", 9))
    top = b.add(slice_of((1, 9, 6, 5), 2, 0, 4), v)
    front = b.add(slice_of((1, 9, 6, 5), 1, 2, 5), v)
    return b.graph(b.conv(top, 7), b.conv(front, 4), b.conv(front, 5, group=5))


def planes() -> Graph:
    """A transposed convolution of rows seen as planes, without a border: taps outside are checked."""
    b = Builder(x=(1, 30))
    spec = ConvTranspose((2, 5), (2, 1), (1, 2), (0, 3), (6, 4))
    return b.graph(b.add(spec, b.add(Reshape((1, 5, 3, 2)), "x"), b.const(5, 6, 2, 5)))


def reversed_() -> Graph:
    """A tensor added to itself upside down."""
    b = Builder(x=(1, 4, 5, 3))
    v = b.conv("x", 4)
    back = b.add(Slice((0, 0, 4, 0), (1, 4, 5, 3), (1, 1, -1, 1)), v)
    return b.graph(b.post_ops("add", back, v))


def borders() -> Graph:
    """Borders of several widths in one arena: some are filled again in each run."""
    b = Builder(x=(1, 3, 6, 6))
    v = "x"
    for k in (3, 1, 5, 3):
        v = b.post_ops("relu", b.conv(v, 4, k))
    return b.graph(v)


MAKERS: tuple[Callable[[], Graph], ...] = (
    joined,
    cut,
    planes,
    reversed_,
    borders,
    *GRAPHS.values(),
)
# In optimised kernels Oclgrind makes 255 of a comparison's 1, which other kernels then read.
LOGICAL = (GRAPHS["rows"],)
for _make in MAKERS:
    put(
        f"graph_{_make.__name__.strip('_')}",
        lambda make=_make: run(make(), "separate"),
        modes=MODES[1:] if _make in LOGICAL else MODES,
    )
for _make in (borders, GRAPHS["classifier"]):
    # Oclgrind takes what the host writes into the middle of a buffer for uninitialised.
    put(
        f"graph_{_make.__name__}_in_one_arena",
        lambda make=_make: run(make(), "shared"),
        modes=("optimised",),
    )

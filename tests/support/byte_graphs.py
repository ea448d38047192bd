"""Networks in bytes for tests: one node between conversions, and what numpy makes of a whole graph."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from harness import run_variants, single_node, variant_names

from clnn.graph.ir import Graph, Node, check
from clnn.graph.passes.quantise import quantise
from clnn.ops.elementwise.storage import Convert
from clnn.ops.spec import OpSpec
from clnn.plan.layouts import Hints
from clnn.types import F32, narrow, stored_s8, widen


def as_stored(array: np.ndarray, scale: float) -> np.ndarray:
    """Return float32 values as they come back from bytes."""
    return widen(narrow(array, stored_s8(scale)), stored_s8(scale))


def stored_values(graph: Graph, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return value name -> array in float32, each rounded as the graph stores it."""
    values: dict[str, np.ndarray] = {}

    def keep(name: str, array: np.ndarray) -> None:
        real = graph.types[name].dtype == F32
        array = np.asarray(array, np.float32) if real else np.asarray(array)
        stored = graph.stored.get(name)
        values[name] = array if stored is None else widen(narrow(array, stored), stored)

    for name, array in {**graph.consts, **feeds}.items():
        keep(name, array)
    for node in graph.nodes:
        made = node.spec.reference(*[None if n is None else values[n] for n in node.inputs])
        for name, array in zip(node.outputs, made, strict=True):
            keep(name, array)
    return values


def convolution(
    spec: OpSpec,
    arrays: Sequence[np.ndarray | None],
    consts: Sequence[int],
    stored: Mapping[int, float],
    result: float = 0.0,
) -> Graph:
    """Return the graph of a convolution in bytes, its output `o0`.

    stored: operand -> scale at which it lies in bytes (input 0 always does, at what makes its largest
    magnitude 127). result: scale of the output in bytes, 0 for float32.
    """
    first = arrays[0]
    assert first is not None
    graph = quantise(single_node(spec, arrays, consts), {"i0": float(np.abs(first).max())})
    assert any(n.spec.kind == "conv2d" and n.spec.arith.name == "s8" for n in graph.nodes)
    return in_bytes(graph, stored, result)


def in_bytes(graph: Graph, stored: Mapping[int, float], result: float) -> Graph:
    """Return `graph` with inputs, and the result, of the node "node" in bytes at these scales."""
    types, kept, nodes, inputs = dict(graph.types), dict(graph.stored), [], {}
    for which, scale in stored.items():
        name = f"i{which}"
        inputs[name] = f"{name}:bytes"
        types[inputs[name]], kept[inputs[name]] = types[name], stored_s8(scale)
        nodes.append(Node(f"to_{name}", Convert(), (name,), (inputs[name],)))
    for node in graph.nodes:
        if node.name == "node":
            node = replace(node, inputs=tuple(inputs.get(n or "", n) for n in node.inputs))
        if node.name == "node" and result:
            types["made"], kept["made"] = types["o0"], stored_s8(result)
            nodes.append(replace(node, outputs=("made",)))
            node = Node("from_made", Convert(), ("made",), ("o0",))
        nodes.append(node)
    return check(replace(graph, nodes=tuple(nodes), types=types, stored=kept))


def single(
    spec: OpSpec,
    arrays: Sequence[np.ndarray],
    scales: Sequence[float],
    result: float,
    consts: Sequence[int] = (),
) -> Graph:
    """Return the graph of a node that reads and writes bytes at these scales."""
    return in_bytes(single_node(spec, arrays, consts), dict(enumerate(scales)), result)


def check_graph(
    device: str,
    graph: Graph,
    inputs: Sequence[np.ndarray | None],
    off: float = 0.0,
    only: str = "",
    hints: Hints | None = None,
) -> list[str]:
    """Run every variant of "node", whose results may be `off` by that much; returns their names."""
    given = {f"i{k}": a for k, a in enumerate(inputs) if a is not None}
    feeds = {name: a for name, a in given.items() if name in graph.inputs}
    want = stored_values(graph, feeds)["o0"]
    hints = hints or Hints()
    hints = Hints({}, {n: order for n, order in hints.orders.items() if n in graph.types})
    names = [n for n in variant_names(graph, device, hints) if only in n]
    assert names, only
    limit = 1.001 * off / float(np.abs(want[np.isfinite(want)]).max())
    run_variants(graph, device, dict.fromkeys(names, limit), hints, inputs, [want])
    return names


DP4A = re.compile(
    r'__asm__\("dp4a.u32.s32 %0, %1, %2, %0;" : "\+r"\(sum_\) : "r"\(([\w.]+)\), "r"\(([\w.]+)\)\);'
)
FOUR = """int four(int a, int b)
{
    const uchar4 x = as_uchar4(a);
    const char4 y = as_char4(b);
    return x.s0 * y.s0 + x.s1 * y.s1 + x.s2 * y.s2 + x.s3 * y.s3;
}
"""


def dp4a_in_c(source: str) -> tuple[str, int]:
    """Return a kernel with a function of what dp4a does in its place, and in how many places."""
    text, count = DP4A.subn(r"sum_ += four(\1, \2);", source)
    return FOUR + text if count else text, count

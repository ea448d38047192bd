"""Results of elementwise ops and softmax in the memory order of what they are made of, where only products read them.

Products take rows and columns of any pitches. So a result whose one large source has another axis
innermost than row-major order, as heads of tokens have, need not be turned on its way.
"""

from __future__ import annotations

from collections.abc import Mapping

from clnn.graph.ir import Graph, Node
from clnn.layout import TensorLayout
from clnn.plan.alias import Link, children_of
from clnn.traced import is_open

READERS = ("gemm", "attention")  # kinds of ops that take any pitches
VIEWS = ("transpose",)  # that exist of any layout
FOLLOWERS = ("eltwise", "softmax")  # kinds of ops whose result may lie as what it is made of


def followed(
    graph: Graph, links: Mapping[str, Link], orders: Mapping[str, tuple[int, ...]]
) -> dict[str, str]:
    """Return the result of a follower -> the source whose memory order it may have, in the order of nodes."""
    consumers, children = graph.consumers(), children_of(dict(links))
    public = {*graph.outputs.values(), *graph.inputs}

    def only_products_read(name: str) -> bool:
        if name in public or any(link.view.kind not in VIEWS for link in children.get(name, ())):
            return False
        return all(
            node.spec.kind in READERS
            or (node.spec.kind in VIEWS and all(map(only_products_read, node.outputs)))
            for node in consumers[name]
        )

    found: dict[str, str] = {}
    for node in graph.nodes:
        source = _source(node, graph, links) if node.spec.kind in FOLLOWERS else None
        if source is None or source in graph.consts:
            continue
        (out,) = node.outputs
        own_order = orders[out] == tuple(range(graph.types[out].rank))
        if out not in links and own_order and only_products_read(out):
            found[out] = source
    return found


def order_of(source: TensorLayout) -> tuple[int, ...]:
    """Return the axes by falling pitch where the innermost one is not the last, else row-major."""
    axes = range(source.rank)
    if any(map(is_open, (*source.shape, *source.pitches))):
        return tuple(axes)
    order = tuple(sorted(axes, key=lambda axis: -source.pitches[axis]))
    moved = [axis for axis in order if source.shape[axis] > 1]
    return order if moved and moved[-1] != max(moved) else tuple(axes)


def _source(node: Node, graph: Graph, links: Mapping[str, Link]) -> str | None:
    """Return the one input that has all elements of the result in memory, None where there is none, or more."""
    shape = graph.types[node.outputs[0]].shape
    whole = {n for n in node.inputs if n is not None and graph.types[n].shape == shape}
    whole -= {n for n in whole if n in links and links[n].view.kind == "expand"}
    return whole.pop() if len(whole) == 1 else None

"""Nodes in an order in which each comes after what it reads, and the graphs inside of nodes."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence

import onnx

from clnn.errors import ModelError
from clnn.importers.onnx.limits import show


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs in a node's attributes."""
    for attr in node.attribute:
        if attr.HasField("g"):
            yield attr.g
        yield from attr.graphs


def ordered(
    nodes: Sequence[onnx.NodeProto], known: Callable[[str], bool]
) -> Sequence[onnx.NodeProto]:
    """Return the nodes so that each comes after what it reads; sorted ones stay as they are.

    known: whether a name is visible before the first node. Raises ModelError for a name that
    nothing makes and for a cycle.
    """
    makers = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    needs: list[set[int]] = []
    for node in nodes:
        inputs = {n for n in reads(node) if n and (n in makers or not known(n))}
        lost = sorted(n for n in inputs if n not in makers)
        if lost:
            raise ModelError(
                f"node {show(node.name)} ({node.op_type[:80]}) reads {show(lost[0])}, which "
                "nothing makes. The file is not valid."
            )
        needs.append({makers[n] for n in inputs})
    if all(max(n, default=-1) < place for place, n in enumerate(needs)):
        return nodes
    return [nodes[place] for place in _sorted_places(nodes, needs)]


def _sorted_places(nodes: Sequence[onnx.NodeProto], needs: Sequence[set[int]]) -> list[int]:
    readers: dict[int, list[int]] = {}
    for place, wanted in enumerate(needs):
        for maker in wanted:
            readers.setdefault(maker, []).append(place)
    left = [len(wanted) for wanted in needs]
    ready = [place for place, count in enumerate(left) if not count]
    order: list[int] = []
    while ready:
        place = heapq.heappop(ready)
        order.append(place)
        for reader in readers.get(place, ()):
            left[reader] -= 1
            if not left[reader]:
                heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        stuck = [show(n.name or n.op_type) for n, count in zip(nodes, left, strict=True) if count]
        raise ModelError(
            f"{len(stuck)} nodes wait for each other in a cycle: {', '.join(stuck[:8])}. "
            "The file is not valid."
        )
    return order


def is_ordered(graph: onnx.GraphProto) -> bool:
    """Whether each node of a graph comes after what it reads of others there, and each makes names of its own."""
    late = {name for node in graph.node for name in node.output if name}
    count = sum(bool(name) for node in graph.node for name in node.output)
    if len(late) < count:
        return False
    for node in graph.node:
        if not late.isdisjoint(reads(node)):
            return False
        late -= set(node.output)
    return True


def reads(node: onnx.NodeProto) -> set[str]:
    """Return the names that a node reads, those that its graphs take from outside included."""
    names = set(node.input)
    for graph in subgraphs(node):
        own = {v.name for v in graph.input} | {t.name for t in graph.initializer}
        own |= {t.values.name for t in graph.sparse_initializer}
        own |= {name for inner in graph.node for name in inner.output}
        inside = {v.name for v in graph.output}
        for inner in graph.node:
            inside |= reads(inner)
        names |= inside - own
    return names

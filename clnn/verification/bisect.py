"""Bisection: the first node of a network, as it really is compiled, whose result is wrong.

A network cut off behind a node has that node's own kernels, layouts and memory plan, so that
defects of the plan show as well as those of kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from clnn.compile import compile_fixed
from clnn.graph.ir import Graph, Node
from clnn.graph.passes.dead import remove_dead
from clnn.options import Options
from clnn.types import Array
from clnn.verification.compare import Difference, difference
from clnn.verification.reference import reference_values
from clnn.verification.report import Bisection


def prefix(graph: Graph, count: int) -> Graph:
    """Return the first `count` nodes of `graph`; what others still read of them is its output."""
    kept, rest = graph.nodes[:count], graph.nodes[count:]
    read = {name for node in rest for name in node.inputs} | set(graph.outputs.values())
    outputs = {name: name for node in kept for name in node.outputs if name in read}
    return remove_dead(replace(graph, nodes=kept, outputs=outputs))


def alone(graph: Graph, node: Node) -> Graph:
    """Return the graph of one node whose computed inputs are graph inputs."""
    names = [n for n in node.inputs if n is not None and n not in graph.consts]
    outputs = {name: name for name in node.outputs}
    return remove_dead(
        replace(graph, nodes=(node,), inputs=tuple(dict.fromkeys(names)), outputs=outputs)
    )


def bisect_graph(
    graph: Graph,
    device: str | int | None,
    options: Options,
    feeds: Mapping[str, Array],
    tolerance: float,
    right: Mapping[str, Array] | None = None,
) -> Bisection | None:
    """Return the first wrong node of `graph`, or None when the whole network is right.

    Wrong is what differs from the reference by more than `tolerance`, relative to the largest. right: what
    values are, where that is not this graph's reference.
    """
    right = reference_values(graph, feeds) if right is None else right
    search = _Search(graph, device, options, feeds, tolerance, right)
    low, high = 0, len(graph.nodes)
    if search.wrong(high) is None:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if search.wrong(middle) is None:
            low = middle
        else:
            high = middle
    return search.explain(high)


class _Search:
    def __init__(
        self,
        graph: Graph,
        device: str | int | None,
        options: Options,
        feeds: Mapping[str, Array],
        tolerance: float,
        right: Mapping[str, Array],
    ) -> None:
        self.graph, self.device, self.options = graph, device, options
        self.feeds, self.tolerance = feeds, tolerance
        self.right = right
        self.compiled = 0
        self.variants: dict[str, str] = {}

    def wrong(self, count: int, arena: str = "") -> Difference | None:
        """Return the worst value that the first `count` nodes get wrong."""
        cut = prefix(self.graph, count)
        feeds = {name: self.feeds[name] for name in cut.inputs}
        return self._worst(cut, feeds, replace(self.options, arena=arena or self.options.arena))

    def _worst(
        self, graph: Graph, feeds: Mapping[str, Array], options: Options, every: bool = False
    ) -> Difference | None:
        self.compiled += 1
        with compile_fixed(graph, self.device, options) as session:
            got = session(feeds)
            self.variants |= {step.node.layer: step.variant.name for step in session.plan.scheduled}
        differences = [difference(n, got[n], self.right[n], self.tolerance) for n in graph.outputs]
        listed = (d for d in differences if every or not d.passed)
        return max(listed, key=lambda d: d.relative, default=None)

    def explain(self, count: int) -> Bisection:
        """Return what is known of node count - 1, the first wrong one."""
        node = self.graph.nodes[count - 1]
        total = self.wrong(count)
        single = alone(self.graph, node)
        feeds = {n: self.right[n].astype(self.graph.types[n].dtype.numpy) for n in single.inputs}
        by_itself = self._worst(single, feeds, self.options, every=True)
        unshared = self.wrong(count, "separate") is None
        assert total is not None and by_itself is not None
        return Bisection(
            node.name,
            node.spec.kind,
            node.origin,
            self.variants[node.name],
            total,
            by_itself,
            unshared,
            self.compiled,
        )

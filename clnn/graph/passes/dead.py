"""Dead code: nodes, outputs of nodes, and constants that no output of the network depends on."""

from __future__ import annotations

from dataclasses import replace

from clnn.graph.ir import Graph, Node


def remove_dead(graph: Graph) -> Graph:
    """Return `graph` without nodes, constants and types that no output needs.

    Nodes leave out outputs where their ops can.
    """
    needed = set(graph.outputs.values())
    kept = []
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs):
            kept.append(_without_unused(node, needed))
            needed |= {n for n in node.inputs if n is not None}
    kept.reverse()
    used = needed | set(graph.inputs) | {n for node in kept for n in node.outputs}
    return replace(
        graph,
        nodes=tuple(kept),
        types={k: t for k, t in graph.types.items() if k in used},
        consts={k: c for k, c in graph.consts.items() if k in needed},
    )


def _without_unused(node: Node, needed: set[str]) -> Node:
    unused = frozenset(k for k, name in enumerate(node.outputs) if name not in needed)
    spec = node.spec.without(unused) if unused else None
    if spec is None:
        return node
    left = tuple(name for k, name in enumerate(node.outputs) if k not in unused)
    return replace(node, spec=spec, outputs=left)

"""Dead code: nodes and constants that no output depends on."""

from __future__ import annotations

from dataclasses import replace

from clnn.graph.ir import Graph


def remove_dead(graph: Graph) -> Graph:
    """Return `graph` without nodes, constants and types that no output needs."""
    needed = set(graph.outputs.values())
    kept = []
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs):
            kept.append(node)
            needed |= {n for n in node.inputs if n is not None}
    kept.reverse()
    used = needed | set(graph.inputs) | {n for node in kept for n in node.outputs}
    return replace(
        graph,
        nodes=tuple(kept),
        types={k: t for k, t in graph.types.items() if k in used},
        consts={k: c for k, c in graph.consts.items() if k in needed},
    )

"""A concatenation with a channel shuffle behind it becomes one that takes turns between its inputs."""

from __future__ import annotations

from dataclasses import replace

from clnn.graph.ir import Graph, Node
from clnn.ops.movement.views import Concat, Reshape, Transpose


def fuse_shuffle(graph: Graph) -> Graph:
    """Return `graph` with concat, reshape, transpose, reshape as mixed concats where that is the same.

    The shuffle must have as many groups as the concatenation has inputs, all of one shape, and
    nothing else may read what lies between.
    """
    producers = {node.outputs[0]: node for node in graph.nodes}
    uses = graph.consumers()
    public = set(graph.outputs.values())
    changed: dict[str, Node] = {}
    gone: set[str] = set()
    for node in graph.nodes:
        chain = _chain(node, producers)
        if chain is None:
            continue
        inner = [n.outputs[0] for n in chain]
        if any(len(uses[name]) != 1 or name in public for name in inner):
            continue
        concat = chain[-1]
        if not _is_shuffle(node, chain, graph):
            continue
        assert isinstance(concat.spec, Concat)
        origin = f"{concat.origin} + {node.origin}"
        spec = replace(concat.spec, mixed=True)
        changed[node.name] = Node(concat.name, spec, concat.inputs, node.outputs, origin)
        gone |= {n.name for n in chain}
    return graph.with_nodes([changed.get(n.name, n) for n in graph.nodes if n.name not in gone])


def _chain(node: Node, producers: dict[str, Node]) -> tuple[Node, Node, Node] | None:
    """Return the transpose, the reshape and the concat above a reshape, None where it is another."""
    found = []
    for kind in (Reshape, Transpose, Reshape, Concat):
        if node is None or not isinstance(node.spec, kind):
            return None
        found.append(node)
        above = producers.get(node.inputs[0] or "")
        if above is None:
            return None if kind is not Concat else (found[1], found[2], found[3])
        node = above
    return found[1], found[2], found[3]


def _is_shuffle(last: Node, chain: tuple[Node, Node, Node], graph: Graph) -> bool:
    turn, split, concat = chain
    assert isinstance(concat.spec, Concat) and isinstance(turn.spec, Transpose)
    axis, parts = concat.spec.axis, len(concat.inputs)
    shapes = {graph.types[n].shape for n in concat.inputs if n is not None}
    joined = graph.types[concat.outputs[0]].shape
    if concat.spec.mixed or len(shapes) != 1 or None in concat.inputs or len(joined) < 2:
        return False
    each = joined[axis] // parts
    wanted = (*joined[:axis], parts, each, *joined[axis + 1 :])
    perm = list(range(len(wanted)))
    perm[axis], perm[axis + 1] = axis + 1, axis
    same = graph.types[split.outputs[0]].shape == wanted and list(turn.spec.perm) == perm
    return same and graph.types[last.outputs[0]].shape == joined

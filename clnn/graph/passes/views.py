"""Chains of view ops shortened: reshape of reshape, transpose of transpose, those that do nothing."""

from __future__ import annotations

from clnn.graph.ir import Graph, Node
from clnn.ops.movement.views import Expand, Reshape, Slice, Transpose, refine
from clnn.records import changed


def merge_views(graph: Graph, fixed: bool = True) -> Graph:
    """Return `graph` with adjacent reshapes and transposes merged and idle ones dropped.

    fixed: as in optimise.
    """
    made: dict[str, Node] = {}
    renamed: dict[str, str] = {}
    nodes = []
    for node in graph.nodes:
        inputs = tuple(None if n is None else renamed.get(n, n) for n in node.inputs)
        if inputs != node.inputs:
            node = changed(node, inputs=inputs)
        node = _merged(node, made, graph, fixed)
        source = node.inputs[0] if node.inputs else None
        if source is not None and _idle(node, graph, fixed):
            renamed[node.outputs[0]] = source
            continue
        made.update(dict.fromkeys(node.outputs, node))
        nodes.append(node)
    outputs = {public: renamed.get(v, v) for public, v in graph.outputs.items()}
    return graph.with_nodes(nodes, outputs=outputs)


def _merged(node: Node, made: dict[str, Node], graph: Graph, fixed: bool) -> Node:
    """Read past a producer of the same kind (which dead code removal drops when unused)."""
    before = made.get(node.inputs[0] or "") if node.inputs else None
    if before is None:
        return node
    if isinstance(node.spec, Reshape) and isinstance(before.spec, Reshape):
        source = graph.types[before.inputs[0] or ""].shape
        joins = not fixed or _joins(source, before.spec, node.spec)
        return changed(node, inputs=before.inputs) if joins else node
    if isinstance(node.spec, Transpose) and isinstance(before.spec, Transpose):
        perm = tuple(before.spec.perm[a] for a in node.spec.perm)
        return changed(node, spec=Transpose(perm), inputs=before.inputs)
    return node


def _joins(source: tuple[int, ...], first: Reshape, second: Reshape) -> bool:
    """Whether two reshapes are no worse as one: elements of each alone may be evenly spaced, of both not.

    So it is with an image put together from windows and cut into others.
    """
    return (
        refine(source, second.shape) is not None
        or refine(source, first.shape) is None
        or refine(first.shape, second.shape) is None
    )


def _idle(node: Node, graph: Graph, fixed: bool) -> bool:
    if isinstance(node.spec, Expand):
        return fixed and node.spec.shape == graph.types[node.inputs[0] or ""].shape
    if isinstance(node.spec, Slice):
        steps = set(node.spec.steps) <= {1}
        return steps and node.spec.extents == graph.types[node.inputs[0] or ""].shape
    if isinstance(node.spec, Reshape):
        return node.spec.shape == graph.types[node.inputs[0] or ""].shape
    return isinstance(node.spec, Transpose) and node.spec.perm == tuple(range(len(node.spec.perm)))

"""Networks whose extents know what they are at another shape: what plans of all shapes share."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from operator import is_not
from typing import Any

from clnn.graph.ir import Graph, Node
from clnn.records import changed
from clnn.traced import opened as open_number
from clnn.types import TensorType


def opened(graph: Graph, other: Graph, first: Graph) -> Graph:
    """Return `graph` with extents, and numbers of its specs, as they are in `other` beside them.

    Open are those that differ between `other` and either of the graphs; where the graphs' nodes are
    not the same, they stay as they are. first: the graph that other graphs of the network are told
    from `other` by as well, so that all have the same open extents, even those that are `other`'s.
    """
    types = {
        name: _opened_type(given, other.types.get(name, given), first.types.get(name, given))
        for name, given in graph.types.items()
    }
    there, before = ({node.name: node for node in one.nodes} for one in (other, first))

    def node_of(node: Node) -> Node:
        found = there.get(node.name, node).spec, before.get(node.name, node).spec
        if found[0] == found[1] == node.spec:
            return node
        if all(type(spec) is type(node.spec) for spec in found):
            return changed(node, spec=_opened(node.spec, *found))
        return node

    return changed(graph, nodes=tuple(map(node_of, graph.nodes)), types=types)


def _opened_type(given: TensorType, other: TensorType, first: TensorType) -> TensorType:
    shape = _opened(given.shape, other.shape, first.shape)
    return given if shape is given.shape else TensorType(shape, given.dtype)


def _opened(value: Any, other: Any, first: Any) -> Any:
    if value is other is first or type(value) is bool:
        return value
    if isinstance(value, int) and isinstance(other, int) and isinstance(first, int):
        return value if other == first == value else open_number(value, other)
    if type(value) is tuple and len(value) == len(other) == len(first):
        items = tuple(map(_opened, value, other, first))
        return items if any(map(is_not, items, value)) else value
    if is_dataclass(value) and not isinstance(value, type) and type(value) is type(other):
        found = {
            f.name: _opened(*(getattr(one, f.name) for one in (value, other, first)))
            for f in fields(value)
            if f.init
        }
        different = {k: v for k, v in found.items() if v is not getattr(value, k)}
        return changed(value, **different) if different else value
    return value

"""Which values share a storage: concat members, slices, transposes and reshapes become views.

A link says that a value (the child) is a view of another (the parent). Links form trees; the root
of a tree owns the storage. A backward link places a producer's output inside its consumer's
(concat members); a forward link makes a node's output a view of its input.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from clnn.graph.ir import Graph, Node
from clnn.layout import TensorLayout
from clnn.ops.movement.views import Concat, Slice, slice_of
from clnn.ops.spec import ViewSpec
from clnn.types import TensorType


@dataclass(frozen=True)
class Link:
    """Child is a view of parent; `spec` knows how (index: which input, for backward links)."""

    child: str
    parent: str
    spec: ViewSpec
    backward: bool
    index: int = 0
    types: tuple[TensorType | None, ...] = ()

    def derive(self, parent: TensorLayout) -> TensorLayout | None:
        """Return the child's layout inside the parent's, or None where there is no such view."""
        if self.backward:
            return self.spec.backward(parent, self.index, self.types)
        return self.spec.forward(parent)


def find_links(graph: Graph) -> dict[str, Link]:
    """Return child value -> link for every view that geometry may allow."""
    finder = _Finder(graph)
    for node in reversed(graph.nodes):
        if isinstance(node.spec, Concat):
            finder.link_concat(node)
    for node in graph.nodes:
        if isinstance(node.spec, ViewSpec) and not isinstance(node.spec, Concat):
            finder.link_forward(node)
    return finder.links


class _Finder:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.links: dict[str, Link] = {}
        self.producers = graph.producers()
        self.members: dict[str, list[tuple[str, int]]] = {}

    def link_concat(self, node: Node) -> None:
        out = node.outputs[0]
        if self._part_of_larger(node):
            return
        for index, name in enumerate(node.inputs):
            if name is None or not self._free(name):
                continue
            self._add_backward(name, out, node, index)
            self._climb(name)

    def _free(self, name: str) -> bool:
        """Whether a value may still get a parent: made by a node, and not a view yet."""
        return name in self.producers and name not in self.links

    def _add_backward(self, child: str, parent: str, node: Node, index: int) -> None:
        assert isinstance(node.spec, ViewSpec)
        types = self.graph.input_types(node)
        self.links[child] = Link(child, parent, node.spec, True, index, types)
        self.members.setdefault(child, []).append((parent, index))

    def _climb(self, name: str) -> None:
        """Place the inputs of reshapes and transposes above a member into it as well."""
        node = self.producers[name]
        while isinstance(node.spec, ViewSpec) and not isinstance(node.spec, (Concat, Slice)):
            source = node.inputs[0]
            if source is None or not self._free(source) or self._root(name) == source:
                return
            if (
                node.spec.backward(
                    TensorLayout.make(self.graph.types[node.outputs[0]].shape),
                    0,
                    self.graph.input_types(node),
                )
                is None
            ):
                return
            self._add_backward(source, node.outputs[0], node, 0)
            node = self.producers[source]

    def _part_of_larger(self, node: Node) -> bool:
        """Link a concat whose inputs lie next to each other inside one larger concat."""
        assert isinstance(node.spec, Concat)
        out, axis = node.outputs[0], node.spec.axis
        places = [self.links.get(name or "") for name in node.inputs]
        first = places[0]
        if first is None or out in self.links or node.spec.mixed:
            return False
        for step, link in enumerate(places):
            fits = link is not None and link.backward and link.parent == first.parent
            fits = fits and isinstance(first.spec, Concat) and first.spec == node.spec
            if not fits or link is None or link.index != first.index + step:
                return False
        sizes = [0 if t is None else t.shape[axis] for t in first.types]
        start = sum(sizes[: first.index])
        shape = self.graph.types[first.parent].shape
        extent = self.graph.types[out].shape[axis]
        part = slice_of(shape, axis, start, extent)
        self.links[out] = Link(out, first.parent, part, False)
        return True

    def link_forward(self, node: Node) -> None:
        assert isinstance(node.spec, ViewSpec)
        source, out = node.inputs[0], node.outputs[0]
        linked_up = self.links.get(source or "")
        if source is None or source in self.graph.consts or out in self.links:
            return
        if linked_up is not None and linked_up.parent == out:
            return
        self.links[out] = Link(out, source, node.spec, False)

    def _root(self, name: str) -> str:
        while name in self.links:
            name = self.links[name].parent
        return name


def children_of(links: dict[str, Link]) -> dict[str, list[Link]]:
    """Return parent value -> links of its children."""
    found: dict[str, list[Link]] = {}
    for link in links.values():
        found.setdefault(link.parent, []).append(link)
    return found


def walk_tree(root: str, children: dict[str, list[Link]]) -> Iterator[Link]:
    """Yield the links below `root`, parents before children."""
    stack = [root]
    while stack:
        for link in children.get(stack.pop(), ()):
            yield link
            stack.append(link.child)

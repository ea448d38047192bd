"""Which values share a storage: concat members, slices, transposes and reshapes become views.

A link says that a value (the child) is a view of another (the parent). Links form trees; the root
of a tree owns the storage. A backward link places a producer's output inside its consumer's
(concat members); a forward link makes a node's output a view of its input.
"""

from __future__ import annotations

from clnn.graph.ir import Graph, Node
from clnn.layout import TensorLayout
from clnn.ops.movement.views import Concat, Slice, slice_of
from clnn.ops.spec import ViewSpec
from clnn.records import dataclass


@dataclass(frozen=True)
class Link:
    """Child is `view` of parent. index: for a backward link, which input of its node the child is."""

    child: str
    parent: str
    view: ViewSpec
    backward: bool
    index: int = 0


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
        self.above: dict[str, str] = {}

    def link_concat(self, node: Node) -> None:
        out = node.outputs[0]
        if self._part_of_larger(node):
            return
        assert isinstance(node.spec, Concat)
        views = node.spec.inside(self.graph.input_types(node))
        for index, (name, view) in enumerate(zip(node.inputs, views, strict=True)):
            if name is None or view is None or not self._free(name):
                continue
            self._add(Link(name, out, view, True, index))
            self._climb(name)

    def _free(self, name: str) -> bool:
        """Whether a value may still get a parent: made by a node, and not a view yet."""
        return name in self.producers and name not in self.links

    def _add(self, link: Link) -> None:
        self.links[link.child] = link
        self.above[link.child] = link.parent

    def _climb(self, name: str) -> None:
        """Place the inputs of reshapes and transposes above a member into it as well."""
        node = self.producers[name]
        while isinstance(node.spec, ViewSpec) and not isinstance(node.spec, (Concat, Slice)):
            source = node.inputs[0]
            if source is None or not self._free(source) or self._root(name) == source:
                return
            out, view = node.outputs[0], node.spec.inside(self.graph.input_types(node))[0]
            if view is None or view.forward(TensorLayout.make(self.graph.types[out].shape)) is None:
                return
            self._add(Link(source, out, view, True))
            node = self.producers[source]

    def _part_of_larger(self, node: Node) -> bool:
        """Link a concat whose inputs lie next to each other inside one larger concat."""
        assert isinstance(node.spec, Concat)
        out, axis = node.outputs[0], node.spec.axis
        places = [self.links.get(name or "") for name in node.inputs]
        first = places[0]
        if first is None or out in self.links or node.spec.mixed:
            return False
        larger = self.producers.get(first.parent)
        if larger is None or larger.spec != node.spec or not isinstance(first.view, Slice):
            return False
        for step, link in enumerate(places):
            fits = link is not None and link.backward and link.parent == first.parent
            if not fits or link is None or link.index != first.index + step:
                return False
        shape = self.graph.types[first.parent].shape
        extent = self.graph.types[out].shape[axis]
        part = slice_of(shape, axis, first.view.starts[axis], extent)
        self._add(Link(out, first.parent, part, False))
        return True

    def link_forward(self, node: Node) -> None:
        assert isinstance(node.spec, ViewSpec)
        source, out = node.inputs[0], node.outputs[0]
        linked_up = self.links.get(source or "")
        if source is None or source in self.graph.consts or out in self.links:
            return
        if linked_up is not None and linked_up.parent == out:
            return
        self._add(Link(out, source, node.spec, False))

    def _root(self, name: str) -> str:
        """Return the value at the top of the links, with shorter ways to it for the next question."""
        above = self.above
        while name in above:
            above[name] = above.get(above[name], above[name])
            name = above[name]
        return name


def children_of(links: dict[str, Link]) -> dict[str, list[Link]]:
    """Return parent value -> links of its children."""
    found: dict[str, list[Link]] = {}
    for link in links.values():
        found.setdefault(link.parent, []).append(link)
    return found

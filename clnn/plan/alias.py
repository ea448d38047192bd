"""Which values share a storage: concat members, slices, transposes and reshapes become views.

A link says that a value (the child) is a view of another (the parent). Links form trees; the root
of a tree owns the storage. A backward link places a producer's output inside its consumer's
(concat members); a forward link makes a node's output a view of its input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from clnn.graph.ir import Graph, Node
from clnn.layout import TensorLayout
from clnn.ops.movement.views import Concat, Reshape, Slice, Transpose, slice_of
from clnn.ops.spec import OpSpec, ViewSpec
from clnn.records import dataclass
from clnn.traced import is_one, is_open

MAKERS = ("gemm", "attention", "eltwise")  # kinds of ops whose kernels write rows of any pitch


@dataclass(frozen=True)
class Link:
    """Child is `view` of parent. index: for a backward link, which input of its node the child is."""

    child: str
    parent: str
    view: ViewSpec
    backward: bool
    index: int = 0


def find_links(
    graph: Graph,
    orders: Mapping[str, tuple[int, ...]] | None = None,
    bordered: Callable[[str], bool] = lambda name: False,
) -> dict[str, Link]:
    """Return child value -> link for every view that geometry may allow.

    orders: where given, what a reshape puts together lies in the reshape's memory, in this order of axes, where a copy
    is spared. bordered: whether a value may get a border.
    """
    finder = _Finder(graph)
    for node in reversed(graph.nodes):
        if isinstance(node.spec, Concat):
            finder.link_concat(node)
    for node in graph.nodes if orders else ():
        if isinstance(node.spec, Reshape):
            finder.link_result(node, orders or {}, bordered)
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
        self.readers = graph.consumers()
        self.public = {*graph.outputs.values()}

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

    def link_result(
        self, node: Node, orders: Mapping[str, tuple[int, ...]], bordered: Callable[[str], bool]
    ) -> None:
        """Place what is transposed, and joined by a reshape, into the result, where that spares a copy.

        As heads behind tokens are. Rows stay rows in memory, and nobody wants a border around the result.
        """
        turn, types = self.producers.get(node.inputs[0] or ""), self.graph.types
        if turn is None or not isinstance(turn.spec, Transpose):
            return
        (source,), (turned,), (out,) = turn.inputs, turn.outputs, node.outputs
        maker = self.producers.get(source or "")
        if source is None or maker is None or maker.spec.kind not in MAKERS:
            return
        if not all(map(self._passed_on, (source, turned))) or bordered(out):
            return
        before, after = types[source].shape, types[out].shape
        if any(map(is_open, (*before, *after))):
            return
        lies: TensorLayout | None = TensorLayout.make(before, orders[source])
        placed: TensorLayout | None = TensorLayout.make(after, orders[out])
        for step, back in ((turn, node), (node, turn)):
            lies = _seen(step.spec, lies)
            placed = _seen(self._inside(back), placed)
        if lies is None and placed is not None and is_one(placed.pitches[-1]):
            self._climb(out)

    def _inside(self, node: Node) -> ViewSpec | None:
        """Return the view of a view's result that its input is."""
        spec = node.spec
        return spec.inside(self.graph.input_types(node))[0] if isinstance(spec, ViewSpec) else None

    def _passed_on(self, name: str) -> bool:
        """Whether one node alone reads a value, which is no view and no output of the network."""
        read = self.readers[name]
        return self._free(name) and len(read) == 1 and name not in self.public

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


def _seen(view: OpSpec | None, layout: TensorLayout | None) -> TensorLayout | None:
    """Return a layout through a view, None where there is none."""
    return view.forward(layout) if isinstance(view, ViewSpec) and layout is not None else None


def children_of(links: dict[str, Link]) -> dict[str, list[Link]]:
    """Return parent value -> links of its children."""
    found: dict[str, list[Link]] = {}
    for link in links.values():
        found.setdefault(link.parent, []).append(link)
    return found

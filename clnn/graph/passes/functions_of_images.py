"""Elementwise functions of volumes that are images side by side are computed of the images.

    convolution -> images as a volume -> relu      becomes      convolution -> relu -> images as a volume

Convolutions of volumes make images, which a view joins to a volume. Functions of such views only are
computed in front of them, where the convolutions take them in.
"""

from __future__ import annotations

from clnn.graph.ir import Graph, Node
from clnn.ops.conv.volumes import SplitDepth
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.records import changed
from clnn.traced import is_one
from clnn.types import TensorType

CHANNELS = 1  # the axis that volumes and images share beside those behind depth


def functions_of_images(graph: Graph) -> Graph:
    """Return `graph` with elementwise nodes of volumes in front of the views that make these of images.

    Only where all computed operands are such views of the same extents, and constants are numbers or
    lie along channels.
    """
    return _Moving(graph).run()


class _Moving:
    """The pass at work: types and constants as they are now, and the views that make volumes."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.types, self.consts = graph, dict(graph.types), dict(graph.consts)
        self.views: dict[str, Node] = {}

    def run(self) -> Graph:
        """Return the graph with each function at its place."""
        nodes: list[Node] = []
        for node in self.graph.nodes:
            made = self._moved(node)
            nodes += made
            self.views |= {n.outputs[0]: n for n in made if isinstance(n.spec, SplitDepth)}
        return self.graph.with_nodes(nodes, types=self.types, consts=self.consts)

    def _moved(self, node: Node) -> list[Node]:
        """Return a function of images and the views behind it, or the node as it is."""
        out = node.outputs[0]
        sources = [n for n in node.inputs if n is not None and n not in self.consts]
        views = [self.views.get(name) for name in sources]
        if not isinstance(node.spec, Eltwise) or not sources or None in views:
            return [node]
        if any(self.types[name].shape != self.types[out].shape for name in sources):
            return [node]
        first = views[0]
        assert first is not None
        inputs = [self._operand(name, self.types[out].rank) for name in node.inputs]
        if None in inputs:
            return [node]
        images = f"{out}:images"
        shape = self.types[first.inputs[0] or ""].shape
        self.types[images] = TensorType(shape, self.types[out].dtype)
        function = changed(node, inputs=tuple(inputs), outputs=(images,))
        view = Node(f"{out}:volume", first.spec, (images,), (out,), node.origin)
        return [*self._moved(function), view]

    def _operand(self, name: str | None, rank: int) -> str | None:
        """Return an operand as it is of images, None where it is not."""
        view = self.views.get(name or "")
        if view is not None:
            return view.inputs[0]
        constant = self.consts.get(name or "")
        if constant is None or name is None:
            return None
        lead = rank - constant.ndim
        long = [lead + axis for axis, extent in enumerate(constant.shape) if not is_one(extent)]
        if not long and constant.ndim < rank:
            return name
        if any(axis != CHANNELS for axis in long):
            return None
        made = f"{name}:images"
        shape = (constant.size, *(1,) * (rank - 3)) if long else ()
        self.consts[made] = constant.reshape(shape)
        self.types[made] = TensorType(shape, self.types[name].dtype)
        return made

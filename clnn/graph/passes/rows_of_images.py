"""Products whose rows become the pixels of an image are products of the image's rows, which may have a border.

    product (b, h w, c) -> transpose (b, c, h w) -> reshape (b, c, h, w) -> convolution that pads

The border lies between rows of the image, so that not all rows of the result are evenly spaced, and the whole image
would be copied for it. The product of (b, h, w, k) writes it where the convolution reads it.
"""

from __future__ import annotations

from dataclasses import replace

from clnn.graph.ir import Graph, Node
from clnn.graph.passes.dead import remove_dead
from clnn.ops.conv.spec import Conv2d
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.views import Reshape, Transpose
from clnn.records import changed
from clnn.types import TensorType

TOKENS, IMAGE = 3, 4  # axes


def rows_of_images(graph: Graph) -> Graph:
    """Return `graph` with such products on four axes; for extents that are known."""
    return remove_dead(_Finder(graph).run())


class _Finder:
    """The pass at work: who makes and who reads each value, and what it adds."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.types, self.consts = graph, dict(graph.types), dict(graph.consts)
        self.uses, self.public = graph.consumers(), set(graph.outputs.values())

    def run(self) -> Graph:
        """Return the graph with what was found."""
        nodes: list[Node] = []
        behind: dict[str, Node] = {}
        for node in self.graph.nodes:
            image = self.image(node)
            if image is None:
                nodes.append(behind.get(node.name, node))
                continue
            made, turn = self.split(node, image)
            nodes += made
            behind[image.name] = turn
        return self.graph.with_nodes(nodes, types=self.types, consts=self.consts)

    def image(self, node: Node) -> Node | None:
        """Return the reshape that makes an image of a product's rows, None where none does."""
        spec = node.spec
        if not isinstance(spec, Gemm) or spec.trans_a or node.inputs[1] not in self.graph.consts:
            return None
        turn = self.only(node)
        view = None if turn is None else self.only(turn)
        if view is None or not isinstance(view.spec, Reshape):
            return None
        rows, image = self.types[node.outputs[0]].shape, self.types[view.outputs[0]].shape
        turned = turn is not None and turn.spec == Transpose((0, 2, 1))
        ranks = [self.types[n or ""].rank for n in node.inputs[:2]]
        if not turned or ranks != [TOKENS, 2] or len(image) != IMAGE:
            return None
        same = image[:2] == (rows[0], rows[2]) and image[2] * image[3] == rows[1]
        pads = any(_pads(reader) for reader in self.uses[view.outputs[0]])
        return view if same and pads else None

    def only(self, node: Node) -> Node | None:
        """Return the one node that reads a result which is no output, None where there are others."""
        name = node.outputs[0]
        return self.uses[name][0] if len(self.uses[name]) == 1 and name not in self.public else None

    def split(self, node: Node, view: Node) -> tuple[list[Node], Node]:
        """Return a product on the rows of an image with the views in front of it, and the one behind."""
        height, width = self.types[view.outputs[0]].shape[2:]
        made: list[Node] = []
        inputs = [
            name if name is None or k == 1 else self.seen(node, k, (height, width), made)
            for k, name in enumerate(node.inputs)
        ]
        rows = f"{node.outputs[0]}:rows"
        product = changed(node, inputs=tuple(inputs), outputs=(rows,))
        (self.types[rows],) = node.spec.infer(
            [None if n is None else self.types[n] for n in inputs]
        )
        turn = replace(view, spec=Transpose((0, 3, 1, 2)), inputs=(rows,))
        return [*made, product], turn

    def seen(self, node: Node, which: int, size: tuple[int, int], made: list[Node]) -> str:
        """Return an input with the axis of rows split, and add the view that makes it."""
        name = node.inputs[which]
        assert name is not None
        kind = self.types[name]
        if kind.rank < 2:
            return name
        rows = size if kind.shape[-2] != 1 else (1, 1)
        shape = (*kind.shape[:-2], *rows, kind.shape[-1])
        out = f"{node.outputs[0]}:rows{which}"
        self.types[out] = TensorType(shape, kind.dtype)
        if name in self.consts:
            self.consts[out] = self.consts[name].reshape(shape)
        else:
            made.append(Node(out, Reshape(shape), (name,), (out,), f"Reshape {name}"))
        return out


def _pads(node: Node) -> bool:
    """Whether a node is a convolution that reads beyond its image."""
    if not isinstance(node.spec, Conv2d):
        return False
    window = node.spec.window
    return any((*window.before, *window.after))

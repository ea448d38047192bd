"""Dilated convolutions of 3x3 become plain ones of the map's phases, which Winograd's products suit.

Every d-th row and column of a map is a phase. With a dilation of d a window stays in one phase, where it is a window
of neighbours:

    x (n, c, d h, d w) -> phases (n d d, c, h, w) -> 3x3 convolution -> phases (n d d, oc, h, w) -> (n, oc, d h, d w)

Phases are copies, a small part of what is saved. Convolutions that follow each other read and write phases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clnn.arith._base import FLOAT
from clnn.graph.ir import Graph, Node
from clnn.graph.passes.dead import remove_dead
from clnn.ops.conv.spec import Conv2d
from clnn.ops.movement.pad import Pad
from clnn.ops.movement.views import Reshape, Slice, Transpose
from clnn.ops.shared.window import Window
from clnn.types import F32, TensorType

IMAGE = 4  # axes
LEAST_EXTENT = 4  # of a phase along an axis; below, parts without border multiply as little
LEAST_CHANNELS = 16  # read, and made, by what the transforms must be paid
LEAST_FLOPS = 10_000_000  # of a convolution; a smaller one takes no longer than the copies
FIRST, LAST = (0, 3, 5, 1, 2, 4), (0, 3, 4, 1, 5, 2)  # orders of axes to phases, and back


def phases_of_dilated(graph: Graph) -> Graph:
    """Return `graph` with such convolutions on phases; for extents that are known."""
    return remove_dead(_Phases(graph).run())


def dilates(graph: Graph) -> bool:
    """Whether a graph has convolutions that skip elements."""
    return any(
        isinstance(n.spec, Conv2d) and {*n.spec.window.dilations} != {1} for n in graph.nodes
    )


class _Phases:
    """The pass at work: what it adds, and which values have phases."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.types, self.consts = graph, dict(graph.types), graph.consts
        self.nodes: list[Node] = []
        self.made: dict[tuple[str, tuple[int, ...]], str] = {}  # (value, dilations) -> its phases

    def run(self) -> Graph:
        """Return the graph with what was found."""
        for node in self.graph.nodes:
            if self.fits(node):
                self.convert(node)
            else:
                self.nodes.append(node)
        return self.graph.with_nodes(self.nodes, types=self.types)

    def fits(self, node: Node) -> bool:
        """Whether a node is a convolution whose phases cost less than it."""
        spec = node.spec
        if not isinstance(spec, Conv2d) or spec.arith is not FLOAT or spec.group != 1:
            return False
        x, out, window = self.types[node.inputs[0] or ""], self.types[node.outputs[0]], spec.window
        if x.rank != IMAGE or x.dtype != F32 or not x.size or node.inputs[1] not in self.consts:
            return False
        pads = zip((*window.before, *window.after), window.dilations * 2, strict=True)
        return (
            (window.kernel, window.strides) == ((3, 3), (1, 1))
            and window.dilations != (1, 1)
            and min(phases(out.shape, window)) >= LEAST_EXTENT
            and not any(pad % d for pad, d in pads)
            and min(x.shape[1], out.shape[1]) >= LEAST_CHANNELS
            and spec.flops(self.graph.input_types(node), (out,)) >= LEAST_FLOPS
            and all(n is None or self.follows(self.types[n], out) for n in node.inputs[3:])
        )

    def follows(self, operand: TensorType, out: TensorType) -> bool:
        """Whether an operand has phases, or is the same in all of them."""
        same = (1,) * (IMAGE - operand.rank) + operand.shape
        return operand.shape == out.shape or {same[0], *same[2:]} == {1}

    def convert(self, node: Node) -> None:
        """Append the convolution of phases, with the views around it."""
        assert isinstance(node.spec, Conv2d)
        out, window = self.types[node.outputs[0]], node.spec.window
        of = window.dilations
        inputs = [
            self.phased(name, of, node)
            if name is not None and (k == 0 or self.types[name].shape == out.shape)
            else name
            for k, name in enumerate(node.inputs)
        ]
        plain = Window(
            window.kernel,
            window.strides,
            (1, 1),
            tuple(b // d for b, d in zip(window.before, of, strict=True)),
            tuple(a // d for a, d in zip(window.after, of, strict=True)),
        )
        name = f"{node.outputs[0]}:phases"
        made = replace(
            node, spec=replace(node.spec, window=plain), inputs=tuple(inputs), outputs=(name,)
        )
        (self.types[name],) = made.spec.infer(
            [None if n is None else self.types[n] for n in inputs]
        )
        self.nodes.append(made)
        if phases(out.shape, window) == self.types[name].shape[2:] and _divide(of, out.shape[2:]):
            self.made[node.outputs[0], of] = name
        self.back(name, of, node)

    def phased(self, name: str, of: tuple[int, ...], reader: Node) -> str:
        """Return the phases of a value, and append what makes them where nothing has."""
        if (name, of) in self.made:
            return self.made[name, of]
        n, c, *extents = self.types[name].shape
        whole = [-(-e // d) * d for e, d in zip(extents, of, strict=True)]
        source = name
        if whole != extents:
            more = (0, 0, *(w - e for w, e in zip(whole, extents, strict=True)))
            source = self.add(f"{name}:whole{of}", Pad((0,) * IMAGE, more), name, reader)
        (h, w), (d, e) = (a // b for a, b in zip(whole, of, strict=True)), of
        split = self.add(f"{name}:split{of}", Reshape((n, c, h, d, w, e)), source, reader)
        turned = self.add(f"{name}:turned{of}", Transpose(FIRST), split, reader)
        self.made[name, of] = self.add(
            f"{name}:phases{of}", Reshape((n * d * e, c, h, w)), turned, reader
        )
        return self.made[name, of]

    def back(self, name: str, of: tuple[int, ...], node: Node) -> None:
        """Append what makes the node's result of its phases."""
        _, oc, h, w = self.types[name].shape
        out, (d, e) = self.types[node.outputs[0]].shape, of
        split = self.add(f"{name}:split", Reshape((out[0], d, e, oc, h, w)), name, node)
        turned = self.add(f"{name}:turned", Transpose(LAST), split, node)
        whole = (out[0], oc, h * d, w * e)
        if whole == out:
            self.nodes.append(_named(node, Reshape(whole), turned))
            return
        joined = self.add(f"{name}:whole", Reshape(whole), turned, node)
        self.nodes.append(_named(node, Slice((0,) * IMAGE, out, (1,) * IMAGE), joined))

    def add(self, name: str, spec: Pad | Reshape | Transpose, source: str, origin: Node) -> str:
        """Append a node of one input. Returns its value."""
        (self.types[name],) = spec.infer([self.types[source]])
        self.nodes.append(Node(name, spec, (source,), (name,), origin.origin))
        return name


def phases(shape: Sequence[int], window: Window) -> tuple[int, ...]:
    """Return the extents of the phases of a map (n, c, extents...)."""
    return tuple(-(-e // d) for e, d in zip(shape[2:], window.dilations, strict=True))


def _divide(of: Sequence[int], extents: Sequence[int]) -> bool:
    return not any(e % d for e, d in zip(extents, of, strict=True))


def _named(node: Node, spec: Reshape | Slice, source: str) -> Node:
    """Return the node that makes a node's result of a value."""
    return Node(f"{node.name}:joined", spec, (source,), node.outputs, node.origin)

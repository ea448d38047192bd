"""An explicit Pad in front of a convolution becomes its own padding, where both hold the same number."""

from __future__ import annotations

from dataclasses import replace

from clnn.graph.ir import Graph, Node
from clnn.ops.conv.spec import Conv2d
from clnn.ops.movement.pad import Pad


def fuse_pad(graph: Graph) -> Graph:
    """Return `graph` with constant Pads of spatial axes moved into the convolutions that read them."""
    pads = {
        node.outputs[0]: node
        for node in graph.nodes
        if isinstance(node.spec, Pad) and _is_border(node.spec)
    }
    return graph.with_nodes([_absorb(node, pads) for node in graph.nodes])


def _is_border(pad: Pad) -> bool:
    spatial = len(pad.before) >= 3 and not any((*pad.before[:2], *pad.after[:2]))
    return spatial and pad.mode == "constant" and min(*pad.before, *pad.after) >= 0


def _absorb(node: Node, pads: dict[str, Node]) -> Node:
    source = pads.get(node.inputs[0] or "") if node.inputs else None
    if source is None or not isinstance(node.spec, Conv2d) or not isinstance(source.spec, Pad):
        return node
    if source.spec.value != node.spec.arith.fill:  # what the convolution's own border holds
        return node
    window = node.spec.window
    low = tuple(a + b for a, b in zip(window.before, source.spec.before[2:], strict=True))
    high = tuple(a + b for a, b in zip(window.after, source.spec.after[2:], strict=True))
    spec = replace(node.spec, window=replace(window, before=low, after=high))
    origin = f"{source.origin} + {node.origin}"
    return replace(node, spec=spec, inputs=(source.inputs[0], *node.inputs[1:]), origin=origin)

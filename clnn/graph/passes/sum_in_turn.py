"""Linear resizing of what bytes were, summed as ONNX Runtime does: the sums are rounded to bytes again."""

from __future__ import annotations

from dataclasses import replace

from clnn.graph.ir import Graph, Node
from clnn.graph.passes._quantised import function_of
from clnn.ops.resize.spec import Resize


def sum_in_turn(graph: Graph) -> Graph:
    """Return `graph` with linear Resizes of dequantised values that round after each product and sum.

    Products of bytes and simple weights often lie between two bytes: there the last digit decides.
    """
    made = {name: node for node in graph.nodes for name in node.outputs}

    def changed(node: Node) -> Node:
        spec, source = node.spec, made.get(node.inputs[0] or "")
        if not isinstance(spec, Resize) or source is None or spec.sampling.mode != "linear":
            return node
        small = source.origin.startswith(
            "DequantizeLinear "
        )  # floats of 8 or 4 bits, times a scale
        if function_of(source) != "dequantise" and not small:
            return node
        return replace(node, spec=replace(spec, sampling=replace(spec.sampling, in_turn=True)))

    if not any(isinstance(node.spec, Resize) for node in graph.nodes):
        return graph
    return graph.with_nodes([changed(node) for node in graph.nodes])

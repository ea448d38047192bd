"""Real elementwise functions between quantised tensors, which no operator of integers computes, as one node.

    q -> dequantise -> scale, shift, clip ... -> quantise -> q

Such as a batch normalisation in front of a convolution. Each step is rounded as it is by itself.
"""

from __future__ import annotations

from dataclasses import replace

from clnn.arith.quantised_maps import NARROW
from clnn.graph.ir import Graph, Node
from clnn.graph.passes._quantised import IntegerGraph, function_of
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.elementwise.fixed_map import FixedMap
from clnn.ops.quantised.steps import EXACT, WrittenSteps
from clnn.types import F32


def fuse_written_steps(graph: Graph) -> Graph:
    """Return `graph` with such chains of one quantised tensor and real operands as one node each."""
    if not any(function_of(node) == "dequantise" for node in graph.nodes):
        return graph
    found = IntegerGraph(graph)
    return graph.with_nodes([_fused(found, node) or node for node in graph.nodes])


def _fused(graph: IntegerGraph, node: Node) -> Node | None:
    """Return the node for a chain that ends in `node`, None where that ends none."""
    y = graph.wanted(node) if function_of(node) == "quantise" else None
    middle = graph.producers.get(node.inputs[0] or "")
    if y is None or middle is None or not isinstance(middle.spec, Eltwise):
        return None
    first, *operands = middle.inputs
    x, steps = graph.integers(first or ""), middle.spec.post_ops
    if x is None or not x[1].per_tensor or graph.uses[middle.outputs[0]] != 1:
        return None
    if any(s.fn not in EXACT or s.operand == 0 for s in steps) or {x[1].dtype, y.dtype} - set(
        NARROW
    ):
        return None
    kinds = graph.types
    if kinds[x[0]].shape != kinds[node.outputs[0]].shape:
        return None
    if any(n is None or kinds[n].dtype != F32 for n in operands):
        return None
    zeros, scales = (x[1].zero[0], y.zero[0]), (float(x[1].step), float(y.step))
    function = WrittenSteps((x[1].dtype, y.dtype), zeros, scales, steps)
    return replace(node, spec=FixedMap(function), inputs=(x[0], *operands))

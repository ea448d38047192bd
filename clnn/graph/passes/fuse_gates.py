"""A value multiplied by a function of itself becomes one function: x * sigmoid(x) is swish(x)."""

from __future__ import annotations

import math
from dataclasses import replace

from clnn.graph.ir import Graph, Node
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.shared.functions import PostOp


def fuse_gates(graph: Graph) -> Graph:
    """Return `graph` with products x * f(x) as single elementwise nodes, where f(x) has no other use.

    sigmoid gives swish, tanh of softplus mish, and hard_sigmoid with its slope of 1/6 hard_swish.
    """
    uses = graph.consumers()
    public = set(graph.outputs.values())
    producers = {node.outputs[0]: node for node in graph.nodes}
    gone: set[str] = set()
    nodes: dict[str, Node] = {}
    for node in graph.nodes:
        nodes[node.name] = node
        found = _gated(node, producers)
        if found is None:
            continue
        source, gates, step = found
        if any(len(uses[g.outputs[0]]) != 1 or g.outputs[0] in public for g in gates):
            continue
        origin = " + ".join([*(g.origin for g in gates), node.origin])
        nodes[node.name] = replace(node, spec=Eltwise((step,)), inputs=(source,), origin=origin)
        gone |= {g.name for g in gates}
    return graph.with_nodes([node for name, node in nodes.items() if name not in gone])


def _gated(node: Node, producers: dict[str, Node]) -> tuple[str, list[Node], PostOp] | None:
    """Return (x, the nodes that make f(x), the function x * f(x)) where `node` is that product."""
    spec = node.spec
    if not isinstance(spec, Eltwise) or len(spec.post_ops) != 1 or len(node.inputs) != 2:
        return None
    step = spec.post_ops[0]
    if step.fn != "mul" or step.operand != 1:
        return None
    for x, gate in (node.inputs, reversed(node.inputs)):
        if x is None or gate is None or x == gate:
            continue
        found = _function(x, gate, producers)
        if found is not None:
            return x, *found
    return None


def _function(x: str, gate: str, producers: dict[str, Node]) -> tuple[list[Node], PostOp] | None:
    """Return the nodes that make `gate` of x alone, and x * gate as one step."""
    gates: list[Node] = []
    post_ops: list[PostOp] = []
    while gate != x:
        made = producers.get(gate)
        if (
            made is None
            or not isinstance(made.spec, Eltwise)
            or len(made.inputs) != 1
            or len(gates) == 2
        ):
            return None
        gates.insert(0, made)
        post_ops = [*made.spec.post_ops, *post_ops]
        gate = made.inputs[0] or ""
    step = _product(post_ops)
    return None if step is None else (gates, step)


def _product(post_ops: list[PostOp]) -> PostOp | None:
    """Return x * f(x) as a step, f being `post_ops`; None where it has no name."""
    names = [s.fn for s in post_ops]
    if names == ["sigmoid"]:
        return PostOp("swish", (1.0,))
    if names == ["rational_sigmoid"]:
        return PostOp("rational_swish")
    if names == ["softplus", "tanh"]:
        return PostOp("mish")
    if names == ["hard_sigmoid"]:
        slope, shift = post_ops[0].params
        close = math.isclose(slope, 1 / 6, rel_tol=1e-6) and shift == 0.5
        return PostOp("hard_swish") if close else None
    return None

"""Fused steps as nodes of their own, as models write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from clnn.graph.ir import Graph, Node, check
from clnn.ops.conv.spec import Conv2d
from clnn.ops.conv.transpose import ConvTranspose
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.gemm.spec import Gemm
from clnn.ops.pool.spec import Pool
from clnn.ops.resize.spec import Resize
from clnn.ops.rows.reduce import Reduce
from clnn.ops.shared.functions import PostOp

FUSED = (Conv2d, ConvTranspose, Gemm, Pool, Resize, Reduce)


def steps_apart(graph: Graph) -> Graph:
    """Return `graph` with steps behind products, poolings, resizings and reductions as nodes, one for each."""
    nodes, types = list[Node](), dict(graph.types)
    for node in graph.nodes:
        spec: Any = node.spec
        if isinstance(spec, FUSED) and spec.post_ops:
            first = f"{node.outputs[0]}:step0"
            types[first] = types[node.outputs[0]]
            used = {s.operand for s in spec.post_ops}
            own = [n for k, n in enumerate(node.inputs) if k not in used]
            alone = replace(spec, post_ops=())
            (types[first], *_) = alone.infer([None if n is None else types[n] for n in own])
            nodes.append(replace(node, spec=alone, inputs=tuple(own), outputs=(first,)))
            nodes += _steps(node, spec.post_ops, first, types)
        elif isinstance(spec, Eltwise) and len(spec.post_ops) > 1:
            nodes += _steps(node, spec.post_ops, node.inputs[0] or "", types)
        else:
            nodes.append(node)
    return check(graph.with_nodes(nodes, types=types))


def _steps(node: Node, steps: Sequence[PostOp], value: str, types: dict[str, Any]) -> list[Node]:
    """Return a node for each step, the first of `value`; types: takes those of their results."""
    made = []
    for number, step in enumerate(steps, 1):
        last = number == len(steps)
        inputs = [value] if step.operand is None else [value, node.inputs[step.operand]]
        spec = Eltwise((replace(step, operand=None if step.operand is None else 1),))
        value = node.outputs[0] if last else f"{node.outputs[0]}:step{number}"
        if not last:
            (types[value],) = spec.infer([types[n or ""] for n in inputs])
        made.append(Node(f"{node.name}:{number}", spec, tuple(inputs), (value,), node.origin))
    return made

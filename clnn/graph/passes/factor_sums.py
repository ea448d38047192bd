"""A value times gates, plus the value itself, is the value times one more than the gates.

    x * a * b + c + x   ->   x * (a * b + 1) + c

As global response normalisation and residual attention have it. Gates are small, so that one pass over x
becomes a scale and a shift of each channel, which a convolution of one pixel takes in.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile

from clnn.graph.ir import Graph, Node
from clnn.graph.passes.fuse_post_ops import fuse_post_ops, operands_from
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.shared.functions import PostOp
from clnn.records import changed
from clnn.types import F32, TensorType

LEAST_SHARE = 4  # elements of x for each of the gates'


def factor_sums(graph: Graph) -> Graph:
    """Return `graph` with sums of a value and of its product with gates as one product, its gates a node of their own.

    That depends on how large gates are, so networks of open extents are not for this pass. Runs behind fuse_post_ops.
    """
    types, nodes = dict(graph.types), list[Node]()
    for node in graph.nodes:
        nodes += _factored(node, types) or [node]
    if len(nodes) == len(graph.nodes):
        return graph
    return fuse_post_ops(graph.with_nodes(nodes, types=types))


def _factored(node: Node, types: dict[str, TensorType]) -> list[Node] | None:
    """Return the nodes of gates and of their product, whose type is added to `types`; None of others."""
    spec, x, out = node.spec, node.inputs[:1], types[node.outputs[0]]
    if not isinstance(spec, Eltwise) or out.dtype != F32 or types.get(x[0] or "") != out:
        return None
    own = {k for k, name in enumerate(node.inputs) if name == x[0]}
    steps = spec.post_ops
    factors = [*takewhile(lambda s: s.fn == "mul" and s.operand not in own, steps)]
    terms = [*takewhile(lambda s: s.fn == "add", steps[len(factors) :])]
    twice = next((k for k, s in enumerate(terms) if s.operand in own), None)
    if twice is None or not any(s.operand is not None for s in factors):
        return None
    gates = _gates(node, factors, types)
    if LEAST_SHARE * types[gates.outputs[0]].size > out.size:
        del types[gates.outputs[0]]
        return None
    inputs = (*node.inputs, *gates.outputs)
    rest = [*terms[:twice], *terms[twice + 1 :], *steps[len(factors) + len(terms) :]]
    renamed, taken = operands_from((PostOp("mul", operand=len(node.inputs)), *rest), 1)
    return [
        gates,
        changed(node, spec=Eltwise(renamed), inputs=(*x, *(inputs[k] for k in taken))),
    ]


def _gates(node: Node, factors: list[PostOp], types: dict[str, TensorType]) -> Node:
    """Return the node of a product of factors, and one."""
    first = next(s for s in factors if s.operand is not None)
    others = [changed(s, swapped=False) for s in factors if s is not first]
    assert first.operand is not None
    name = f"{node.outputs[0]}:gates"
    steps, taken = operands_from((*others, PostOp("add", (1.0,))), 1)
    inputs = (node.inputs[first.operand], *(node.inputs[k] for k in taken))
    spec = Eltwise(steps)
    (types[name],) = spec.infer([_type(n, types) for n in inputs])
    return Node(name, spec, inputs, (name,), f"gates of {node.origin}")


def _type(name: str | None, types: Mapping[str, TensorType]) -> TensorType | None:
    return None if name is None else types[name]

"""Axes that are joined to the terms of a product with constant weights stay in the order that they have.

    (n, heads, tokens, d)   Transpose   (n, tokens, d, heads)   Reshape   (n, tokens, d * heads)   times W

The order of terms is free where the rows of W follow it, and rows of `d` neighbours need no copy one by one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from clnn.graph.ir import Graph, Node
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.views import Reshape, Transpose
from clnn.types import Array, TensorType


def order_terms(graph: Graph) -> Graph:
    """Return `graph` with transposes in front of products that leave the axes of terms in order.

    Where nothing else reads what is transposed. That depends on extents: networks of open ones are not for this pass.
    """
    made, uses, public = graph.producers(), graph.consumers(), set(graph.outputs.values())
    changed, consts, types = dict[str, Node](), dict(graph.consts), dict(graph.types)
    for node in graph.nodes:
        weights = _weights(node, graph)
        join = made.get(node.inputs[0] or "") if weights is not None else None
        turn = made.get(join.inputs[0] or "") if join is not None else None
        if weights is None or join is None or turn is None:
            continue
        alone = all(len(uses[n]) == 1 and n not in public for n in (*join.outputs, *turn.outputs))
        places = _places(turn, join, types) if alone else None
        if places is None:
            continue
        name, (turned,) = f"{node.outputs[0]}:terms", turn.outputs
        consts[name] = _ordered(weights, types[turned].shape, places, node)
        types[name] = TensorType(weights.shape, types[node.inputs[1] or ""].dtype)
        changed[node.name] = replace(node, inputs=(node.inputs[0], name, *node.inputs[2:]))
        assert isinstance(turn.spec, Transpose)
        perm = tuple(turn.spec.perm[p] for p in places)
        changed[turn.name] = replace(turn, spec=Transpose(perm))
        types[turned] = TensorType(
            tuple(types[turned].shape[p] for p in places), types[turned].dtype
        )
    nodes = [changed.get(node.name, node) for node in graph.nodes]
    return graph.with_nodes(nodes, consts=consts, types=types) if changed else graph


def _weights(node: Node, graph: Graph) -> Array | None:
    """Return the constant matrix that a product takes its terms' factors from, None of other nodes."""
    if not isinstance(node.spec, Gemm) or node.spec.trans_a:
        return None
    weights = graph.consts.get(node.inputs[1] or "")
    return weights if weights is not None and weights.ndim == 2 else None


def _places(turn: Node, join: Node, types: Mapping[str, TensorType]) -> list[int] | None:
    """Return where the axes of a transpose's result had best lie, None where they lie so, and of other nodes.

    That is, those which a reshape joins to its last axis in the order of the transpose's source.
    """
    if not isinstance(join.spec, Reshape) or not isinstance(turn.spec, Transpose):
        return None
    before, joined = types[turn.outputs[0]].shape, types[join.outputs[0]].shape[-1]
    counts = (k for k in range(1, len(before) + 1) if math.prod(before[-k:]) == joined)
    kept = len(before) - next(counts, 0)
    perm = turn.spec.perm
    places = [*range(kept), *sorted(range(kept, len(before)), key=lambda place: perm[place])]
    return None if places == [*range(len(before))] else places


def _ordered(weights: Array, extents: Sequence[int], places: Sequence[int], node: Node) -> Array:
    """Return weights whose terms are of the last of some axes, which lie in other places."""
    assert isinstance(node.spec, Gemm)
    rows = weights.T if node.spec.trans_b else weights
    kept = next(k for k in range(len(extents)) if math.prod(extents[k:]) == len(rows))
    split = rows.reshape(*extents[kept:], rows.shape[1])
    order = (*(place - kept for place in places[kept:]), len(extents) - kept)
    made = split.transpose(order).reshape(rows.shape)
    return np.ascontiguousarray(made.T if node.spec.trans_b else made)

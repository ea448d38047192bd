"""Convolutions and the pooling of their results as one node, where the results would leave the caches.

That is on CPUs, for convolutions that Winograd's kernels compute: a tile of their results holds whole
windows, so that a quarter is written.
"""

from __future__ import annotations

from clnn.arith._base import FLOAT
from clnn.graph.ir import Graph, Node
from clnn.ops.conv.pooled import SIDE, PooledConv, is_pooled
from clnn.ops.conv.problem import BIAS, WEIGHTS
from clnn.ops.conv.spec import Conv2d
from clnn.ops.pool.spec import Pool
from clnn.ops.shared.epilogue import post_op_operands
from clnn.target import Target
from clnn.types import F32

LARGE_BYTES = 2**19  # of results per compute unit, that are not in the caches when they are pooled
CHANNELS = 32  # of a group from which on Winograd's products are the faster ones


def pool_at_once(graph: Graph, target: Target) -> Graph:
    """Return `graph` with such pairs as single nodes."""
    if not (target.is_cpu and target.winograd):
        return graph
    uses, producers, public = graph.consumers(), graph.producers(), set(graph.outputs.values())
    nodes = {node.name: node for node in graph.nodes}
    for node in graph.nodes:
        source = node.inputs[0] if isinstance(node.spec, Pool) else None
        before = producers.get(source or "")
        if before is None or source is None or source in public or len(uses[source]) != 1:
            continue
        if _pooled(node) and _convolves(before, graph, target):
            del nodes[before.name]
            nodes[node.name] = _joined(before, node)
    return graph.with_nodes(list(nodes.values()))


def _pooled(node: Node) -> bool:
    return isinstance(node.spec, Pool) and is_pooled(node.spec)


def _convolves(node: Node, graph: Graph, target: Target) -> bool:
    """Whether a node is a convolution that Winograd's kernels compute, with many results."""
    spec, made = node.spec, graph.types[node.outputs[0]]
    if not isinstance(spec, Conv2d) or spec.arith is not FLOAT or post_op_operands(spec.post_ops):
        return False
    given = [name for name in node.inputs[WEIGHTS : BIAS + 1] if name is not None]
    if made.dtype != F32 or made.rank != 4 or min(made.shape[2:]) < SIDE:
        return False
    win, weights = spec.window, graph.types[node.inputs[WEIGHTS] or ""]
    if (win.kernel, win.dilations, set(win.strides)) != ((3, 3), (1, 1), {1}):
        return False
    channels = min(weights.shape[0] // spec.group, weights.shape[1])
    constant = all(name in graph.consts for name in given)
    return constant and channels >= CHANNELS and made.nbytes >= LARGE_BYTES * target.compute_units


def _joined(first: Node, second: Node) -> Node:
    """Return both as one, under the convolution's name."""
    assert isinstance(first.spec, Conv2d) and isinstance(second.spec, Pool)
    spec, origin = PooledConv(first.spec, second.spec), f"{first.origin} + {second.origin}"
    return Node(first.name, spec, first.inputs, second.outputs, origin, first.whole)

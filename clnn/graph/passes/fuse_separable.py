"""A convolution with one filter per channel and the 1 x 1 convolution behind it become one node."""

from __future__ import annotations

from dataclasses import replace

from clnn.arith._base import FLOAT
from clnn.graph.ir import Graph, Node
from clnn.ops._conv_kernels import BIAS
from clnn.ops.conv2d import Conv2d
from clnn.ops.separable import OPERANDS, Separable


def fuse_separable(graph: Graph) -> Graph:
    """Return `graph` with depthwise separable convolutions as single nodes.

    That is where nothing else reads what the first convolution makes, weights and biases of both
    are constants, and the first has no operands of steps. Runs behind fuse_steps.
    """
    uses = graph.consumers()
    public = set(graph.outputs.values())
    filters = {n.outputs[0]: n for n in graph.nodes if _filters(n, graph)}
    nodes: list[Node] = []
    gone: set[str] = set()
    for node in graph.nodes:
        first = filters.get(node.inputs[0] or "") if node.inputs else None
        alone = first is not None and len(uses[first.outputs[0]]) == 1
        if first is None or not alone or first.outputs[0] in public or not _point(node, graph):
            nodes.append(node)
            continue
        gone.add(first.name)
        nodes.append(_joined(first, node))
    return graph.with_nodes([n for n in nodes if n.name not in gone])


def _constant(node: Node, graph: Graph) -> bool:
    """Whether weights and bias are constants, the bias one number per channel."""
    given = [n for n in node.inputs[1 : BIAS + 1] if n is not None]
    plain = len(node.inputs) <= BIAS or node.inputs[BIAS] is None
    return all(n in graph.consts for n in given) and (plain or graph.types[given[-1]].rank == 1)


def _filters(node: Node, graph: Graph) -> bool:
    spec = node.spec
    if not isinstance(spec, Conv2d) or spec.arith is not FLOAT or not _constant(node, graph):
        return False
    channels = graph.types[node.outputs[0]].shape[1]
    taps = graph.types[node.inputs[1] or ""]
    alone = spec.group == channels == taps.shape[0] and taps.shape[1] == 1 and channels > 1
    return alone and all(s.operand is None for s in spec.steps)


def _point(node: Node, graph: Graph) -> bool:
    spec = node.spec
    if not isinstance(spec, Conv2d) or spec.arith is not FLOAT or spec.group != 1:
        return False
    return spec.window.is_point and _constant(node, graph)


def _joined(first: Node, second: Node) -> Node:
    assert isinstance(first.spec, Conv2d) and isinstance(second.spec, Conv2d)
    moved = OPERANDS - Conv2d.first_operand
    steps = tuple(
        s if s.operand is None else replace(s, operand=s.operand + moved) for s in second.spec.steps
    )

    def three(node: Node) -> tuple[str | None, ...]:
        return (*node.inputs, None)[: BIAS + 1]

    inputs = (*three(first), *three(second)[1:], *second.inputs[BIAS + 1 :])
    spec = Separable(first.spec.window, first.spec.steps, steps)
    return replace(second, spec=spec, inputs=inputs, origin=f"{first.origin} + {second.origin}")

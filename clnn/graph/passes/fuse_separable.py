"""A convolution with one filter per channel and the 1 x 1 convolution behind it become one node."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from clnn.arith._base import FLOAT
from clnn.graph.ir import Graph, Node
from clnn.graph.passes.fuse_norm import AFFINE, scale_shift
from clnn.ops._base import Array
from clnn.ops._conv_kernels import BIAS
from clnn.ops._window import Window
from clnn.ops.conv2d import Conv2d
from clnn.ops.eltwise import Eltwise
from clnn.ops.separable import OPERANDS, Separable
from clnn.types import F32, TensorType


def fuse_separable(graph: Graph) -> Graph:
    """Return `graph` with depthwise separable convolutions as single nodes.

    That is where nothing else reads what the first convolution makes, weights and biases of both
    are constants, and the first has no operands of steps. A constant scale and shift of every
    channel (a batch normalisation) counts as a first convolution of 1 x 1. Runs behind fuse_steps.
    """
    uses, producers = graph.consumers(), graph.producers()
    public = set(graph.outputs.values())
    consts, types = dict(graph.consts), dict(graph.types)
    nodes = {node.name: node for node in graph.nodes}
    for node in graph.nodes:
        source = node.inputs[0] if node.inputs else None
        before = producers.get(source or "")
        if before is None or source is None or source in public or len(uses[source]) != 1:
            continue
        if not _point(node, graph):
            continue
        first = before if _filters(before, graph) else _scaled(before, consts, types)
        if first is not None:
            del nodes[before.name]
            nodes[node.name] = _joined(first, node)
    return graph.with_nodes(list(nodes.values()), consts=consts, types=types)


def _scaled(node: Node, consts: dict[str, Array], types: dict[str, TensorType]) -> Node | None:
    """Return a scale and shift per channel, and steps without operands, as a convolution.

    None where the node is something else. Adds its weights to `consts` and `types`.
    """
    spec, out = node.spec, types[node.outputs[0]]
    if not isinstance(spec, Eltwise) or out.rank < 3 or out.dtype != F32 or out.shape[1] < 2:
        return None
    count = next((k for k, s in enumerate(spec.steps) if s.fn not in AFFINE), len(spec.steps))
    found = scale_shift(replace(node, spec=Eltwise(spec.steps[:count])), consts, types)
    if not count or found is None or any(s.operand is not None for s in spec.steps[count:]):
        return None
    names = f"{node.name}:taps", f"{node.name}:shift"
    one, zero = (1,) * (out.rank - 2), (0,) * (out.rank - 2)
    for name, values, shape in zip(names, found, ((-1, 1, *one), (-1,)), strict=True):
        consts[name] = values.astype(np.float32).reshape(shape)
        types[name] = TensorType(consts[name].shape)
    conv = Conv2d(Window(one, one, one, zero, zero), out.shape[1], spec.steps[count:])
    return replace(node, spec=conv, inputs=(node.inputs[0], *names))


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

"""A convolution with one filter per channel and the 1 x 1 convolution behind it become one node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from clnn.arith._base import FLOAT
from clnn.graph.ir import Graph, Node
from clnn.graph.passes.fuse_norm import scales_shifts
from clnn.graph.passes.fuse_post_ops import post_ops_from
from clnn.ops.conv.problem import BIAS
from clnn.ops.conv.separable import OPERANDS, Separable, per_channel
from clnn.ops.conv.spec import Conv2d
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.shared.epilogue import post_op_operands
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.types import F32, Array, TensorType


def fuse_separable(graph: Graph) -> Graph:
    """Return `graph` with depthwise separable convolutions as single nodes.

    That is where nothing else reads what the first convolution makes, weights and biases of both
    are constants, and operands of the first one's steps have one element per channel. Steps of their
    own (a batch normalisation, a gate) count as a first convolution of 1 x 1. Runs behind fuse_post_ops.
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
        first = before if _filters(before, graph) else _as_filters(before, consts, types)
        if first is not None and _gated(first, types):
            del nodes[before.name]
            nodes[node.name] = _joined(first, node)
    return graph.with_nodes(list(nodes.values()), consts=consts, types=types)


def _as_filters(node: Node, consts: dict[str, Array], types: dict[str, TensorType]) -> Node | None:
    """Return post-ops as a convolution of 1 x 1, one filter per channel.

    A constant scale and shift at their beginning become its weights, added to `consts` and `types`.
    None where the node is something else.
    """
    chain, out = _chain(node, consts, types), types[node.outputs[0]]
    if chain is None or out.rank < 3 or out.dtype != F32 or out.shape[1] < 2:
        return None
    *weights, post_ops = _scaled(chain, consts, types)
    one, zero = (1,) * (out.rank - 2), (0,) * (out.rank - 2)
    names = f"{node.name}:taps", f"{node.name}:shift"
    for name, values, shape in zip(names, weights, ((-1, 1, *one), (-1,)), strict=True):
        consts[name] = values.reshape(shape)
        types[name] = TensorType(consts[name].shape)
    place = {k: Conv2d.first_operand + at for at, k in enumerate(post_op_operands(post_ops))}
    post_ops = tuple(
        s if s.operand is None else replace(s, operand=place[s.operand]) for s in post_ops
    )
    conv = Conv2d(Window(one, one, one, zero, zero), out.shape[1], post_ops)
    return replace(
        node, spec=conv, inputs=(chain.inputs[0], *names, *(chain.inputs[k] for k in place))
    )


def _chain(node: Node, consts: Mapping[str, Array], types: Mapping[str, TensorType]) -> Node | None:
    """Return post-ops with the value that runs through them as input 0; None if none does."""
    if not isinstance(node.spec, Eltwise) or not node.spec.post_ops:
        return None
    for which in (0, node.spec.post_ops[0].operand):
        name = None if which is None else node.inputs[which]
        if which is None or name is None or name in consts:
            continue
        post_ops = post_ops_from(node.spec.post_ops, which)
        if post_ops is not None and types[name] == types[node.outputs[0]]:
            return replace(node, spec=Eltwise(_moved(post_ops, 1)), inputs=(name, *node.inputs))
    return None


def _scaled(
    chain: Node, consts: Mapping[str, Array], types: Mapping[str, TensorType]
) -> tuple[Array, Array, tuple[PostOp, ...]]:
    """Return the scale and shift per channel that a chain begins with, and the steps behind them.

    No shift is -0, the one number that leaves both zeros as they are.
    """
    assert isinstance(chain.spec, Eltwise)
    best: tuple[int, tuple[Array, Array]] | None = None
    for count, values in enumerate(scales_shifts(chain, consts, types)):
        if all(map(_normal, values)):
            best = count, values
    assert best is not None
    scale, shift = (values.astype(np.float32) for values in best[1])
    return scale, np.where(shift == 0, np.float32(-0.0), shift), chain.spec.post_ops[best[0] :]


def _normal(values: Array) -> bool:
    """Whether all are zero or neither too large nor too small for single precision."""
    limits, sizes = np.finfo(np.float32), np.abs(values)
    return bool(((sizes == 0) | ((sizes >= limits.tiny) & (sizes <= limits.max))).all())


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
    return spec.group == channels == taps.shape[0] and taps.shape[1] == 1 and channels > 1


def _gated(first: Node, types: Mapping[str, TensorType]) -> bool:
    """Whether all operands of steps have one element per channel."""
    shape, operands = types[first.outputs[0]].shape, first.inputs[BIAS + 1 :]
    return all(n is not None and per_channel(types[n].shape, shape) for n in operands)


def _point(node: Node, graph: Graph) -> bool:
    spec = node.spec
    if not isinstance(spec, Conv2d) or spec.arith is not FLOAT or spec.group != 1:
        return False
    return spec.window.is_point and _constant(node, graph)


def _joined(first: Node, second: Node) -> Node:
    """Return both as one; operands of the second one's steps come first."""
    assert isinstance(first.spec, Conv2d) and isinstance(second.spec, Conv2d)
    moved = OPERANDS - Conv2d.first_operand
    extra, gates = second.inputs[BIAS + 1 :], first.inputs[BIAS + 1 :]

    def three(node: Node) -> tuple[str | None, ...]:
        return (*node.inputs, None)[: BIAS + 1]

    inputs = (*three(first), *three(second)[1:], *extra, *gates)
    spec = Separable(
        first.spec.window,
        _moved(first.spec.post_ops, moved + len(extra)),
        _moved(second.spec.post_ops, moved),
    )
    return replace(second, spec=spec, inputs=inputs, origin=f"{first.origin} + {second.origin}")


def _moved(post_ops: Sequence[PostOp], by: int) -> tuple[PostOp, ...]:
    return tuple(s if s.operand is None else replace(s, operand=s.operand + by) for s in post_ops)

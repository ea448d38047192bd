"""Per-channel scale and shift (from BatchNormalization) folded into the convolution before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from clnn.budget import TABLE_BYTES
from clnn.graph.ir import Graph, Node
from clnn.ops.conv.problem import BIAS
from clnn.ops.conv.spec import Conv2d
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.shared.functions import PostOp
from clnn.types import Array, TensorType

AFFINE = ("add", "sub", "mul", "div")


def fuse_scale_shift(graph: Graph) -> Graph:
    """Return `graph` with constant mul, add, sub, div after a convolution folded into its weights."""
    consts, types = dict(graph.consts), dict(graph.types)
    producers = {n: node for node in graph.nodes for n in node.outputs}
    uses = {name: len(found) for name, found in graph.consumers().items()}
    public = set(graph.outputs.values())
    nodes: dict[str, Node] = {node.name: node for node in graph.nodes}
    for node in graph.nodes:
        source = node.inputs[0] if node.inputs else None
        conv = producers.get(source or "")
        if conv is None or not isinstance(node.spec, Eltwise) or source is None:
            continue
        conv = nodes.get(conv.name, conv)
        if not is_plain_conv(conv, consts) or uses[source] != 1 or source in public:
            continue
        found = scale_shift(node, consts, types)
        if found is None:
            continue
        fused = _fold(conv, node, found, consts, types)
        if fused is None:
            continue
        nodes[conv.name] = fused
        del nodes[node.name]
        producers[node.outputs[0]] = fused
    return graph.with_nodes(
        [nodes[n.name] for n in graph.nodes if n.name in nodes], consts=consts, types=types
    )


def is_plain_conv(node: Node, consts: Mapping[str, Array]) -> bool:
    """Whether a convolution has constants that may be multiplied out."""
    if not isinstance(node.spec, Conv2d) or node.spec.post_ops:
        return False
    weights = consts.get(node.inputs[1] or "")
    if weights is not None and weights.dtype.kind != "f":
        return False
    if weights is not None and 0 in weights.strides and weights.nbytes > TABLE_BYTES:
        return False  # one number that stands for all
    return all(n is None or n in consts for n in node.inputs[1:])


def scale_shift(
    node: Node, consts: Mapping[str, Array], types: Mapping[str, TensorType]
) -> tuple[Array, Array] | None:
    """Return (scale, shift) per channel in double precision, or None where steps are other ones."""
    assert isinstance(node.spec, Eltwise)
    found, steps = None, -1
    for steps, found in enumerate(scales_shifts(node, consts, types)):  # noqa: B007
        pass
    if found is None or steps < len(node.spec.post_ops) or not np.isfinite(found).all():
        return None
    return found


def scales_shifts(
    node: Node, consts: Mapping[str, Array], types: Mapping[str, TensorType]
) -> Iterator[tuple[Array, Array]]:
    """Yield (scale, shift) per channel before an elementwise node's steps and behind each of them.

    Up to the first step that is another one, in double precision; they need not be finite.
    """
    assert isinstance(node.spec, Eltwise)
    out = types[node.outputs[0]]
    if types[node.inputs[0] or ""].shape != out.shape:
        return
    scale, shift = np.ones(out.shape[1]), np.zeros(out.shape[1])
    yield scale, shift
    for step in node.spec.post_ops:
        value = _per_channel(step, node, consts, out)
        if value is None or step.fn not in AFFINE or (step.fn == "div" and step.swapped):
            return
        if step.fn in ("mul", "div"):
            factor = value if step.fn == "mul" else 1 / value
            scale, shift = scale * factor, shift * factor
        else:
            sign = -1.0 if step.fn == "sub" and step.swapped else 1.0
            scale, shift = scale * sign, shift * sign
            shift = shift + (value if step.fn == "add" or step.swapped else -value)
        yield scale, shift


def _per_channel(
    step: PostOp, node: Node, consts: Mapping[str, Array], out: TensorType
) -> Array | None:
    if step.operand is None:
        return np.full(out.shape[1], step.params[0]) if step.params else None
    array = consts.get(node.inputs[step.operand] or "")
    if array is None or array.ndim > out.rank:
        return None
    full = array.reshape((1,) * (out.rank - array.ndim) + array.shape).astype(np.float64)
    if any(d != 1 for a, d in enumerate(full.shape) if a != 1):
        return None
    return np.broadcast_to(full.reshape(-1), (out.shape[1],))


def _fold(
    conv: Node,
    node: Node,
    found: tuple[Array, Array],
    consts: dict[str, Array],
    types: dict[str, TensorType],
) -> Node | None:
    """Return the convolution with scaled weights and a new bias, producing the node's output.

    None where single precision does not hold them.
    """
    scale, shift = found
    weights = consts[conv.inputs[1] or ""]
    old_bias = conv.inputs[BIAS] if len(conv.inputs) > BIAS else None
    bias = consts[old_bias].astype(np.float64) if old_bias else np.zeros(len(scale))
    w_name, b_name = f"{node.outputs[0]}:w", f"{node.outputs[0]}:b"
    scaled = weights.astype(np.float64) * scale.reshape(-1, *(1,) * (weights.ndim - 1))
    moved = bias * scale + shift
    limits = np.finfo(weights.dtype)
    if not _holds(scaled, limits) or np.abs(moved).max(initial=0) > limits.max:
        return None
    consts[w_name] = scaled.astype(weights.dtype)
    consts[b_name] = moved.astype(weights.dtype)
    for name in (w_name, b_name):
        types[name] = TensorType(consts[name].shape, types[conv.inputs[1] or ""].dtype)
    return replace(
        conv,
        inputs=(conv.inputs[0], w_name, b_name),
        outputs=node.outputs,
        origin=f"{conv.origin} + {node.origin}",
    )


def _holds(weights: Array, limits: np.finfo[Any]) -> bool:
    """Whether weights become neither infinite nor, all of them, too small to keep their digits."""
    largest = np.abs(weights).max(initial=0)
    return bool(largest == 0 or limits.tiny / limits.eps <= largest <= limits.max)

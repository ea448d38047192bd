"""Equalisation across layers: channels of a convolution and of the one behind it share their sizes.

A channel's weights and bias in front are multiplied by a power of two, and the weights that read it are
divided by it. Where a ReLU or nothing lies between, the float network computes the same bits as before, and
one scale for all weights of a layer loses less. A ReLU6 limits a factor to what keeps the channel below 6
over the calibration; a channel that reaches 6 there keeps its size. Nothing in it depends on the target.
Source: Nagel and others, Data-Free Quantization Through Weight Equalization and Bias Correction, 2019.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from clnn.bridges.layers import RELU6, clipped
from clnn.graph.ir import Graph, Node
from clnn.graph.passes.dead import remove_dead
from clnn.ops.conv.spec import Conv2d
from clnn.ops.pool.spec import Pool
from clnn.ops.rows.reduce import Reduce
from clnn.records import dataclass
from clnn.types import Array

SWEEPS = 40
MOST = 20  # a factor is at most 2**MOST, over all sweeps
CLIP = 6.0


@dataclass(frozen=True)
class Pair:
    """Two convolutions, the second alone reads the first. value: what lies between, behind the activation."""

    first: Node
    second: Node
    value: str
    activation: str


def pairs(graph: Graph) -> list[Pair]:
    """Return the pairs of a graph whose channels can be equalised, in order."""
    consumers, public = graph.consumers(), set(graph.outputs.values())
    found = []
    for node in graph.nodes:
        if not _plain(graph, node):
            continue
        value, activation, between = node.outputs[0], "", node.outputs[0]
        while len(consumers[value]) == 1 and value not in public:
            user = consumers[value][0]
            kind = clipped(user.spec)
            if _plain(graph, user) and user.inputs[0] == value:
                found.append(Pair(node, user, between, activation))
                break
            if kind and between == node.outputs[0]:
                activation, between = kind, user.outputs[0]
            elif not _homogeneous(graph, user):
                break
            value = user.outputs[0]
    return found


def _plain(graph: Graph, node: Node) -> bool:
    """Whether a node is a convolution of float constants, with a bias for each channel or none."""
    if not isinstance(node.spec, Conv2d) or node.spec.post_ops:
        return False
    given = [graph.consts.get(n) for n in node.inputs[1:] if n is not None]
    return len(given) in (1, 2) and all(
        a is not None and a.dtype == np.float32 and (k == 0 or a.ndim == 1)
        for k, a in enumerate(given)
    )


def _homogeneous(graph: Graph, node: Node) -> bool:
    """Whether factors of channels pass through a node: pooling and means of images."""
    spec = node.spec
    if isinstance(spec, Pool):
        return spec.mode in ("max", "average") and not spec.post_ops and not spec.indices
    if isinstance(spec, Reduce):
        kind = graph.types[node.outputs[0]]
        return (spec.fn, spec.axes, spec.post_ops, kind.rank) == ("mean", (2, 3), (), 4)
    return False


def equalised(graph: Graph, found: Sequence[Pair], peaks: Mapping[str, Array]) -> Graph:
    """Return a graph with other weights that computes the same.

    peaks: for the value of each pair behind a ReLU6, the largest magnitude of each channel.
    """
    consts, types, nodes = dict(graph.consts), dict(graph.types), {}
    for node in {n.name: n for pair in found for n in (pair.first, pair.second)}.values():
        own = [n and f"{n} of {node.name}" for n in node.inputs[1:]]
        for name, made in zip(node.inputs[1:], own, strict=True):
            if name is not None and made is not None:
                consts[made], types[made] = graph.consts[name], graph.types[name]
        nodes[node.name] = replace(node, inputs=(node.inputs[0], *own))
    room = {p.value: _room(peaks[p.value]) for p in found if p.activation == RELU6}
    total = {p.value: np.zeros(len(consts[str(nodes[p.first.name].inputs[1])]), int) for p in found}
    for _ in range(SWEEPS):
        changed = False
        for pair in found:
            wanted = total[pair.value] + _powers(consts, nodes, pair)
            wanted = np.clip(wanted, -MOST, MOST)
            if pair.value in room:
                wanted = np.minimum(wanted, room[pair.value])
                wanted[room[pair.value] < 0] = 0
            by = wanted - total[pair.value]
            if by.any():
                changed, total[pair.value] = True, wanted
                _multiply(consts, nodes[pair.first.name], nodes[pair.second.name], by)
        if not changed:
            break
    kept = [nodes.get(n.name, n) for n in graph.nodes]
    return remove_dead(graph.with_nodes(kept, consts=consts, types=types))


def _room(peaks: Array) -> Array:
    """Return the powers of two by which channels may grow below 6; -1 for those that reach 6."""
    room = np.floor(np.log2(CLIP / np.maximum(peaks, CLIP * 2.0 ** -(MOST + 1)))).astype(int)
    return np.where(peaks >= CLIP, -1, np.minimum(room, MOST))


def _read(weights: Array, group: int) -> Array:
    """Return weights (oc, ic / group, ...) as (group, oc / group, ic / group, ...)."""
    return weights.reshape(group, len(weights) // group, *weights.shape[1:])


def _powers(consts: Mapping[str, Array], nodes: Mapping[str, Node], pair: Pair) -> Array:
    """Return the powers of two that make channels of both layers alike beside the largest of each."""
    one, two = nodes[pair.first.name], nodes[pair.second.name]
    assert isinstance(two.spec, Conv2d)
    front = np.abs(consts[str(one.inputs[1])])
    back = np.abs(_read(consts[str(two.inputs[1])], two.spec.group))
    made = front.reshape(len(front), -1).max(1)
    axes = (1, *range(3, back.ndim))
    read = back.max(axes).reshape(-1)
    if not (made.max() > 0 and read.max() > 0 and np.isfinite(made.max() + read.max())):
        return np.zeros(len(front), int)
    least = np.float64(2.0 ** -(2 * MOST))
    share = [np.maximum(v / v.max(), least) for v in (made.astype(np.float64), read)]
    powers = np.rint(np.log2(share[1] / share[0]) / 2).astype(int)
    return np.where(read > 0, powers, 0)


def _multiply(consts: dict[str, Array], one: Node, two: Node, by: Array) -> None:
    """Multiply a layer's channels by 2**by, and divide what reads them."""
    for name in one.inputs[1:]:
        if name is not None:
            array = consts[name]
            consts[name] = np.ldexp(array, by.reshape(-1, *(1,) * (array.ndim - 1)))
    assert isinstance(two.spec, Conv2d)
    name = str(two.inputs[1])
    weights = consts[name]
    groups = _read(weights, two.spec.group)
    each = by.reshape(groups.shape[0], 1, groups.shape[2], *(1,) * (groups.ndim - 3))
    consts[name] = np.ldexp(groups, -each).reshape(weights.shape)

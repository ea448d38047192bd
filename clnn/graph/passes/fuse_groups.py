"""Group normalisation as exporters write it becomes one node, which needs no copies between layouts.

They see the channels of a group as one row (Reshape), normalise rows (InstanceNormalization), and see the
image again (Reshape). An image with channels innermost would be copied to planes for that, and stay so.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from clnn.budget import TABLE_BYTES
from clnn.graph.ir import Graph, Node
from clnn.ops.movement.views import Reshape
from clnn.ops.rows.norm import Normalise
from clnn.ops.shared.functions import PostOp
from clnn.types import Array, TensorType

IDLE = {"mul": 1, "add": 0}


def fuse_groups(graph: Graph) -> Graph:
    """Return `graph` with reshape, normalisation of rows, reshape back as a normalisation of groups.

    What the normalisation multiplies by and adds must be constants of a group, and nothing else may read
    what lies between.
    """
    made = graph.producers()
    uses = graph.consumers()
    public = set(graph.outputs.values())
    consts, types = dict(graph.consts), dict(graph.types)
    nodes: dict[str, Node] = {}
    for node in graph.nodes:
        norm = made.get(node.inputs[0] or "") if isinstance(node.spec, Reshape) else None
        split = (
            made.get(norm.inputs[0] or "") if norm and isinstance(norm.spec, Normalise) else None
        )
        if norm and split and isinstance(split.spec, Reshape):
            inner = (norm.outputs[0], split.outputs[0])
            unjoined = split.name in nodes  # not the end of another such normalisation
            if unjoined and all(len(uses[name]) == 1 and name not in public for name in inner):
                joined = _joined(node, norm, split, graph, consts, types)
                if joined is not None:
                    del nodes[norm.name], nodes[split.name]
                    node = joined
        nodes[node.name] = node
    return graph.with_nodes(nodes.values(), consts=consts, types=types)


def _joined(
    back: Node,
    norm: Node,
    split: Node,
    graph: Graph,
    consts: dict[str, Array],
    types: dict[str, TensorType],
) -> Node | None:
    """Return the normalisation of groups of channels, None where these nodes are another thing."""
    spec, source = norm.spec, split.inputs[0]
    assert isinstance(spec, Normalise) and source is not None
    image, rows = graph.types[source], graph.types[split.outputs[0]]
    if graph.types[back.outputs[0]] != image or not _are_groups(spec, image, rows):
        return None
    groups, channels = rows.shape[1], image.shape[1]
    found = _of_channels(norm, graph, groups, channels)
    if found is None:
        return None
    post_ops, inputs = [], [source]
    for step, values in found:
        if (values == IDLE.get(step.fn)).all():
            continue
        name = f"{back.outputs[0]}:{step.fn}{len(inputs)}"
        consts[name] = values.reshape(-1, *(1,) * (image.rank - 2))
        types[name] = TensorType(consts[name].shape, image.dtype)
        post_ops.append(replace(step, operand=len(inputs)))
        inputs.append(name)
    joined = replace(
        spec,
        axes=tuple(range(2, image.rank)),
        groups=0 if groups == channels else groups,
        post_ops=tuple(post_ops),
    )
    return replace(
        back,
        name=norm.name,
        spec=joined,
        inputs=tuple(inputs),
        origin=f"{norm.origin} + {back.origin}",
    )


def _are_groups(spec: Normalise, image: TensorType, rows: TensorType) -> bool:
    """Whether rows are all elements of some neighbouring channels of an image."""
    if spec.groups or image.rank < 3 or rows.rank < 3 or image.shape[0] != rows.shape[0]:
        return False
    whole = spec.axes == tuple(range(2, rows.rank))
    return whole and rows.shape[1] > 0 and image.shape[1] % rows.shape[1] == 0


def _of_channels(
    norm: Node, graph: Graph, groups: int, channels: int
) -> list[tuple[PostOp, Array]] | None:
    """Return the normalisation's steps with their values, one for each channel; None for other ones."""
    assert isinstance(norm.spec, Normalise)
    rank, found = graph.types[norm.outputs[0]].rank, []
    for step in norm.spec.post_ops:
        values = None if step.operand is None else graph.consts.get(norm.inputs[step.operand] or "")
        fits = values is not None and values.size in (1, groups)
        if values is None or not fits or step.fn not in IDLE or step.swapped:
            return None
        if values.itemsize * channels > TABLE_BYTES:
            return None
        full = values.reshape((1,) * (rank - values.ndim) + values.shape)
        if full.size != full.shape[1]:
            return None  # another axis than that of groups
        found.append(
            (step, np.repeat(np.broadcast_to(full.reshape(-1), groups), channels // groups))
        )
    return found

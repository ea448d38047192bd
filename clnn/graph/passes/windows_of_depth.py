"""Depths that lie side by side as channels become windows of the volume that they are slices of.

    x -> pad depth -> slice, slice, slice -> concatenate channels -> depths as images
    becomes      x -> windows of depth

Windows are a view, where concatenated slices of one value are copies of it.
"""

from __future__ import annotations

import numpy as np

from clnn.graph.ir import Graph, Node
from clnn.ops.conv.depth_windows import DEPTH, DepthWindows
from clnn.ops.conv.volumes import JoinDepth
from clnn.ops.movement.pad import Pad
from clnn.ops.movement.views import Concat, Slice
from clnn.records import changed
from clnn.types import F32, TensorType


def windows_of_depth(graph: Graph) -> Graph:
    """Return `graph` with windows of depth in place of concatenated slices, of one volume of floats.

    Which depths windows read depends on extents, so networks of open extents are not for this pass.
    """
    producers, types, consts = graph.producers(), dict(graph.types), dict(graph.consts)
    nodes = []
    for node in graph.nodes:
        found = _windows(node, producers, graph) if isinstance(node.spec, JoinDepth) else None
        if found is not None:
            source, spec = found
            zero = f"{node.outputs[0]}:zero"
            consts[zero], types[zero] = np.zeros((), np.float32), TensorType((), F32)
            node = changed(node, spec=spec, inputs=(source, zero))
        nodes.append(node)
    return graph.with_nodes(nodes, types=types, consts=consts)


def _windows(
    node: Node, producers: dict[str, Node], graph: Graph
) -> tuple[str, DepthWindows] | None:
    """Return the volume whose windows a node makes images of, and the windows; None where there are none."""
    joined = node.inputs[0] or ""
    concat, given = producers.get(joined), graph.types[joined]
    if concat is None or given.dtype != F32 or given.shape[0] != 1:
        return None
    if not isinstance(concat.spec, Concat) or concat.spec.axis != 1 or concat.spec.mixed:
        return None
    reads = [_read(name or "", producers, graph) for name in concat.inputs]
    sources, starts, strides = (set(part) for part in zip(*reads, strict=True))
    first = min(starts)
    if (
        len(sources) > 1
        or len(strides) > 1
        or [r[1] for r in reads] != [*range(first, first + len(reads))]
    ):
        return None
    (source,), (stride,) = sources, strides
    source, before = _padded(source, producers)
    if before - first < 0:
        return None
    return source, DepthWindows(len(reads), stride, before - first, given.shape[DEPTH])


def _read(name: str, producers: dict[str, Node], graph: Graph) -> tuple[str, int, int]:
    """Return what a value is depths of, the first of them, and the distance from one to the next."""
    node = producers.get(name)
    if node is None or not isinstance(node.spec, Slice):
        return name, 0, 1
    spec, source = node.spec, node.inputs[0] or ""
    others = [axis for axis in range(len(spec.starts)) if axis != DEPTH]
    shape = graph.types[source].shape
    whole = all(
        (spec.starts[a], spec.extents[a], spec.steps[a]) == (0, shape[a], 1) for a in others
    )
    if not whole or spec.steps[DEPTH] < 1:
        return name, 0, 1
    return source, spec.starts[DEPTH], spec.steps[DEPTH]


def _padded(name: str, producers: dict[str, Node]) -> tuple[str, int]:
    """Return a value without zeros around its depths, and how many depths of them come first."""
    node = producers.get(name)
    pad = node.spec if node is not None else None
    if node is None or not isinstance(pad, Pad) or pad.mode != "constant" or pad.value != 0:
        return name, 0
    sides = [
        pair for axis, pair in enumerate(zip(pad.before, pad.after, strict=True)) if axis != DEPTH
    ]
    if any(any(pair) for pair in sides) or min(pad.before[DEPTH], pad.after[DEPTH]) < 0:
        return name, 0
    return node.inputs[0] or "", pad.before[DEPTH]

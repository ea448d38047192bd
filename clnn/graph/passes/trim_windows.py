"""Taps of convolutions that no window meets data with are left out, and with them the border that they need.

A 3x3 window with a dilation of 24 over a map of 16 rows meets data with its middle tap alone. Padded for the others the
map would be twenty times as large.
"""

from __future__ import annotations

from dataclasses import replace

from clnn.arith._base import FLOAT
from clnn.graph.ir import Graph, Node
from clnn.graph.passes._taps import may_leave_out, weights_of
from clnn.ops.conv.spec import Conv2d
from clnn.ops.shared.window import Window
from clnn.types import Array, TensorType


def trim_windows(graph: Graph) -> Graph:
    """Return `graph` with windows of the taps that meet data; for extents that are known."""
    types, consts = dict(graph.types), dict(graph.consts)
    nodes = [_trimmed(node, types, consts) for node in graph.nodes]
    return graph.with_nodes(nodes, types=types, consts=consts)


def _trimmed(node: Node, types: dict[str, TensorType], consts: dict[str, Array]) -> Node:
    """Return a node, with less taps where it is a convolution that has some for nothing."""
    spec, weights = node.spec, node.inputs[1] if len(node.inputs) > 1 else None
    if not isinstance(spec, Conv2d) or spec.arith is not FLOAT or weights not in consts:
        return node
    x, out = types[node.inputs[0] or ""], types[node.outputs[0]]
    extents = zip(x.shape[2:], out.shape[2:], strict=True)
    kept = [live_taps(spec.window, axis, *pair) for axis, pair in enumerate(extents)]
    whole = [range(k) for k in spec.window.kernel]
    if kept == whole or not all(kept) or not may_leave_out(consts[weights]):
        return node
    window = _of_taps(spec.window, kept)
    if window is None:
        return node
    cut = weights_of(weights, kept, types, consts)
    inputs = (node.inputs[0], cut, *node.inputs[2:])
    return replace(node, spec=replace(spec, window=window), inputs=inputs)


def live_taps(window: Window, axis: int, extent: int, out: int) -> range:
    """Return the taps along a spatial axis that meet one of `extent` inputs for one of `out` outputs."""
    stride, live = window.strides[axis], []
    for tap in range(window.kernel[axis]):
        offset = tap * window.dilations[axis] - window.before[axis]
        first = max(-(offset // stride), 0)  # the first output whose input is not before the map
        if first < out and first * stride + offset < extent:
            live.append(tap)
    return range(live[0], live[-1] + 1) if live else range(0)


def _of_taps(window: Window, kept: list[range]) -> Window | None:
    """Return the window of some taps, None where it would begin behind the map's first element, or may end outside."""
    steps = zip(kept, window.kernel, window.dilations, strict=True)
    cuts = [(taps.start * d, (k - taps.stop) * d) for taps, k, d in steps]
    before = tuple(b - low for b, (low, _) in zip(window.before, cuts, strict=True))
    after = tuple(a - high for a, (_, high) in zip(window.after, cuts, strict=True))
    if min((*before, *after)) < 0 or window.ceil:
        return None
    return replace(window, kernel=tuple(map(len, kept)), before=before, after=after)

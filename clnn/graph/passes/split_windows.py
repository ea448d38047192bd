"""Convolutions whose windows lie mostly in the border become parts that meet data with every tap.

A 3x3 window with dilation 24 over a map of 28 rows meets data with one row of taps but in the first
and the last four rows, where it does with two. Each part reads the rows that its taps meet, and the
parts are one map again side by side: views on either end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from clnn.arith._base import FLOAT
from clnn.graph.ir import Graph, Node
from clnn.graph.passes._taps import may_leave_out, weights_of
from clnn.ops.conv.spec import Conv2d
from clnn.ops.movement.views import Concat, Slice
from clnn.ops.shared.window import Window
from clnn.records import dataclass
from clnn.types import TensorType

MOST_SHARE = 0.9
"""Of the multiplications that parts may have; from there on their edges cost what they save."""

LEAST_FLOPS = 10_000_000
"""Of a convolution in parts: a smaller one takes no longer than the launches."""

LEAST_EXTENT = 4
"""Of a part along an axis; kernels work in tiles."""


@dataclass(frozen=True)
class _Band:
    """Outputs from `begin` to before `end` along an axis, for which `taps` meet data, and no other.

    reads: the inputs that they meet, as a range.
    """

    begin: int
    end: int
    taps: range
    reads: range


def split_windows(graph: Graph) -> Graph:
    """Return `graph` with dilated convolutions of constant float weights in parts without border.

    Where that leaves at most MOST_SHARE of the multiplications. Parts depend on the extents of the
    map, so networks of open extents are not for this pass.
    """
    splitter = _Splitter(graph)
    nodes = [part for node in graph.nodes for part in splitter.parts(node)]
    return graph.with_nodes(nodes, types=splitter.types, consts=splitter.consts)


class _Splitter:
    """Makes the nodes, values and weights of parts."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.types = dict(graph.types)
        self.consts = dict(graph.consts)

    def parts(self, node: Node) -> list[Node]:
        """Return the nodes that compute `node`: itself where it stays."""
        bands = self._bands(node)
        if bands is None:
            return [node]
        made: list[Node] = []
        rows = []
        for row in bands[0] if len(bands) == 2 else [None]:
            along = [
                self._part(node, (band,) if row is None else (row, band), made)
                for band in bands[-1]
            ]
            rows.append(self._joined(node, along, len(bands) + 1, made))
        last = self._joined(node, rows, 2, made)
        made[-1] = replace(made[-1], outputs=node.outputs)
        if last != node.outputs[0]:
            del self.types[last]
        return made

    def _bands(self, node: Node) -> list[list[_Band]] | None:
        """Return the bands along each spatial axis, None where the convolution stays as it is."""
        spec = node.spec
        if (
            not isinstance(spec, Conv2d)
            or spec.arith is not FLOAT
            or not self._same_everywhere(node)
        ):
            return None
        x, out = self.types[node.inputs[0] or ""], self.types[node.outputs[0]]
        if {*spec.window.dilations} == {1} or not x.size:
            return None
        if spec.flops(self.graph.input_types(node), (out,)) < LEAST_FLOPS:
            return None
        extents = zip(x.shape[2:], out.shape[2:], strict=True)
        bands = [list(_along(spec.window, a, e, o)) for a, (e, o) in enumerate(extents)]
        if any(not b.taps or b.end - b.begin < LEAST_EXTENT for along in bands for b in along):
            return None
        work = math.prod(sum(len(b.taps) * (b.end - b.begin) for b in along) for along in bands)
        whole = math.prod(k * o for k, o in zip(spec.window.kernel, out.shape[2:], strict=True))
        few = work <= MOST_SHARE * whole and may_leave_out(self.consts[node.inputs[1] or ""])
        return bands if few else None

    def _same_everywhere(self, node: Node) -> bool:
        """Whether all but x is constant and, but for the weights, the same at each place."""
        spatial = self.types[node.outputs[0]].rank - 2
        return node.inputs[1] in self.consts and all(
            n is None or (n in self.consts and (k == 2 or {*self.types[n].shape[-spatial:]} <= {1}))
            for k, n in enumerate(node.inputs)
            if k >= 2
        )

    def _part(self, node: Node, bands: tuple[_Band, ...], made: list[Node]) -> str:
        """Append the nodes of one part to `made`. Returns the value that it is."""
        assert isinstance(node.spec, Conv2d)
        name = f"{node.outputs[0]}:" + ",".join(f"{b.begin}-{b.end}" for b in bands)
        source = self._read(node, bands, name, made)
        taps = [b.taps for b in bands]
        weights = weights_of(node.inputs[1] or "", taps, self.types, self.consts)
        zeros = (0,) * len(bands)
        window = replace(
            node.spec.window,
            kernel=self.types[weights].shape[2:],
            before=zeros,
            after=zeros,
            ceil=False,
        )
        self.types[name] = self._sized(node, tuple(b.end - b.begin for b in bands))
        inputs = (source, weights, *node.inputs[2:])
        spec = replace(node.spec, window=window)
        made.append(Node(name, spec, inputs, (name,), node.origin))
        return name

    def _read(self, node: Node, bands: tuple[_Band, ...], name: str, made: list[Node]) -> str:
        """Append the slice of x that a part reads to `made`, where it is not all. Returns it."""
        source = node.inputs[0] or ""
        x = self.types[source]
        extents = (*x.shape[:2], *(len(b.reads) for b in bands))
        if extents == x.shape:
            return source
        starts = (0, 0, *(b.reads.start for b in bands))
        self.types[f"{name}:x"] = TensorType(extents, x.dtype)
        slicing = Slice(starts, extents, (1,) * x.rank)
        made.append(Node(f"{name}:x", slicing, (source,), (f"{name}:x",), node.origin))
        return f"{name}:x"

    def _sized(self, node: Node, spatial: tuple[int, ...]) -> TensorType:
        out = self.types[node.outputs[0]]
        return TensorType((*out.shape[:2], *spatial), out.dtype)

    def _joined(self, node: Node, parts: list[str], axis: int, made: list[Node]) -> str:
        """Append the concatenation of parts to `made`, where there are several. Returns it."""
        if len(parts) == 1:
            return parts[0]
        name = f"{parts[0]}:{axis}"
        shape = list(self.types[parts[0]].shape)
        shape[axis] = sum(self.types[p].shape[axis] for p in parts)
        self.types[name] = TensorType(tuple(shape), self.types[parts[0]].dtype)
        made.append(Node(name, Concat(axis), tuple(parts), (name,), node.origin))
        return name


def _along(window: Window, axis: int, extent: int, out: int) -> Iterator[_Band]:
    """Yield the bands along a spatial axis of `extent` inputs and `out` outputs, in order."""
    kernel, stride = window.kernel[axis], window.strides[axis]
    offsets = [tap * window.dilations[axis] - window.before[axis] for tap in range(kernel)]
    first = [min(max(-(offset // stride), 0), out) for offset in offsets]
    last = [min(max((extent - 1 - offset) // stride + 1, 0), out) for offset in offsets]
    for begin, end in pairwise(sorted({0, out, *first, *last})):
        live = [t for t in range(kernel) if first[t] <= begin and end <= last[t]]
        if not live:
            yield _Band(begin, end, range(0), range(0))
            continue
        low = begin * stride + offsets[live[0]]
        high = (end - 1) * stride + offsets[live[-1]]
        yield _Band(begin, end, range(live[0], live[-1] + 1), range(low, high + 1))

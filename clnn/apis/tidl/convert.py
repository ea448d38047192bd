"""Nodes in front of and behind a network that take and give TIDL's elements instead of real numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from clnn.apis.tidl.tensors import IOTensor
from clnn.errors import DTypeError
from clnn.graph.ir import Graph, Node
from clnn.layout import TensorLayout
from clnn.ops.elementwise.cast import Cast
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.movement.views import Copy
from clnn.ops.shared.functions import PostOp
from clnn.ops.spec import OpSpec
from clnn.plan.alias import find_links
from clnn.plan.layouts import border_demands, memory_orders
from clnn.records import dataclass
from clnn.types import BOOL, F32, F64, DType, TensorType, dtype_of


@dataclass(frozen=True)
class Border:
    """What a network does with one of its inputs or outputs.

    value: that lies in the buffer. steps: what runs between the buffer and the network, in words.
    """

    tensor: IOTensor
    value: str
    steps: tuple[str, ...] = ()


class Edges:
    """A graph whose inputs and outputs become buffers of TIDL, one by one."""

    def __init__(self, graph: Graph, start: str) -> None:
        self.graph, self.start = graph, start
        self.layouts: dict[str, TensorLayout] = {}
        self._orders, self._demands = memory_orders(graph), border_demands(graph)
        self._links = find_links(graph)

    def take(self, name: str, tensor: IOTensor) -> Border:
        """Let input `name` be read from a buffer. Raises ShapeError or DTypeError where it does not fit."""
        wanted = self.graph.types[name]
        layout = tensor.layout_of(wanted.shape, self.start)
        chain = _real_from(tensor, wanted.dtype)
        steps: tuple[str, ...] = ("converted to real numbers",)
        if not chain:
            chain, steps = self._rearranged(name, layout)
        value = name if not chain else f"{name}:tidl"
        self.layouts[value] = layout
        if chain:
            self._in_front(name, TensorType(wanted.shape, dtype_of(tensor.dtype)), chain)
        return Border(tensor, value, steps if chain else ())

    def _rearranged(self, name: str, layout: TensorLayout) -> tuple[list[OpSpec], tuple[str, ...]]:
        """Return a copy where the network wants another order or border than the buffer has."""
        order, needs = self._orders[name], self._demands.get(name, [])
        steps, rank = list[str](), range(layout.rank)
        if moving_axes(order, layout) != moving_axes(layout.order, layout):
            steps.append("copied: the network reads its axes in another order")
        short = any(
            b.before[a] > layout.before[a] or b.after[a] > layout.after[a]
            for b in needs
            for a in rank
        )
        if short or any(b.fill not in (None, 0.0) for b in needs):
            steps.append("copied: the network reads a wider border, or one of other values")
        return ([Copy()] if steps else []), tuple(steps)

    def _in_front(self, name: str, kind: TensorType, chain: list[OpSpec]) -> None:
        graph, source = self.graph, f"{name}:tidl"
        types, nodes = {**graph.types, source: kind}, list[Node]()
        for k, spec in enumerate(chain):
            out = name if k == len(chain) - 1 else f"{source}{k}"
            (types[out],) = spec.infer([types[source]])
            nodes.append(Node(f"tidl:{name}:{k}", spec, (source,), (out,), f"TIDL input {name}"))
            source = out
        inputs = tuple(f"{name}:tidl" if n == name else n for n in graph.inputs)
        self.graph = replace(graph, nodes=(*nodes, *graph.nodes), types=types, inputs=inputs)

    def give(self, name: str, tensor: IOTensor) -> Border:
        """Let output `name` be written to a buffer. Raises ShapeError or DTypeError."""
        graph, source = self.graph, self.graph.outputs[name]
        kind = graph.types[source]
        layout = tensor.layout_of(kind.shape, self.start)
        chain = _elements_of(tensor, kind.dtype)
        steps: tuple[str, ...] = ("converted to the buffer's elements",)
        if not chain:
            chain, steps = self._apart(source, layout)
        types, nodes = dict(graph.types), list(graph.nodes)
        for k, spec in enumerate(chain):
            out = f"{name}:tidl{k}"
            (types[out],) = spec.infer([types[source]])
            nodes.append(Node(f"tidl:{name}:{k}", spec, (source,), (out,), f"TIDL output {name}"))
            source = out
        outputs = {**graph.outputs, name: source}
        self.graph = replace(graph, nodes=tuple(nodes), types=types, outputs=outputs)
        self.layouts[source] = layout
        return Border(tensor, source, steps if chain else ())

    def _apart(self, value: str, layout: TensorLayout) -> tuple[list[OpSpec], tuple[str, ...]]:
        """Return a copy where the network cannot write the value to the buffer itself."""
        graph, steps = self.graph, list[str]()
        if value in graph.inputs or value in graph.consts:
            steps.append("copied: the network does not compute it")
        elif value in self.layouts:
            steps.append("copied: it is in another output's buffer")
        elif value in self._links or any(link.parent == value for link in self._links.values()):
            steps.append("copied: it shares memory with another value of the network")
        elif any(value in node.inputs for node in graph.nodes):
            steps.append("copied: the network reads it, too")
        elif moving_axes(self._orders[value], layout) != moving_axes(layout.order, layout):
            steps.append("copied: the network writes its axes in another order")
        return ([Copy()] if steps else []), tuple(steps)


def moving_axes(order: Sequence[int], layout: TensorLayout) -> list[int]:
    """Return the axes of an order that have more than one element."""
    return [a for a in order if layout.shape[a] != 1]


def _real_from(tensor: IOTensor, wanted: DType) -> list[OpSpec]:
    """Return what makes the network's real numbers of a buffer's elements; nothing for equal ones."""
    given = dtype_of(tensor.dtype)
    plain = tensor.scale == 1 and tensor.zero_point == 0
    if given == wanted and (not wanted.is_float or plain):
        return []
    if wanted != F32:
        raise DTypeError(
            f"{tensor} has elements of {given.name}, the network takes {wanted.name}: only float32 is"
            " made of other elements."
        )
    steps = []
    if tensor.zero_point:
        steps.append(PostOp("sub", (float(tensor.zero_point),)))
    if tensor.scale != 1:
        steps.append(PostOp("div", (float(np.float32(tensor.scale)),)))
    cast = [] if given == F32 else [Cast(F32)]
    return [*cast, *([Eltwise(tuple(steps))] if steps else [])]


def _elements_of(tensor: IOTensor, given: DType) -> list[OpSpec]:
    """Return what makes a buffer's elements of the network's values; nothing for equal ones."""
    wanted = dtype_of(tensor.dtype)
    plain = tensor.scale == 1 and tensor.zero_point == 0
    if given == wanted and (not given.is_float or plain):
        return []
    if given not in (F32, BOOL) and not (plain and given != F64):
        raise DTypeError(
            f"{tensor} has elements of {wanted.name}, the network gives {given.name}: only float32 is"
            " quantised."
        )
    if given != F32:
        return [Cast(wanted)]
    steps = [] if tensor.scale == 1 else [PostOp("mul", (float(np.float32(tensor.scale)),))]
    if wanted != F32:
        steps.append(PostOp("round"))
    if tensor.zero_point:
        steps.append(PostOp("add", (float(tensor.zero_point),)))
    if wanted == F32:
        return [Eltwise(tuple(steps))]
    return [Eltwise((*steps, PostOp("clip", _limits(wanted)))), Cast(wanted)]


def _limits(dtype: DType) -> tuple[float, float]:
    """Return the least and the largest float32 among the integers of a type."""
    info = np.iinfo(dtype.numpy)  # type: ignore[type-var]
    low, high = np.float32(info.min), np.float32(info.max)
    if int(high) > info.max:
        high = np.nextafter(high, np.float32(0))
    return float(low), float(high)

"""Quantisation after training: convolutions and products of constant weights in bytes.

A value is stored in bytes of -127 to 127 where a product reads it, directly or through ops that carry
bytes on; its scale is its largest magnitude, as calibration saw it, over 127. Weights have a scale per
output channel. Results are float32 in registers: fused steps are computed there, and storing rounds.
Ops that only move or select values keep the scale of their input, so that these values share one; any
other op reads and writes float32, with conversions around it, one for each value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

import numpy as np

from clnn.arith._base import FLOAT
from clnn.arith.int8 import Int8
from clnn.errors import SettingError
from clnn.graph.ir import Graph, Node
from clnn.graph.passes._stored import StoredGraph
from clnn.graph.passes.linear import products_as_convolutions
from clnn.ops.conv.problem import BIAS, FEW_CHANNELS
from clnn.ops.conv.spec import Conv2d
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.pool.spec import Pool
from clnn.ops.resize.spec import Resize
from clnn.ops.rows.reduce import Reduce
from clnn.ops.spec import ViewSpec
from clnn.records import dataclass
from clnn.types import F32, I8, S8_LARGEST, Array, DType, TensorType, stored_s8

MOST_PRODUCTS = 2**16  # of a sum, so that it and its bias fit 32 bits
BIAS_STEPS = 2.0**29  # the bias takes at most so many steps of the sum
EMPTY_STEPS = 2.0**20  # and so many where all weights of a channel are 0
LEAST_SCALE = 2.0**-100


def quantise(graph: Graph, ranges: Mapping[str, float]) -> Graph:
    """Return `graph` with products of constant weights in bytes.

    ranges: largest magnitude of each value of observed(graph). Raises SettingError for one that is
    missing.
    """
    return _Quantising(products_as_convolutions(graph), ranges).run()


def observed(graph: Graph) -> list[str]:
    """Return the values of `graph` whose range quantisation wants to know."""
    seen = products_as_convolutions(graph)
    wanted = _wanted(seen)
    return [n for n in graph.types if n in wanted and n not in graph.consts]


def takes_bytes(node: Node, graph: Graph) -> bool:
    """Whether a node is to compute in bytes."""
    spec = node.spec
    if not isinstance(spec, Conv2d) or spec.arith is not FLOAT:
        return False
    x, w = node.inputs[0] or "", graph.consts.get(node.inputs[1] or "")
    bias = node.inputs[BIAS] if len(node.inputs) > BIAS else None
    if w is None or graph.types[x].dtype != F32 or x in graph.consts or not w.size:
        return False
    few = spec.group == 1 and w.shape[1] <= FEW_CHANNELS
    fixed = graph.consts.get(bias) if bias is not None else np.zeros(1)
    if few or fixed is None or fixed.ndim > 1 or w.size // len(w) > MOST_PRODUCTS:
        return False
    return bool(np.isfinite(w).all() and np.isfinite(fixed).all())


def keeps_scale(node: Node) -> bool:
    """Whether a node's results are elements of its inputs, or lie between them."""
    spec = node.spec
    if isinstance(spec, ViewSpec):
        return True
    if isinstance(spec, Pool):
        return spec.mode in ("max", "average") and not (spec.post_ops or spec.indices or spec.rule)
    if isinstance(spec, (Eltwise, Resize)):
        return not spec.post_ops
    return False


def reads_as_stored(node: Node, index: int, graph: Graph) -> bool:
    """Whether a node takes input `index` in bytes or float32 alike, each at a scale of its own."""
    spec = node.spec
    if isinstance(spec, Conv2d):
        whole = index >= spec.first_operand or (index == 0 and not takes_bytes(node, graph))
        return whole and spec.arith is FLOAT
    if isinstance(spec, Eltwise):
        return bool(spec.post_ops)
    return _alone(node)


def writes_bytes(node: Node) -> bool:
    """Whether a node may store its result in bytes."""
    kinds = (Conv2d, Eltwise)
    return isinstance(node.spec, kinds) or keeps_scale(node) or _alone(node)


def _alone(node: Node) -> bool:
    """Whether a node is a reduction whose steps read nothing else."""
    return isinstance(node.spec, Reduce) and all(s.operand is None for s in node.spec.post_ops)


def _wanted(graph: Graph) -> set[str]:
    """Return the values that are wanted in bytes."""
    found: set[str] = set()
    writers = {name for node in graph.nodes if writes_bytes(node) for name in node.outputs}

    def real(name: str | None) -> bool:
        return name is not None and graph.types[name].dtype == F32

    for node in reversed(graph.nodes):
        if takes_bytes(node, graph):
            found |= {node.inputs[0] or ""}
        if not any(n in found for n in node.outputs) or not real(node.outputs[0]):
            continue
        if keeps_scale(node):
            found |= {n for n in node.inputs if n is not None and real(n)}
            continue
        for index, name in enumerate(node.inputs):
            if name in writers and real(name) and reads_as_stored(node, index, graph):
                found |= {name or ""}
    return found


@dataclass
class _Scales:
    """Scales of values; those that must be equal are one group."""

    graph: Graph
    ranges: Mapping[str, float]
    wanted: set[str]
    above: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.graph.nodes:
            if keeps_scale(node) and node.outputs[0] in self.wanted:
                for name in (*node.inputs, *node.outputs):
                    if name is not None and name in self.wanted:
                        self.above[self.root(name)] = self.root(node.outputs[0])
        self.most = self._most()

    def root(self, name: str) -> str:
        while name in self.above and self.above[name] != name:
            name = self.above[name]
        return name

    def _most(self) -> dict[str, float]:
        """Return root -> largest magnitude in its group. Raises SettingError for an unknown one."""
        found: dict[str, float] = {}
        for name in sorted(self.wanted):
            known = self.ranges.get(name)
            if name in self.graph.consts:
                known = float(np.abs(self.graph.consts[name]).max(initial=0.0))
            if known is not None:
                found[self.root(name)] = max(found.get(self.root(name), 0.0), float(known))
        missing = [n for n in sorted(self.wanted) if self.root(n) not in found]
        if missing:
            raise SettingError(
                f"calibration says nothing of value {missing[0]!r} ({len(missing)} such): it was made"
                " of another network, or with other options. Calibrate this one."
            )
        return found

    def stored(self, name: str) -> DType:
        """Return the storage of a value."""
        most = self.most[self.root(name)]
        return stored_s8(max(most / S8_LARGEST, LEAST_SCALE) if most else 1.0)


class _Quantising(StoredGraph):
    def __init__(self, graph: Graph, ranges: Mapping[str, float]) -> None:
        super().__init__(graph)
        self.wanted = _wanted(graph)
        self.scales = _Scales(graph, ranges, self.wanted)

    def run(self) -> Graph:
        for node in self.graph.nodes:
            small = writes_bytes(node) and node.outputs[0] in self.wanted
            inputs = tuple(self._input(node, k, n, small) for k, n in enumerate(node.inputs))
            made = replace(node, inputs=inputs)
            self.nodes.append(self._in_bytes(made) if takes_bytes(node, self.graph) else made)
            if small:
                self.narrow |= {n: self.scales.stored(n) for n in node.outputs}
        return self.finished(lambda name: self._given(name, False))

    def _input(self, node: Node, index: int, name: str | None, small: bool) -> str | None:
        if name is None or self.graph.types[name].dtype != F32:
            return name
        if takes_bytes(node, self.graph) and index == 0:
            return self._given(name, True)
        if keeps_scale(node):
            return self._given(name, small)
        return name if reads_as_stored(node, index, self.graph) else self._given(name, False)

    def _given(self, name: str, small: bool) -> str:
        """Return the value that stands for `name` in bytes or in float32; makes it once."""
        if self.graph.types[name].dtype != F32 or (name in self.narrow) == small:
            return name
        if small:
            return self.converted(name, "s8", self.scales.stored(name))
        return self.converted(name, "f32", None)

    def _in_bytes(self, node: Node) -> Node:
        """Return a convolution with weights in bytes."""
        assert isinstance(node.spec, Conv2d)
        scale = self.narrow[node.inputs[0] or ""].scale
        w = self.graph.consts[node.inputs[1] or ""]
        bias = node.inputs[BIAS] if len(node.inputs) > BIAS else None
        steps = _weight_steps(w, None if bias is None else self.graph.consts[bias], scale)
        name = f"{node.outputs[0]}:bytes"
        by = w.astype(np.float64) / steps.reshape(-1, *(1,) * (w.ndim - 1))
        self.consts[name] = np.clip(np.rint(by), -S8_LARGEST, S8_LARGEST).astype(np.int8)
        self.types[name] = TensorType(w.shape, I8)
        arith = Int8(scale, tuple(map(float, steps)))
        return replace(
            node,
            spec=replace(node.spec, arith=arith),
            inputs=(node.inputs[0], name, *node.inputs[2:]),
        )


def _weight_steps(weights: Array, bias: Array | None, scale: float) -> Array:
    """Return what a step of each output channel's weights is worth, float32.

    That is its largest weight over 127, or more where the bias would not fit the sum.
    """
    most = np.abs(weights.reshape(len(weights), -1).astype(np.float64)).max(axis=1)
    largest = np.zeros(len(weights)) if bias is None else np.abs(bias.astype(np.float64))
    steps = np.where(most > 0, BIAS_STEPS, EMPTY_STEPS)
    least = np.maximum(largest / steps, LEAST_SCALE) / scale
    return np.asarray(np.maximum(most / S8_LARGEST, least), np.float32)

"""A float graph as a graph of a target's integers, layer by layer.

Each value of the float graph has integers, or real numbers where the target has no such layer, or both:
what is missing is made when a layer asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from clnn.bridges.bias import window_means
from clnn.bridges.layers import Grid, Layer, Products, clipped
from clnn.bridges.target import Made, Target
from clnn.graph.builder import GraphBuilder
from clnn.graph.ir import Graph, Node
from clnn.graph.passes.dead import remove_dead
from clnn.graph.passes.fuse_norm import fuse_scale_shift
from clnn.graph.passes.fuse_pad import fuse_pad
from clnn.graph.passes.views import merge_views
from clnn.ops.conv.spec import Conv2d
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.views import Concat, Copy, Reshape, Slice, Transpose
from clnn.ops.pool.spec import Pool
from clnn.ops.rows.reduce import Reduce
from clnn.ops.rows.softmax import Softmax
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.ops.spec import OpSpec
from clnn.types import F32, Array

Ranges = Mapping[str, tuple[float, float]]
PASSES = (remove_dead, merge_views, fuse_pad, fuse_scale_shift, remove_dead)
POINT = Window((1, 1), (1, 1), (1, 1), (0, 0), (0, 0))
VIEWS = (Reshape, Transpose, Slice, Copy)
COMBINED = ("add", "sub", "mul")
FUNCTIONS = ("sigmoid", "tanh")


def float_layers(graph: Graph) -> Graph:
    """Return a float graph whose nodes are the layers of the network: constants are folded, and scales
    behind convolutions are in their weights."""
    for run in PASSES:
        graph = run(graph)
    return graph


class Simulation:
    """A graph of integers as it grows beside a float graph; `layers` lists what became of each node.

    ranges: least and largest value of each value of the float graph. averages: images of what products
    read, by value; biases of those that have one are corrected.
    """

    def __init__(
        self,
        graph: Graph,
        ranges: Ranges,
        target: Target,
        averages: Mapping[str, Array] | None = None,
    ) -> None:
        self.graph, self.ranges, self.target = graph, ranges, target
        self.averages = averages or {}
        self.build, self.layers = GraphBuilder(), list[Layer]()
        self._ints: dict[str, tuple[str, Grid]] = {}
        self._reals: dict[str, str] = {}
        self._consumers = graph.consumers()
        self._done: set[str] = set()

    def run(self) -> Graph:
        """Return the simulation; its inputs and outputs are those of the float graph."""
        for name in self.graph.inputs:
            self._reals[name] = self.build.input(name, self.graph.types[name])
        for node in self.graph.nodes:
            if node.name not in self._done:
                self._lower(node)
        outputs = {public: self._real(value) for public, value in self.graph.outputs.items()}
        return self.build.graph(outputs, f"{self.graph.name} as {self.target.name}")

    def _limits(self, value: str) -> tuple[float, float]:
        return self.ranges.get(value, (-1.0, 1.0))

    def _int(self, value: str) -> tuple[str, Grid]:
        """Return the integers of a value and their grid."""
        if value not in self._ints:
            array = self.graph.consts.get(value)
            ends = self._limits(value)
            if array is not None:
                ends = float(array.min()), float(array.max())
            grid = self.target.grid(*ends)
            self._ints[value] = self.target.quantise(self.build, self._real(value), grid), grid
        return self._ints[value]

    def _real(self, value: str) -> str:
        """Return the real numbers of a value."""
        if value not in self._reals:
            if value in self.graph.consts:
                self._reals[value] = self.build.const(self.graph.consts[value], value)
            else:
                self._reals[value] = self.target.dequantise(self.build, *self._ints[value])
        return self._reals[value]

    def _lower(self, node: Node) -> None:
        """Add a node, as integers where the target has such a layer."""
        real = all(t is None or t.dtype == F32 for t in self.graph.input_types(node))
        lower = next((f for kind, f in _LOWERED.items() if isinstance(node.spec, kind)), None)
        computed = [n for n in node.inputs if n is not None and n not in self.graph.consts]
        if lower is not None and real and computed and lower(self, node):
            return
        inputs = [None if n is None else self._real(n) for n in node.inputs]
        made = self.build.node(node.spec, inputs, node.name, node.origin)
        for value, name in zip(node.outputs, made.outputs, strict=True):
            self._reals[value] = name
        if not isinstance(node.spec, VIEWS):
            self.layers.append(Layer(node.name, node.spec.kind, node.outputs[0], "", None))

    def _keep(self, node: Node, op: str, made: Made | None, value: str, *sources: str) -> bool:
        """Note the integers of a layer; False where the target has none such."""
        if made is None:
            return False
        name, grid, data = made
        self._ints[value] = name, grid
        read = [self._ints[s] for s in sources]
        ints, grids = tuple(n for n, _ in read), tuple(g for _, g in read)
        self.layers.append(Layer(node.name, op, value, name, grid, ints, grids, data))
        return True

    def _activated(self, node: Node) -> tuple[str, str]:
        """Return the activation that alone reads a node's output, and the value behind it."""
        value = node.outputs[0]
        users = self._consumers[value]
        if len(users) == 1 and value not in self.graph.outputs.values():
            activation = clipped(users[0].spec)
            if activation:
                self._done.add(users[0].name)
                return activation, users[0].outputs[0]
        return "", value

    def _products(
        self, node: Node, window: Window, group: int, weights: Array, x: str
    ) -> Made | None:
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        given = np.zeros(len(weights), np.float32) if bias is None else self.graph.consts[bias]
        given = np.broadcast_to(given.reshape(-1), (len(weights),))
        activation, value = self._activated(node)
        image = self.averages.get(str(node.inputs[0]))
        means = image
        if image is not None:
            shape = (*image.shape, *(1,) * (3 - image.ndim))
            means = window_means(image.reshape(shape), window)
        ends = self._limits(value)
        layer = Products(weights, given, window, group, activation, ends, means)
        made = self.target.products(self.build, x, self._int(str(node.inputs[0]))[1], layer)
        return made and (*made[:2], {**made[2], "window": window, "group": group, "value": value})

    def convolution(self, node: Node) -> bool:
        """Add a convolution of constant weights over images."""
        spec, consts = node.spec, self.graph.consts
        assert isinstance(spec, Conv2d)
        known = all(n in consts for n in node.inputs[1:3] if n is not None)
        if not known or spec.post_ops or len(spec.window.kernel) != 2:
            return False
        if any(consts[n].ndim > 1 for n in node.inputs[2:3] if n is not None):
            return False
        x = self._int(str(node.inputs[0]))[0]
        made = self._products(node, spec.window, spec.group, consts[str(node.inputs[1])], x)
        value = made[2]["value"] if made else ""
        op = "depthwise" if spec.group > 1 and spec.group == len(made[2]["weights"]) else "conv"  # type: ignore[index]
        return self._keep(node, op, made, value, str(node.inputs[0]))

    def product(self, node: Node) -> bool:
        """Add a fully connected layer, as a convolution of 1x1 windows."""
        spec, consts, x = node.spec, self.graph.consts, str(node.inputs[0])
        assert isinstance(spec, Gemm)
        plain = (spec.alpha, spec.beta, spec.trans_a, spec.post_ops) == (1.0, 1.0, False, ())
        known = all(n in consts for n in node.inputs[1:3] if n is not None)
        if not plain or not known or self.graph.types[x].rank != 2:
            return False
        weights = consts[str(node.inputs[1])]
        bias = consts.get(str(node.inputs[2])) if len(node.inputs) > 2 else None
        weights = np.ascontiguousarray(weights if spec.trans_b else weights.T)
        units, inputs = weights.shape[-2:]
        if weights.ndim != 2 or (bias is not None and bias.size not in (1, units)):
            return False
        build, (name, _) = self.build, self._int(x)
        image = build.reshape(name, (build.shape(name)[0], inputs, 1, 1))
        made = self._products(node, POINT, 1, weights.reshape(units, inputs, 1, 1), image)
        if made is None:
            return False
        flat = build.reshape(made[0], build.shape(made[0])[:2])
        return self._keep(node, "fully_connected", (flat, *made[1:]), made[2]["value"], x)

    def pooling(self, node: Node) -> bool:
        """Add a maximum or an average of windows."""
        spec, x = node.spec, str(node.inputs[0])
        assert isinstance(spec, Pool)
        if spec.post_ops or spec.indices or len(spec.window.kernel) != 2 or spec.rule:
            return False
        name, grid = self._int(x)
        made = None
        if spec.mode == "max":
            made = self.target.maximum(self.build, name, grid, spec.window)
        elif spec.mode == "average":
            ends = self._limits(node.outputs[0])
            made = self.target.average(self.build, name, grid, spec.window, ends)
        return self._keep(node, f"{spec.mode}_pool", made, node.outputs[0], x)

    def reduction(self, node: Node) -> bool:
        """Add an average of whole images."""
        spec, x = node.spec, str(node.inputs[0])
        assert isinstance(spec, Reduce)
        kind = self.graph.types[x]
        if (spec.fn, spec.axes, spec.post_ops, kind.rank) != ("mean", (2, 3), (), 4):
            return False
        name, grid = self._int(x)
        size = kind.shape[2], kind.shape[3]
        window, ends = Window(size, (1, 1), (1, 1), (0, 0), (0, 0)), self._limits(node.outputs[0])
        made = self.target.average(self.build, name, grid, window, ends)
        if made is None:
            return False
        shaped = self.build.reshape(made[0], self.graph.types[node.outputs[0]].shape)
        return self._keep(node, "average_pool", (shaped, *made[1:]), node.outputs[0], x)

    def elementwise(self, node: Node) -> bool:
        """Add an activation, or a sum, difference or product of two values."""
        spec, build = node.spec, self.build
        assert isinstance(spec, Eltwise)
        activation, x, out = clipped(spec), str(node.inputs[0]), node.outputs[0]
        if activation:
            made = self.target.clip(build, *self._int(x), activation)
            return self._keep(node, activation, made, out, x)
        if len(spec.post_ops) != 1:
            return False
        step = spec.post_ops[0]
        if step.fn in FUNCTIONS and step == PostOp(step.fn):
            return self._keep(
                node, step.fn, self.target.function(build, step.fn, *self._int(x)), out, x
            )
        if step.fn not in COMBINED or step.operand is None:
            return False
        sources = [x, str(node.inputs[step.operand])]
        sources = sources[::-1] if step.swapped else sources
        names, grids = zip(*(self._int(s) for s in sources), strict=True)
        made = self.target.combine(build, step.fn, names, grids, self._limits(out))
        return self._keep(node, step.fn, made, out, *sources)

    def softmax(self, node: Node) -> bool:
        """Add softmax along one axis."""
        spec, x = node.spec, str(node.inputs[0])
        assert isinstance(spec, Softmax)
        if spec.log or spec.post_ops or len(spec.axes) != 1:
            return False
        made = self.target.softmax(self.build, *self._int(x), spec.axes[0])
        return self._keep(node, "softmax", made, node.outputs[0], x)

    def concatenation(self, node: Node) -> bool:
        """Add a concatenation of values on one grid."""
        out, grid = node.outputs[0], self.target.grid(*self._limits(node.outputs[0]))
        sources = [str(n) for n in node.inputs]
        parts = [self.target.regrid(self.build, *self._int(s), grid) for s in sources]
        if any(p is None for p in parts):
            return False
        made = self.build.node(node.spec, parts, node.name, node.origin).outputs[0]
        return self._keep(node, "concat", (made, grid, {}), out, *sources)

    def view(self, node: Node) -> bool:
        """Let a view of integers be one; nothing is computed."""
        x = str(node.inputs[0])
        if x not in self._ints:
            return False
        name, grid = self._ints[x]
        made = self.build.node(node.spec, (name,), node.name, node.origin).outputs[0]
        self._ints[node.outputs[0]] = made, grid
        return True


_LOWERED: dict[type[OpSpec], Callable[[Simulation, Node], bool]] = {
    Conv2d: Simulation.convolution,
    Gemm: Simulation.product,
    Pool: Simulation.pooling,
    Reduce: Simulation.reduction,
    Eltwise: Simulation.elementwise,
    Softmax: Simulation.softmax,
    Concat: Simulation.concatenation,
    **dict.fromkeys(VIEWS, Simulation.view),
}


def watched(graph: Graph, values: Sequence[str]) -> Graph:
    """Return a graph that gives these values as well, under their own names."""
    kept = {v: v for v in values if v in graph.types and v not in graph.consts}
    return replace(graph, outputs={**kept, **graph.outputs})

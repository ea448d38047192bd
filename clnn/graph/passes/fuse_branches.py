"""Sums of convolutions of one value become one convolution, as networks are trained with branches.

What is linear in a value is added before any image is seen: convolutions whose windows have other
extents, a scale and shift of each channel (a batch normalisation beside them), and the value itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from clnn.budget import TABLE_BYTES
from clnn.graph.ir import Graph, Node
from clnn.graph.passes.fuse_norm import is_plain_conv, scale_shift
from clnn.ops.conv.problem import BIAS
from clnn.ops.conv.spec import Conv2d
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.shared.window import Window
from clnn.records import dataclass
from clnn.types import F32, Array, TensorType

MOST_SCALES = 8  # one behind the other, of a value that is added to a convolution


@dataclass(frozen=True)
class Linear:
    """A value as a convolution of `source`, in double precision. convs: whether there is one in it."""

    source: str
    window: Window
    group: int
    weights: Array
    bias: Array
    convs: bool

    def scaled(self, scale: Array, shift: Array) -> Linear:
        """Return it behind a scale and shift of each channel."""
        factors = scale.reshape(-1, *(1,) * (self.weights.ndim - 1))
        return replace(self, weights=self.weights * factors, bias=self.bias * scale + shift)


def fuse_branches(graph: Graph) -> Graph:
    """Return `graph` with sums of convolutions of one value as one, where that multiplies no more.

    Weights are rounded once they are added, so that this is for float32 weights.
    """
    return _Branches(graph).fused()


class _Branches:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.consts, self.types = dict(graph.consts), dict(graph.types)
        self.uses = {name: len(found) for name, found in graph.consumers().items()}
        self.public, self.made = set(graph.outputs.values()), graph.producers()
        self.forms: dict[str, Linear] = {}

    def fused(self) -> Graph:
        """Return the graph with what could be added."""
        nodes = [self._visited(node) for node in self.graph.nodes]
        return self.graph.with_nodes(nodes, consts=self.consts, types=self.types)

    def _visited(self, node: Node) -> Node:
        """Return a node, a convolution in its place where it adds some; notes what it computes."""
        form, out = None, node.outputs[0]
        if self.types[out].dtype != F32 or not node.inputs or node.inputs[0] is None:
            return node
        if is_plain_conv(node, self.graph.consts):
            form = self._of_conv(node)
        elif isinstance(node.spec, Eltwise):
            form = self._sum(node)
            made = None if form is None else self._convolution(node, form)
            if made is not None and form is not None:
                self.forms[out] = form
                return made
            before = self._own(node.inputs[0])
            form = None if before is None else self._scaled(node, before)
        if form is not None:
            self.forms[out] = form
        return node

    def _of_conv(self, node: Node) -> Linear | None:
        spec, weights = node.spec, self.graph.consts.get(node.inputs[1] or "")
        assert isinstance(spec, Conv2d) and node.inputs[0] is not None
        if weights is None or weights.nbytes > TABLE_BYTES or spec.window.ceil:
            return None
        name = node.inputs[BIAS] if len(node.inputs) > BIAS else None
        bias = self.graph.consts[name] if name else np.zeros(len(weights))
        wide = weights.astype(np.float64), bias.astype(np.float64)
        if bias.shape != (len(weights),) or not all(np.isfinite(a).all() for a in wide):
            return None
        return Linear(node.inputs[0], spec.window, spec.group, *wide, True)

    def _scaled(self, node: Node, before: Linear) -> Linear | None:
        """Return a form behind a constant scale and shift, None of other elementwise nodes."""
        found = scale_shift(node, self.graph.consts, self.types)
        return None if found is None else before.scaled(*found)

    def _scaled_alone(self, name: str, conv: Linear) -> Linear | None:
        """Return a value as what `conv` reads, scaled and shifted; None where it is not that.

        Asked for beside a convolution only: channels of other values may be extents that vary.
        """
        nodes: list[Node] = []
        while name != conv.source:
            node, alone = self.made.get(name), self.uses[name] == 1 and name not in self.public
            if not alone or node is None or not isinstance(node.spec, Eltwise):
                return None
            first = node.inputs[0]
            if first is None or self.types[name].dtype != F32 or len(nodes) == MOST_SCALES:
                return None
            nodes.insert(0, node)
            name = first
        form: Linear | None = _itself(name, len(conv.weights), len(conv.window.kernel))
        for node in nodes:
            form = self._scaled(node, form) if form is not None else None
        return form

    def _own(self, name: str) -> Linear | None:
        """Return what makes a value, unless others read it, too."""
        alone = self.uses[name] == 1 and name not in self.public
        return self.forms.get(name) if alone else None

    def _sum(self, node: Node) -> Linear | None:
        """Return the sum or difference of two forms of one value."""
        assert isinstance(node.spec, Eltwise)
        if len(node.inputs) != 2 or len(node.spec.post_ops) != 1:
            return None
        step, (left, right) = node.spec.post_ops[0], node.inputs
        if step.fn not in ("add", "sub") or step.operand != 1 or left is None or right is None:
            return None
        shape = self.types[node.outputs[0]].shape
        if self.types[left].shape != shape or self.types[right].shape != shape:
            return None
        signs = (1, 1) if step.fn == "add" else (-1, 1) if step.swapped else (1, -1)
        forms = [self._own(name) for name in (left, right)]
        conv = next((form for form in forms if form is not None and form.convs), None)
        if conv is None:
            return None
        forms = [
            form or self._scaled_alone(name, conv)
            for form, name in zip(forms, (left, right), strict=True)
        ]
        rank = len(conv.window.kernel)
        own = [_itself(name, len(conv.weights), rank) for name in (left, right)]
        readings = [
            [form for form in pair if form is not None] for pair in zip(forms, own, strict=True)
        ]
        pairs = [(one, other) for one in readings[0] for other in readings[1]]
        fits = [pair for pair in pairs if pair[0].source == pair[1].source]
        return next(
            (_added(*pair, *signs) for pair in fits if pair[0].convs or pair[1].convs), None
        )

    def _convolution(self, node: Node, form: Linear) -> Node | None:
        """Return a node that computes a form, None where single precision does not hold it."""
        with np.errstate(over="ignore"):
            arrays = {"w": form.weights.astype(np.float32), "b": form.bias.astype(np.float32)}
        if not all(np.isfinite(array).all() for array in arrays.values()):
            return None
        names = {key: f"{node.outputs[0]}:{key}" for key in arrays}
        for key, name in names.items():
            self.consts[name] = arrays[key]
            self.types[name] = TensorType(arrays[key].shape, F32)
        spec = Conv2d(form.window, form.group)
        return replace(node, spec=spec, inputs=(form.source, names["w"], names["b"]))


def _itself(name: str, channels: int, spatial: int) -> Linear:
    """Return a value as a convolution of itself."""
    ones, zeros = (1,) * spatial, (0,) * spatial
    window = Window(ones, ones, ones, zeros, zeros)
    return Linear(name, window, channels, np.ones((channels, 1, *ones)), np.zeros(channels), False)


def _added(one: Linear, other: Linear, first: int, second: int) -> Linear | None:
    """Return first times one, plus second times other; None where geometries differ."""
    window = _window(one.window, other.window)
    group = min(one.group, other.group)
    fits = one.group % group == 0 and other.group % group == 0
    channels = {(len(f.weights), f.weights.shape[1] * f.group) for f in (one, other)}
    if window is None or not fits or len(channels) > 1:
        return None
    ((outputs, inputs),) = channels
    shape = (outputs, inputs // group, *window.kernel)
    size = int(np.prod(shape, dtype=object))
    if size > one.weights.size + other.weights.size or 8 * size > TABLE_BYTES:
        return None  # it would multiply more than both together
    weights = np.zeros(shape)
    for form, sign in ((one, first), (other, second)):
        _add(weights, form, sign, group, window)
    bias = first * one.bias + second * other.bias
    return Linear(one.source, window, group, weights, bias, True)


def _window(one: Window, other: Window) -> Window | None:
    """Return the window that has the taps of both, None where they lie on no common lattice."""
    if one.strides != other.strides or one.ceil or other.ceil:
        return None
    kernel, dilations, before, after = [], [], [], []
    for axis in range(len(one.kernel)):
        wide = one if one.kernel[axis] > 1 else other
        step = wide.dilations[axis]
        ends = [w.reach(axis) - w.before[axis] for w in (one, other)]
        rests = [w.after[axis] - end for w, end in zip((one, other), ends, strict=True)]
        apart = other.before[axis] - one.before[axis]
        steps = {w.dilations[axis] for w in (one, other) if w.kernel[axis] > 1}
        if len(steps) > 1 or apart % step or rests[0] != rests[1]:
            return None
        before.append(max(one.before[axis], other.before[axis]))
        after.append(max(ends) + rests[0])
        kernel.append((before[-1] + max(ends) - 1) // step + 1)
        dilations.append(step)
    return Window(tuple(kernel), one.strides, tuple(dilations), tuple(before), tuple(after))


def _add(weights: Array, form: Linear, sign: int, group: int, window: Window) -> None:
    """Add sign times a form's weights to those of a wider window and of fewer groups."""
    taps = tuple(
        slice((b - own) // d, (b - own) // d + k)
        for b, own, d, k in zip(
            window.before, form.window.before, window.dilations, form.window.kernel, strict=True
        )
    )
    each, parts = form.weights.shape[1], form.group // group
    part = np.arange(len(weights)) // (len(weights) // form.group) % parts
    for k in range(parts):
        rows = np.flatnonzero(part == k)
        inputs = slice(k * each, (k + 1) * each)
        place: Any = (rows, inputs, *taps)
        weights[place] += sign * form.weights[rows]

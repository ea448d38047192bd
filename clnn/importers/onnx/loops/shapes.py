"""Extents of a graph's values as far as names alone say them: which are equal, whatever they are.

An extent is a number, (value, axis) where it is that of this value's axis, whatever that may be, or (name, -1)
where it has a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

import onnx

from clnn.importers.onnx.dims import symbol
from clnn.importers.onnx.limits import default_domain
from clnn.importers.onnx.loops.names import NUMBER, Names, attribute

Extent = int | tuple[str, int]
Shape = tuple[Extent, ...]

SAME_SHAPE = (
    *(
        "Identity",
        "Cast",
        "Not",
        "Neg",
        "Abs",
        "Exp",
        "Log",
        "Sqrt",
        "Erf",
        "Clip",
        "Dropout",
        "CumSum",
    ),
    *("Relu", "Sigmoid", "Tanh", "Elu", "LeakyRelu", "Selu", "Softplus", "Softsign", "HardSigmoid"),
    *("HardSwish", "Gelu", "Softmax", "LogSoftmax", "ReverseSequence", "LayerNormalization"),
    *("BatchNormalization", "InstanceNormalization", "GroupNormalization"),
)
BROADCAST = (
    *("Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "PRelu", "Where", "And", "Or", "Xor"),
    *("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
)


WINDOWS = (
    "Conv",
    "ConvTranspose",
    "MaxPool",
    "AveragePool",
    "LpPool",
    "GlobalAveragePool",
    "GlobalMaxPool",
)
SAME_RANK = ("Pad", "Tile", "Resize", "Upsample", "DepthToSpace", "SpaceToDepth")


class Shapes:
    """What is known of the shapes of a graph's values; `add` is called for its nodes in their order."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self._known: dict[str, Shape] = {}
        self._ranks = {
            v.name: len(v.type.tensor_type.shape.dim)
            for v in (*names.graph.value_info, *names.graph.output)
            if v.type.tensor_type.HasField("shape")
        }
        for value in names.graph.input:
            if value.type.tensor_type.HasField("shape"):
                dims = value.type.tensor_type.shape.dim
                self._known[value.name] = tuple(
                    _extent(value.name, k, d) for k, d in enumerate(dims)
                )
        for name, tensor in names.tensors.items():
            self._known[name] = tuple(tensor.dims)

    def of(self, name: str) -> Shape | None:
        """Return a value's shape; None where not even its rank is known."""
        if name not in self._known and name in self._ranks:
            return self._own(name, self._ranks[name])
        return self._known.get(name)

    def set(self, name: str, shape: Shape) -> None:
        """Say what shape a value has."""
        self._known[name] = shape

    def add(self, node: onnx.NodeProto) -> None:
        """Note the shapes of what a node makes."""
        if default_domain(node.domain) != "ai.onnx":
            return
        rule = RULES.get(node.op_type)
        for k, name in enumerate(node.output if rule else ()):
            found = rule(self, node, k) if rule and name else None
            if found is not None:
                self._known[name] = found

    def amount(self, name: str) -> Extent | None:
        """Return the extent that a value of one element is: a constant, or one of a shape."""
        number = self.names.number(name)
        if number is not None:
            return int(number) if number == int(number) else None
        node = self.names.makers.get(self.names.source(name, NUMBER))
        if node is None or node.op_type not in ("Slice", "Gather"):
            return None
        source = self.names.makers.get(self.names.source(node.input[0], ("Identity", "Cast")))
        if source is None or source.op_type != "Shape" or source.attribute:
            return None
        shape, axis = self.of(source.input[0]), self._element(node)
        return None if shape is None or axis is None or axis >= len(shape) else shape[axis]

    def _element(self, node: onnx.NodeProto) -> int | None:
        """Return which element of a row Slice or Gather takes, where it takes one, counted from 0 on."""
        if node.op_type == "Slice":
            cut = self.names.cut(node)
            fits = cut is not None and len(cut) == 1 and cut[0][1] >= 0
            return cut[0][1] if fits and cut and cut[0][2] == cut[0][1] + 1 else None
        place = self.names.number(node.input[1])
        return None if place is None or place < 0 else int(place)

    def _own(self, name: str, rank: int) -> Shape:
        return tuple((name, k) for k in range(rank))


def _extent(name: str, axis: int, dim: Any) -> Extent:
    """Return an extent of an input; a named one is the same wherever inputs have this name."""
    if dim.dim_value > 0:
        return int(dim.dim_value)
    return (symbol(dim), -1) if symbol(dim) else (name, axis)


Rule = Callable[[Shapes, onnx.NodeProto, int], Shape | None]


def _same(shapes: Shapes, node: onnx.NodeProto, k: int) -> Shape | None:
    return shapes.of(node.input[0]) if not k else None


def _windows(shapes: Shapes, node: onnx.NodeProto, k: int) -> Shape | None:
    """Of images: as many, and nothing is known of their extents."""
    shape = shapes.of(node.input[0])
    return (shape[0], *((node.output[k], a) for a in range(1, len(shape)))) if shape else None


def _same_rank(shapes: Shapes, node: onnx.NodeProto, k: int) -> Shape | None:
    shape = shapes.of(node.input[0])
    return None if shape is None else tuple((node.output[k], a) for a in range(len(shape)))


def _split(shapes: Shapes, node: onnx.NodeProto, k: int) -> Shape | None:
    shape, axis = shapes.of(node.input[0]), int(str(attribute(node, "axis", 0)))
    if not shape:
        return None
    return tuple((node.output[k], a) if a == axis % len(shape) else e for a, e in enumerate(shape))


def _broadcast(shapes: Shapes, node: onnx.NodeProto, k: int) -> Shape | None:
    given = [shapes.of(n) for n in node.input]
    known = [g for g in given if g is not None]
    if len(known) < len(given):
        return None
    rank, found = max(map(len, known)), []
    for axis in range(-rank, 0):
        extents = {g[axis] for g in known if len(g) >= -axis} - {1}
        # Of two that are not known to be equal, one is 1.
        found.append(extents.pop() if len(extents) == 1 else 1 if not extents else None)
    return tuple((node.output[k], a) if e is None else e for a, e in enumerate(found))


def _transpose(shapes: Shapes, node: onnx.NodeProto, _: int) -> Shape | None:
    shape, perm = shapes.of(node.input[0]), attribute(node, "perm")
    if shape is None:
        return None
    order = [int(a) for a in perm] if isinstance(perm, list) else list(range(len(shape)))[::-1]
    return tuple(shape[a] for a in order) if len(order) == len(shape) else None


def _squeeze(shapes: Shapes, node: onnx.NodeProto, _: int) -> Shape | None:
    shape, axes = shapes.of(node.input[0]), shapes.names.axes(node)
    if shape is None or axes is None:
        return None
    gone = {a % len(shape) for a in axes if shape}
    return tuple(e for a, e in enumerate(shape) if a not in gone)


def _unsqueeze(shapes: Shapes, node: onnx.NodeProto, _: int) -> Shape | None:
    shape, axes = shapes.of(node.input[0]), shapes.names.axes(node)
    if shape is None or axes is None:
        return None
    rank, left = len(shape) + len(axes), list(shape)
    new = {a % rank for a in axes}
    return tuple(1 if a in new else left.pop(0) for a in range(rank))


def _gather(shapes: Shapes, node: onnx.NodeProto, _: int) -> Shape | None:
    data, places = shapes.of(node.input[0]), shapes.of(node.input[1])
    axis = int(str(attribute(node, "axis", 0)))
    if data is None or places is None or not data:
        return None
    axis %= len(data)
    return (*data[:axis], *places, *data[axis + 1 :])


def _matmul(shapes: Shapes, node: onnx.NodeProto, _: int) -> Shape | None:
    left, right = (shapes.of(n) for n in node.input[:2])
    if left is None or right is None or len(right) != 2 or len(left) < 2:
        return None
    return (*left[:-1], right[1])


def _concat(shapes: Shapes, node: onnx.NodeProto, _: int) -> Shape | None:
    given = [shapes.of(n) for n in node.input]
    known = [g for g in given if g]
    axis = int(str(attribute(node, "axis", 0)))
    if len(known) < len(given) or not known:
        return None
    axis %= len(known[0])
    parts = [g[axis] for g in known if axis < len(g)]
    total = _total(parts)
    return (*known[0][:axis], total or (node.output[0], axis), *known[0][axis + 1 :])


def _total(parts: Iterable[Extent]) -> int | None:
    numbers = [p for p in parts if isinstance(p, int)]
    return sum(numbers) if len(numbers) == len(list(parts)) else None


def _cut(shapes: Shapes, node: onnx.NodeProto, _: int) -> Shape | None:
    shape, cut = shapes.of(node.input[0]), shapes.names.cut(node)
    if shape is None or cut is None:
        return None
    changed = {axis % len(shape) for axis, *_ in cut if shape}
    return tuple((node.output[0], a) if a in changed else e for a, e in enumerate(shape))


def _reshape(shapes: Shapes, node: onnx.NodeProto, _: int) -> Shape | None:
    wanted = shapes.names.small(node.input[1]) if len(node.input) > 1 else None
    if wanted is None:
        return None
    extents = [int(e) for e in wanted.ravel()]
    rest = _rest(shapes.of(node.input[0]), extents)
    own = [(node.output[0], a) for a in range(len(extents))]
    return tuple(
        e if e > 0 else rest if e < 0 and rest is not None else o
        for e, o in zip(extents, own, strict=True)
    )


def _rest(shape: Shape | None, wanted: Sequence[int]) -> Extent | None:
    """Return the extent that -1 stands for, where the others are numbers and one extent at most is none."""
    if shape is None or 0 in wanted or wanted.count(-1) != 1:
        return None
    names = [e for e in shape if not isinstance(e, int)]
    here = prod(e for e in shape if isinstance(e, int))
    there = -prod(wanted)
    if names:
        return names[0] if len(names) == 1 and here == there else None
    return here // there if here % there == 0 else None


def _layer(shapes: Shapes, node: onnx.NodeProto, k: int) -> Shape | None:
    inputs, weights = shapes.of(node.input[0]), shapes.of(node.input[2])
    if inputs is None or weights is None or attribute(node, "layout", 0):
        return None
    last = (weights[0], inputs[1], weights[2])
    return last if k else (inputs[0], weights[0], *last[1:])


RULES: dict[str, Rule] = {
    **dict.fromkeys(SAME_SHAPE, _same),
    **dict.fromkeys(BROADCAST, _broadcast),
    **dict.fromkeys(WINDOWS, _windows),
    **dict.fromkeys(SAME_RANK, _same_rank),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _layer),
    "Split": _split,
    "Transpose": _transpose,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Gather": _gather,
    "MatMul": _matmul,
    "Concat": _concat,
    "Slice": _cut,
    "Reshape": _reshape,
}

"""One graph by its names: what makes a value, and what of it is constant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from clnn.importers.onnx.limits import default_domain
from clnn.records import dataclass
from clnn.types import Array

FEW = 64  # elements of a constant that is looked at
SAME = ("Identity",)
NUMBER = ("Identity", "Cast", "Squeeze", "Unsqueeze")  # what a number stays the same behind


def attribute(node: onnx.NodeProto, name: str, usual: object = None) -> object:
    """Return an attribute's value, `usual` where the node has none."""
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), usual)


@dataclass
class Names:
    """Nodes of one graph, those of ONNX's own domain, by what they make, and its constants."""

    graph: onnx.GraphProto
    makers: dict[str, onnx.NodeProto] = field(init=False)
    tensors: dict[str, TensorProto] = field(init=False)
    made: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        own = (n for n in self.graph.node if default_domain(n.domain) == "ai.onnx")
        self.makers = {name: node for node in own for name in node.output if name}
        self.tensors = {t.name: t for t in self.graph.initializer}
        nodes = {name for node in self.graph.node for name in node.output}
        self.made = frozenset(nodes | {v.name for v in self.graph.input} | self.tensors.keys())

    def source(self, name: str, through: Sequence[str] = SAME) -> str:
        """Return what a value is, behind operators that give on what they take."""
        while name in self.makers and self.makers[name].op_type in through:
            name = self.makers[name].input[0]
        return name

    def maker(self, name: str) -> onnx.NodeProto | None:
        """Return the node that makes a value."""
        return self.makers.get(self.source(name))

    def made_by(self, name: str, op_type: str) -> onnx.NodeProto | None:
        """Return the node that makes a value where it is of this operator."""
        node = self.maker(name)
        return node if node is not None and node.op_type == op_type else None

    def both(self, name: str, op_type: str) -> Iterator[tuple[str, str]]:
        """Yield the two inputs of the node that makes a value, where it is of this operator, in both orders."""
        node = self.made_by(name, op_type)
        if node is not None and len(node.input) == 2:
            yield node.input[0], node.input[1]
            yield node.input[1], node.input[0]

    def leaves(self, name: str, op_type: str) -> list[str]:
        """Return what nodes of this operator make a value of, each once."""
        found: list[str] = []
        left, seen = [name], {name}
        while left:
            node = self.made_by(left[-1], op_type)
            name = left.pop()
            if node is None:
                found.append(name)
                continue
            new = [n for n in node.input if n not in seen]
            seen.update(new)
            left += reversed(new)
        return found

    def small(self, name: str) -> Array | None:
        """Return a constant of few elements."""
        tensor, node = self.tensors.get(name), self.makers.get(name)
        if node is not None and node.op_type == "Constant" and node.attribute:
            value = helper.get_attribute_value(node.attribute[0])
            if not isinstance(value, TensorProto):
                plain = isinstance(value, (int, float, list))
                return np.array(value) if plain and np.size(value) <= FEW else None
            tensor = value
        if tensor is None or tensor.data_location == TensorProto.EXTERNAL:
            return None
        if np.prod(tensor.dims, dtype=np.int64) > FEW:
            return None
        found: Array = numpy_helper.to_array(tensor)
        return found

    def number(self, name: str) -> float | None:
        """Return a constant of one element."""
        found = self.small(self.source(name, NUMBER))
        return None if found is None or found.size != 1 else float(found.item())

    def is_number(self, name: str, wanted: float) -> bool:
        """Whether a value is a constant of one element, of this value."""
        return self.number(name) == wanted

    def is_zeros(self, name: str) -> bool:
        """Whether a value is known to be zeros, whatever its extents."""
        node = self.maker(name)
        if node is None:
            found = self.small(self.source(name))
            return found is not None and not found.any()
        if node.op_type == "ConstantOfShape":
            value = attribute(node, "value")
            return value is None or not numpy_helper.to_array(value).any()
        return node.op_type == "Expand" and self.is_number(node.input[0], 0)

    def axes(self, node: onnx.NodeProto) -> list[int] | None:
        """Return the axes that Squeeze or Unsqueeze is given; None where they are none, or no constant."""
        stated = attribute(node, "axes")
        if isinstance(stated, list):
            return [int(a) for a in stated]
        found = self.small(node.input[1]) if len(node.input) > 1 and node.input[1] else None
        return None if found is None else [int(a) for a in found.ravel()]

    def cut(self, node: onnx.NodeProto) -> list[tuple[int, int, int]] | None:
        """Return (axis, begin, end) of each axis that Slice cuts by steps of 1; None where that is not known."""
        if len(node.input) == 1:
            given = [attribute(node, name) for name in ("starts", "ends", "axes")]
        else:
            found = [self.small(n) if n else None for n in node.input[1:]]
            given = [None if a is None else a.ravel().tolist() for a in found]
            steps = given.pop() if len(given) == 4 else [1]
            stated = len(given) < 3 or given[2] is not None or not node.input[3]
            if not stated or not isinstance(steps, list) or set(steps) != {1}:
                return None
        starts, ends, axes = [*given, None][:3]
        if not isinstance(starts, list) or not isinstance(ends, list):
            return None
        axes = list(range(len(starts))) if axes is None else axes
        return list(zip(axes, starts, ends, strict=True)) if isinstance(axes, list) else None

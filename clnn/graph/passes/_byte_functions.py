"""Chains of real functions of one tensor of bytes, however they branch and join, as one function of bytes.

A GELU as exporters write it is such a chain where only its ends are quantised: x divided, its erf, one
more, times x. What it gives for each of the 256 bytes is known, with every step rounded as it is written.
"""

from __future__ import annotations

from dataclasses import field, replace

import numpy as np

from clnn.arith.quantised import Quantisation
from clnn.arith.quantised_maps import every_byte
from clnn.graph.ir import Node
from clnn.graph.passes._quantised_types import ByteGraph, Made
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.onnx_registry import Emit
from clnn.ops.quantised import build
from clnn.ops.shared.functions import rational
from clnn.records import dataclass
from clnn.types import F32, Array

MOST_NODES = 32


def looked_up(graph: ByteGraph, value: str, y: Quantisation) -> Made:
    """Return a table that makes the bytes of `y` of a value, and the bytes it reads.

    None where the value is none of one tensor of bytes alone, or what lies between is read elsewhere, too.
    """
    chain = _Chain(graph)
    found = chain.entries(value)
    if found is None or chain.source is None or not chain.is_alone(value):
        return None
    name, given = chain.source
    return Emit(build.table(y.quantise(found), given.dtype, y.dtype), [0]), [name]


@dataclass
class _Chain:
    """What was found behind a value. source: the bytes, and what they stand for; made: results by name."""

    graph: ByteGraph
    source: tuple[str, Quantisation] | None = None
    made: dict[str, Array] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)

    def entries(self, value: str) -> Array | None:
        """Return a value for each byte in float32, None where it is no function of one tensor of bytes."""
        if value in self.made:
            return self.made[value]
        found = self._of_bytes(value)
        if found is None:
            node = self.graph.producers.get(value)
            found = None if node is None else self._computed(node)
        if found is not None:
            self.made[value] = found
        return found

    def _of_bytes(self, value: str) -> Array | None:
        """Return what bytes stand for where the value is bytes dequantised."""
        given = self.graph.bytes_of(value)
        if given is None:
            return None
        if self.source not in (None, given) or self.graph.types[value].dtype != F32:
            return None
        self.source = given
        return given[1].dequantise(every_byte(given[1].dtype))

    def _computed(self, node: Node) -> Array | None:
        """Return what an elementwise operator makes of such values and of numbers."""
        if not isinstance(node.spec, Eltwise) or len(self.nodes) == MOST_NODES:
            return None
        self.nodes.append(node)
        shape = self.graph.types[node.outputs[0]].shape
        operands = [self._operand(name, shape) for name in node.inputs if name is not None]
        if len(operands) < len(node.inputs) or any(x is None for x in operands):
            return None
        exact = replace(node.spec, post_ops=rational(node.spec.post_ops))
        with np.errstate(all="ignore"):
            return exact.reference(*operands)[0]

    def _operand(self, name: str, shape: tuple[int, ...]) -> Array | None:
        number = self.graph.real_constant(name)
        if number is not None:
            return number.reshape(()) if number.size == 1 else None
        return self.entries(name) if self.graph.types[name].shape == shape else None

    def is_alone(self, value: str) -> bool:
        """Whether the operators serve one reader alone, that of the value."""
        inner, public = {n.name for n in self.nodes}, set(self.graph.graph.outputs.values())
        outputs = {name for node in self.nodes for name in node.outputs}
        read = [r.name for name in outputs - {value} for r in self.graph.consumers.get(name, [])]
        return self.graph.uses.get(value) == 1 and inner.issuperset(read) and not outputs & public

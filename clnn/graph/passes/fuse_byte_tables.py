"""Functions of one tensor of bytes, however many steps and operands they are written with, as one look-up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from clnn.arith.quantised_maps import (
    ByteLine,
    ByteTable,
    QuantisedProduct,
    QuantisedSum,
    WrittenBinary,
    every_byte,
)
from clnn.graph.ir import Graph, Node
from clnn.ops.elementwise.fixed_map import FixedMap
from clnn.records import dataclass
from clnn.types import I8, U8, Array, TensorType

FUNCTIONS = (ByteLine, ByteTable, QuantisedProduct, QuantisedSum, WrittenBinary)


@dataclass(frozen=True)
class _OfBytes:
    """A value as a function of another one of the same shape: its element for each byte of that."""

    source: str
    entries: Array


def fuse_byte_tables(graph: Graph) -> Graph:
    """Return `graph` with functions of functions of one tensor of bytes looked up in one table each.

    x times the sigmoid of x is such a one, whose steps are rounded as they were. What others read, too, stays
    a tensor of its own, and functions of it are of that: so what makes it may take its table.
    """
    known, nodes = dict[str, _OfBytes](), list[Node]()
    consumers, public = graph.consumers(), set(graph.outputs.values())
    for node in graph.nodes:
        found = _function(node, known, graph.types)
        if found is not None:
            (made,) = node.outputs
            if made not in public and all(map(_is_function, consumers.get(made, ()))):
                known[made] = found
            if found.source != node.inputs[0] or len(node.inputs) > 1:
                node = _looked_up(node, found, graph.types)
        nodes.append(node)
    return graph.with_nodes(nodes)


def _is_function(node: Node) -> bool:
    return isinstance(node.spec, FixedMap) and isinstance(node.spec.function, FUNCTIONS)


def _function(
    node: Node, known: Mapping[str, _OfBytes], types: Mapping[str, TensorType]
) -> _OfBytes | None:
    """Return what a node computes of one tensor of bytes, None where that is something else."""
    if not _is_function(node):
        return None
    out = types[node.outputs[0]]
    operands = [name for name in node.inputs if name is not None]
    if out.dtype not in (I8, U8) or any(types[n].shape != out.shape for n in operands):
        return None
    made = [known.get(name) or _itself(name, types[name]) for name in operands]
    sources = {of.source for of in made if of is not None}
    if None in made or len(sources) != 1:
        return None
    spec = node.spec
    assert isinstance(spec, FixedMap)
    entries = spec.function.reference(*(of.entries for of in made if of is not None))
    return _OfBytes(sources.pop(), entries)


def _itself(name: str, kind: TensorType) -> _OfBytes | None:
    return _OfBytes(name, every_byte(kind.dtype)) if kind.dtype in (I8, U8) else None


def _looked_up(node: Node, found: _OfBytes, types: Mapping[str, TensorType]) -> Node:
    """Return the node that looks its result up."""
    kinds = types[found.source].dtype, types[node.outputs[0]].dtype
    function = ByteTable(*kinds, tuple(found.entries.tolist()))
    return replace(node, spec=FixedMap(function), inputs=(found.source,))

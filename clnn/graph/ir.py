"""Graph: values with types, nodes with op specs. Immutable nodes, rebuilt by each pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace

from clnn.errors import PlanError
from clnn.ops.spec import OpSpec
from clnn.records import dataclass
from clnn.types import Array, DType, TensorType


@dataclass(frozen=True)
class Node:
    """One operation: an op spec and the names of its inputs and outputs.

    origin: the model's own words for it (op types and node names), for messages and tables. whole:
    for one that computes a part of a batch, the name of the node that computes all of it.
    """

    name: str
    spec: OpSpec
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]
    origin: str = ""
    whole: str = ""

    @property
    def layer(self) -> str:
        """The name of the layer that this node, or all that compute parts of it, make up."""
        return self.whole or self.name


@dataclass(frozen=True)
class Graph:
    """A network: nodes in topological order, value types, constants, named inputs and outputs.

    inputs: names of the values that a caller feeds. outputs: public name -> value name. stored:
    float32 values that lie in memory in another type; the same for all float32 values of a view.
    """

    nodes: tuple[Node, ...]
    types: dict[str, TensorType]
    consts: Mapping[str, Array] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    outputs: dict[str, str] = field(default_factory=dict)
    name: str = ""
    stored: dict[str, DType] = field(default_factory=dict)

    def memory(self, name: str) -> DType:
        """Return the type of a value's elements in memory."""
        return self.stored.get(name, self.types[name].dtype)

    def with_nodes(self, nodes: Iterable[Node], **changes: object) -> Graph:
        """Return a graph with other nodes (and other fields)."""
        return replace(self, nodes=tuple(nodes), **changes)  # type: ignore[arg-type]

    def input_types(self, node: Node) -> tuple[TensorType | None, ...]:
        """Return the types of a node's inputs, None where one is left out."""
        return tuple(None if n is None else self.types[n] for n in node.inputs)

    def output_types(self, node: Node) -> tuple[TensorType, ...]:
        """Return the types of a node's outputs."""
        return tuple(self.types[n] for n in node.outputs)

    def producers(self) -> dict[str, Node]:
        """Return value name -> the node that makes it."""
        return {name: node for node in self.nodes for name in node.outputs}

    def consumers(self) -> dict[str, list[Node]]:
        """Return value name -> the nodes that read it (once per use)."""
        found: dict[str, list[Node]] = {name: [] for name in self.types}
        for node in self.nodes:
            for name in node.inputs:
                if name is not None:
                    found[name].append(node)
        return found


def check(graph: Graph, before: Iterable[Node] = ()) -> Graph:
    """Return `graph` after checking that it is well formed. Raises PlanError with the first fault.

    before: nodes whose types were checked, where all values have the types that they had then.
    """
    typed = set(map(id, before))
    known = set(graph.inputs) | set(graph.consts)
    for node in graph.nodes:
        for name in node.inputs:
            if name is not None and name not in known:
                raise PlanError(f"node {node.name} reads {name!r} before anything makes it.")
        for name in node.outputs:
            if name in known:
                raise PlanError(f"value {name!r} is made twice, the second time by {node.name}.")
            known.add(name)
        if id(node) in typed:
            continue
        made = node.spec.infer(graph.input_types(node))
        declared = graph.output_types(node)
        if tuple(made[: len(declared)]) != declared:
            raise PlanError(f"node {node.name} makes {made}, the graph says {declared}.")
    for public, name in graph.outputs.items():
        if name not in known:
            raise PlanError(f"output {public!r} is value {name!r}, which nothing makes.")
    return graph

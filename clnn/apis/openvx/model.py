"""Graphs and nodes as the application makes them, and what their parameters may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clnn.apis.openvx.enums import GraphAttribute, Status, Type
from clnn.apis.openvx.kernels import KERNELS, Parameter
from clnn.apis.openvx.reference import Context, Reference, release, require, same_context
from clnn.apis.openvx.status import VxError, member, whole
from clnn.apis.openvx.tensor import Store, Tensor, new_meta


class Node(Reference):
    """vx_node: a kernel and its parameters."""

    type = Type.VX_TYPE_NODE

    def __init__(self, graph: Graph, kernel: str) -> None:
        super().__init__(graph.home)
        self.graph = graph
        self.kernel = kernel
        self.values: dict[str, Any] = {}

    def tensors(self, role: str) -> dict[str, Tensor]:
        """Return the tensors that the node reads ("input") or writes ("output"), by parameter."""
        return {
            p.name: self.values[p.name]
            for p in KERNELS[self.kernel]
            if p.role == role and self.values.get(p.name) is not None
        }

    @property
    def label(self) -> str:
        """How messages name the node."""
        place = self.graph.nodes.index(self) if self in self.graph.nodes else -1
        return f"node {place} ({self.kernel}{', ' + self.name if self.name else ''})"


class Graph(Reference):
    """vx_graph: nodes connected by the tensors that they read and write."""

    type = Type.VX_TYPE_GRAPH

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.nodes: list[Node] = []
        self.verified: Any = None  # verify.Verified, once the graph may run
        self.lowered: Any = None  # process.Compiled, once it has run

    def destroy(self) -> None:
        """Drop the nodes; their handles become invalid."""
        super().destroy()
        for node in self.nodes:
            node.count = 0
            self.home.references.discard(node)
        self.nodes.clear()
        self.verified = self.lowered = None


def vxCreateGraph(context: Context) -> Graph:
    """Return an empty graph."""
    return Graph(require(Context, context, "context"))


def vxReleaseGraph(graph: Graph) -> Status:
    """Release one reference to a graph; with the last one its nodes are gone."""
    return release(require(Graph, graph, "graph"))


def vxQueryGraph(graph: Graph, attribute: int) -> int:
    """Return the number of nodes."""
    require(Graph, graph, "graph")
    member(GraphAttribute, attribute, "attribute")
    return len(graph.nodes)


def vxCreateVirtualTensor(
    graph: Graph,
    num_of_dims: int,
    sizes: Sequence[int] | None,
    data_format: int,
    fixed_point_pos: int,
) -> Tensor:
    """Return a tensor inside a graph that the application cannot access.

    sizes may be None (num_of_dims 0) or hold zeros, and data_format may be VX_TYPE_INVALID: what
    is left open is taken from the node that writes it when the graph is verified. Raises VxError.
    """
    require(Graph, graph, "graph")
    dims, kind, fraction = new_meta(sizes, num_of_dims, data_format, fixed_point_pos, True)
    return Tensor(graph.home, Store(dims, kind, fraction, graph))


def checked(graph: Graph, parameter: Parameter, value: Any) -> Any:
    """Return a value for a parameter of a node. Raises VxError where it is not allowed."""
    what = parameter.name
    if value is None and parameter.optional:
        return None
    if value is None and parameter.default is not None:
        return parameter.default
    if parameter.role in ("input", "output"):
        require(Tensor, value, what)
        same_context(graph.home, value, what)
        if value.virtual and value.store.graph is not graph:
            raise VxError(
                Status.VX_ERROR_INVALID_SCOPE,
                f"{what} is a virtual tensor of another graph. Make it in this graph.",
            )
        return value
    known = parameter.check(value, what)
    if isinstance(known, Reference):
        same_context(graph.home, known, what)
    return known


def add_node(graph: Graph, kernel: str, values: Mapping[str, Any]) -> Node:
    """Add a node to a graph. Raises VxError for a value that is not allowed, and adds nothing."""
    require(Graph, graph, "graph")
    allowed = {p.name: checked(graph, p, values.get(p.name)) for p in KERNELS[kernel]}
    node = Node(graph, kernel)
    node.values = allowed
    graph.nodes.append(node)
    graph.verified = None
    return node


def vxSetParameterByIndex(node: Node, index: int, value: Any) -> Status:
    """Set parameter `index` of a node, in the order of its function after the graph.

    The graph has to be verified again. Raises VxError, and changes nothing then.
    """
    require(Node, node, "node")
    known = KERNELS[node.kernel]
    parameter = known[whole(index, 0, len(known) - 1, "index")]
    node.values[parameter.name] = checked(node.graph, parameter, value)
    node.graph.verified = None
    return Status.VX_SUCCESS


def vxReleaseNode(node: Node) -> Status:
    """Release one reference to a node; the node stays in its graph."""
    return release(require(Node, node, "node"))


def vxRemoveNode(node: Node) -> Status:
    """Take a node out of its graph, which has to be verified again."""
    require(Node, node, "node")
    node.graph.nodes.remove(node)
    node.graph.verified = None
    node.count = 0
    node.destroy()
    return Status.VX_SUCCESS

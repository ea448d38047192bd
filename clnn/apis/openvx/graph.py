"""Graphs and nodes: creation, verification, execution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clnn.apis.openvx.enums import GraphAttribute, Status, Type
from clnn.apis.openvx.kernels import KERNELS, Parameter
from clnn.apis.openvx.reference import Context, Reference, given, release, same_context
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
        self.verified: Any = None
        self.lowered: Any = None

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
    return Graph(given(Context, context, "context"))


def vxReleaseGraph(graph: Graph) -> Status:
    """Release one reference to a graph; with the last one its nodes are gone."""
    return release(given(Graph, graph, "graph"))


def vxQueryGraph(graph: Graph, attribute: int) -> int:
    """Return the number of nodes."""
    found = given(Graph, graph, "graph")
    member(GraphAttribute, attribute, "attribute")
    return len(found.nodes)


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
    home = given(Graph, graph, "graph")
    dims, kind, fraction = new_meta(sizes, num_of_dims, data_format, fixed_point_pos, True)
    return Tensor(home.home, Store(dims, kind, fraction, home))


def checked(graph: Graph, parameter: Parameter, value: Any) -> Any:
    """Return a value for a parameter of a node. Raises VxError where it is not allowed."""
    what = parameter.name
    if value is None and parameter.optional:
        return None
    if value is None and parameter.default is not None:
        return parameter.default
    if parameter.role in ("input", "output"):
        tensor = given(Tensor, value, what)
        same_context(graph.home, tensor, what)
        if tensor.virtual and tensor.store.graph is not graph:
            raise VxError(
                Status.VX_ERROR_INVALID_SCOPE,
                f"{what} is a virtual tensor of another graph. Make it in this graph.",
            )
        return tensor
    found = parameter.check(value, what)
    if isinstance(found, Reference):
        same_context(graph.home, found, what)
    return found


def add_node(graph: Graph, kernel: str, values: Mapping[str, Any]) -> Node:
    """Add a node to a graph. Raises VxError for a value that is not allowed, and adds nothing."""
    home = given(Graph, graph, "graph")
    found = {p.name: checked(home, p, values.get(p.name)) for p in KERNELS[kernel]}
    node = Node(home, kernel)
    node.values = found
    home.nodes.append(node)
    home.verified = None
    return node


def vxSetParameterByIndex(node: Node, index: int, value: Any) -> Status:
    """Set parameter `index` of a node, in the order of its function after the graph.

    The graph has to be verified again. Raises VxError, and changes nothing then.
    """
    found = given(Node, node, "node")
    known = KERNELS[found.kernel]
    parameter = known[whole(index, 0, len(known) - 1, "index")]
    found.values[parameter.name] = checked(found.graph, parameter, value)
    found.graph.verified = None
    return Status.VX_SUCCESS


def vxReleaseNode(node: Node) -> Status:
    """Release one reference to a node; the node stays in its graph."""
    return release(given(Node, node, "node"))


def vxRemoveNode(node: Node) -> Status:
    """Take a node out of its graph, which has to be verified again."""
    found = given(Node, node, "node")
    found.graph.nodes.remove(found)
    found.graph.verified = None
    found.count = 0
    found.destroy()
    return Status.VX_SUCCESS


def vxVerifyGraph(graph: Graph) -> Status:
    """Check a graph; virtual tensors get the sizes and types that were left open.

    Raises VxError with VX_ERROR_INVALID_GRAPH (nothing to do, cycles, virtual tensors that nothing
    writes), VX_ERROR_MULTIPLE_WRITERS, VX_ERROR_INVALID_DIMENSION, VX_ERROR_INVALID_FORMAT,
    VX_ERROR_INVALID_TYPE or VX_ERROR_INVALID_VALUE; the graph is then unverified and unchanged.
    """
    from clnn.apis.openvx.verify import verify

    found = given(Graph, graph, "graph")
    found.verified = None
    result = verify(found)
    for store, meta in result.metas.items():
        if store.graph is found:
            store.dims, store.kind, store.fraction = meta.dims, meta.kind, meta.fraction
    found.verified, found.lowered = result, None
    return Status.VX_SUCCESS


def vxIsGraphVerified(graph: Graph) -> bool:
    """Whether the graph was verified since it was last changed."""
    return given(Graph, graph, "graph").verified is not None


def vxProcessGraph(graph: Graph) -> Status:
    """Run a graph, after verifying it where that was not done. Raises VxError, or as Session does.

    Tensors are read and written as they are at the time of the call. An error leaves all tensors
    as they were.
    """
    from clnn.apis.openvx.process import process

    found = given(Graph, graph, "graph")
    with found.home.lock:
        if found.verified is None:
            vxVerifyGraph(found)
        process(found)
    return Status.VX_SUCCESS

"""Verification and execution of graphs."""

from __future__ import annotations

from clnn.apis.openvx.enums import Status
from clnn.apis.openvx.model import Graph
from clnn.apis.openvx.reference import require
from clnn.apis.openvx.verify import verify


def vxVerifyGraph(graph: Graph) -> Status:
    """Check a graph; virtual tensors get the sizes and types that were left open.

    Raises VxError with VX_ERROR_INVALID_GRAPH (nothing to do, cycles, virtual tensors that nothing
    writes), VX_ERROR_MULTIPLE_WRITERS, VX_ERROR_INVALID_DIMENSION, VX_ERROR_INVALID_FORMAT,
    VX_ERROR_INVALID_TYPE or VX_ERROR_INVALID_VALUE; the graph is then unverified and unchanged.
    """
    require(Graph, graph, "graph")
    graph.verified = None
    result = verify(graph)
    for store, meta in result.metas.items():
        if store.graph is graph:
            store.dims, store.kind, store.fraction = meta.dims, meta.kind, meta.fraction
    graph.verified, graph.lowered = result, None
    return Status.VX_SUCCESS


def vxIsGraphVerified(graph: Graph) -> bool:
    """Whether the graph was verified since it was last changed."""
    return require(Graph, graph, "graph").verified is not None


def vxProcessGraph(graph: Graph) -> Status:
    """Run a graph, after verifying it where that was not done. Raises VxError, or as Session does.

    Tensors are read and written as they are at the time of the call. An error leaves all tensors
    as they were.
    """
    from clnn.apis.openvx.process import process

    require(Graph, graph, "graph")
    with graph.home.lock:
        if graph.verified is None:
            vxVerifyGraph(graph)
        process(graph)
    return Status.VX_SUCCESS

"""Verification of a graph: topology first, then formats and sizes in the order of execution."""

from __future__ import annotations

from clnn.apis.openvx.enums import Status
from clnn.apis.openvx.kernels import KERNELS, output_of
from clnn.apis.openvx.model import Graph, Node
from clnn.apis.openvx.shapes import CHECKS, Call, Meta
from clnn.apis.openvx.status import VxError
from clnn.apis.openvx.tensor import Store, Tensor
from clnn.apis.openvx.topology import Writer, ordered, uncovered, writers
from clnn.records import dataclass


@dataclass(frozen=True)
class Verified:
    """A graph that may run: nodes in order, metas of the stores, who writes which."""

    order: tuple[Node, ...]
    metas: dict[Store, Meta]
    written: dict[Store, list[Writer]]

    def meta(self, tensor: Tensor) -> Meta:
        """Return the meta of a tensor or of a view."""
        return meta_of(tensor, self.metas)


def meta_of(tensor: Tensor, metas: dict[Store, Meta]) -> Meta:
    """Return the meta of a tensor, from those of the stores checked so far."""
    store = tensor.store
    whole = metas.get(store) or Meta(store.dims, store.kind, store.fraction)
    if tensor.box is None:
        return whole
    return Meta(tensor.dims, whole.kind, whole.fraction)


def verify(graph: Graph) -> Verified:
    """Return what running the graph needs. Raises VxError with the first fault; changes nothing."""
    if not graph.nodes:
        raise VxError(Status.VX_ERROR_INVALID_GRAPH, "the graph has no nodes. Add one.")
    for node in graph.nodes:
        for parameter in KERNELS[node.kernel]:
            if node.values.get(parameter.name) is None and not parameter.optional:
                raise VxError(
                    Status.VX_ERROR_INVALID_NODE, f"{node.label}: {parameter.name} is not set."
                )
    order = ordered(graph.nodes)
    written = writers(graph.nodes)
    _connected(order, written)
    metas: dict[Store, Meta] = {}
    for node in order:
        _check(node, metas)
    return Verified(tuple(order), metas, written)


def _connected(order: list[Node], written: dict[Store, list[Writer]]) -> None:
    """Raise VxError where a node reads elements of a virtual tensor that nothing writes."""
    for node in order:
        for name, tensor in node.tensors("input").items():
            if not tensor.virtual:
                continue
            parts = [target.place for _, target in written.get(tensor.store, ())]
            missing = uncovered(tensor.place, parts) if tensor.store.sized else None
            if not parts or missing is not None:
                raise VxError(
                    Status.VX_ERROR_INVALID_GRAPH,
                    f"{node.label}: {name} is a virtual tensor, and no node writes "
                    f"{missing or 'it'}. Connect it, or use a tensor with data.",
                )


def _check(node: Node, metas: dict[Store, Meta]) -> None:
    """Check one node and note the meta of its output."""
    tensors: dict[str, Meta | None] = {
        p.name: None for p in KERNELS[node.kernel] if p.role in ("input", "output")
    }
    held = {**node.tensors("input"), **node.tensors("output")}
    tensors.update({name: meta_of(tensor, metas) for name, tensor in held.items()})
    values = {n: v for n, v in node.values.items() if n not in tensors}
    call = Call(node.label, tensors, values, node.home.conformance)
    for name, tensor in node.tensors("input").items():
        call.demand(meta_of(tensor, metas).known, f"{name} has no sizes or type yet.")
    result = CHECKS[node.kernel](call)
    output = output_of(node.kernel)
    meta = call.meta(output).completed(result)
    call.demand(
        meta.dims == result.dims, f"{output} is {list(meta.dims)}, must be {list(result.dims)}."
    )
    target = held[output]
    if target.box is None:
        metas[target.store] = meta

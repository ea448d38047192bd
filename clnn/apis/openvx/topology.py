"""Order of the nodes of a graph: who writes what, who reads it, cycles, several writers."""

from __future__ import annotations

from collections.abc import Sequence

from clnn.apis.openvx.enums import Status
from clnn.apis.openvx.model import Node
from clnn.apis.openvx.status import VxError
from clnn.apis.openvx.tensor import Box, Store, Tensor


def overlap(a: Box, b: Box) -> bool:
    """Whether two boxes of one store share an element."""
    return all(low < top and bottom < high for (low, high), (bottom, top) in zip(a, b, strict=True))


def share(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors share an element; while sizes are open, all of a store is shared."""
    return a.store is b.store and (not a.store.sized or overlap(a.place, b.place))


Writer = tuple[Node, Tensor]


def writers(nodes: Sequence[Node]) -> dict[Store, list[Writer]]:
    """Return who writes each store. Raises VxError where two nodes write the same element."""
    writers_of: dict[Store, list[Writer]] = {}
    for node in nodes:
        for tensor in node.tensors("output").values():
            before = writers_of.setdefault(tensor.store, [])
            for other, written in before:
                if share(tensor, written):
                    raise VxError(
                        Status.VX_ERROR_MULTIPLE_WRITERS,
                        f"{other.label} and {node.label} write the same elements. Give each an "
                        "output, or a view, of its own.",
                    )
            before.append((node, tensor))
    return writers_of


def ordered(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes so that each comes after those whose results it reads.

    Raises VxError for several writers and for cycles.
    """
    written = writers(nodes)
    needs: dict[Node, set[Node]] = {}
    for node in nodes:
        needs[node] = {
            other
            for tensor in node.tensors("input").values()
            for other, target in written.get(tensor.store, ())
            if share(tensor, target)
        }
    users: dict[Node, list[Node]] = {node: [] for node in nodes}
    for node, others in needs.items():
        for other in others:
            users[other].append(node)
    missing = {node: len(others) for node, others in needs.items()}
    done = [node for node in nodes if not missing[node]]
    for node in done:  # grows while it is walked
        for user in users[node]:
            missing[user] -= 1
            if not missing[user]:
                done.append(user)
    if len(done) < len(nodes):
        rest = [n.label for n in nodes if missing[n]]
        raise VxError(
            Status.VX_ERROR_INVALID_GRAPH,
            f"these nodes wait for each other: {', '.join(rest[:8])}. No node may read, directly or "
            "through others, what it writes.",
        )
    return done


def uncovered(box: Box, parts: Sequence[Box]) -> Box | None:
    """Return a box of elements of `box` that no part holds, or None where all are held."""
    held = next((p for p in parts if overlap(box, p)), None)
    if held is None:
        return box
    for axis, ((low, high), (bottom, top)) in enumerate(zip(box, held, strict=True)):
        for start, end in ((low, min(bottom, high)), (max(top, low), high)):
            if start < end:
                beside = (*box[:axis], (start, end), *box[axis + 1 :])
                missing = uncovered(beside, parts)
                if missing is not None:
                    return missing
        box = (*box[:axis], (max(low, bottom), min(high, top)), *box[axis + 1 :])
    return None

"""A model with other nodes in the places of some."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx

Others = Callable[[onnx.NodeProto], "Iterable[onnx.NodeProto] | None"]


def with_other_nodes(model: onnx.ModelProto, others: Others) -> onnx.ModelProto:
    """Return a model of which nodes outside of bodies are replaced; the model where none is.

    others: returns what stands in the place of a node, None where that stays.
    """
    found = {k: made for k, n in enumerate(model.graph.node) if (made := others(n)) is not None}
    if not found:
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    del changed.graph.node[:]
    for k, node in enumerate(model.graph.node):
        changed.graph.node.extend(found.get(k, [node]))
    return changed

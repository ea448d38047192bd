"""The plain reference: every node's numpy reference in double precision."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clnn.graph.evaluate import node_outputs
from clnn.graph.ir import Graph, Node
from clnn.types import Array


def reference_values(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return value name -> array for every value of `graph`; floats are float64."""
    values = {name: widen(array) for name, array in graph.consts.items()}
    values |= {name: widen(feeds[name]) for name in graph.inputs}
    for node in graph.nodes:
        values.update(reference_node(graph, node, values))
    return values


def reference_node(graph: Graph, node: Node, values: Mapping[str, Array]) -> dict[str, Array]:
    """Return a node's outputs computed from `values` by its spec's reference."""
    return node_outputs(graph, node, values, np.float64)


def widen(array: Array) -> Array:
    """Return floats as float64, other types as they are."""
    return array.astype(np.float64) if array.dtype.kind == "f" else array

"""The plain reference: every node's numpy reference in double precision."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from clnn.graph.evaluate import node_outputs
from clnn.graph.ir import Graph, Node
from clnn.graph.passes._quantised import function_of
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


def unrounded_values(
    quantised: Graph, graph: Graph, feeds: Mapping[str, Array]
) -> dict[str, Array]:
    """Return what the values of a quantised graph are in the float32 graph that it was made of.

    Of values that both have, those of the latter; what is dequantised is what was quantised.
    """
    real, producers = reference_values(graph, feeds), quantised.producers()
    values = {name: widen(array) for name, array in quantised.consts.items()}
    values |= {name: widen(feeds[name]) for name in quantised.inputs}
    for node in quantised.nodes:
        maker = producers.get(node.inputs[0] or "") if function_of(node) == "dequantise" else None
        if maker is not None and function_of(maker) == "quantise":
            values[node.outputs[0]] = values[maker.inputs[0] or ""]
        else:
            values.update(reference_node(quantised, node, values))
        values |= {n: real[n] for n in node.outputs if n in real}
    return values

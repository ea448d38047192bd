"""A network computed on the host, node by node, by the numpy references of its ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from clnn.graph.ir import Graph, Node
from clnn.types import Array, TensorType


class GivenUpError(Exception):
    """The network is not computed on the host any more."""


def evaluate(
    graph: Graph, feeds: Mapping[str, Array], gives_up: Callable[[], bool] = lambda: False
) -> dict[str, Array]:
    """Return public output name -> array, in the types of the graph.

    feeds: input name -> array of the type that the graph says. Values that nothing reads any more
    are dropped on the way. Raises GivenUpError where `gives_up`, asked before each node, says so.
    """
    last = {name: at for at, node in enumerate(graph.nodes) for name in node.inputs if name}
    kept = set(graph.outputs.values())
    values: dict[str, Array] = {**graph.consts, **{name: feeds[name] for name in graph.inputs}}
    for at, node in enumerate(graph.nodes):
        if gives_up():
            raise GivenUpError
        values.update(node_outputs(graph, node, values))
        for name in {*node.inputs, *node.outputs} - kept:
            if name is not None and last.get(name, -1) <= at:
                values.pop(name, None)
    return {public: np.array(values[name]) for public, name in graph.outputs.items()}


def node_outputs(
    graph: Graph, node: Node, values: Mapping[str, Array], floats: type[np.floating] | None = None
) -> dict[str, Array]:
    """Return a node's outputs, computed from `values` by its spec's reference.

    floats: the type of results that are floats (None: as the graph says).
    """
    inputs = [None if n is None else values[n] for n in node.inputs]
    with np.errstate(all="ignore"):  # infinities and NaN: the result says so
        arrays = node.spec.reference(*inputs)
    return {
        name: _settled(array, graph.types[name], floats)
        for name, array in zip(node.outputs, arrays, strict=False)
    }


def _settled(array: Array, want: TensorType, floats: type[np.floating] | None) -> Array:
    dtype = np.dtype(floats) if floats and want.dtype.is_float else want.dtype.numpy
    return np.asarray(array, dtype).reshape(want.shape)

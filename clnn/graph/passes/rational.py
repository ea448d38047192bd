"""Functions as ONNX Runtime rounds them, in networks whose values are rounded to bytes in each run.

Such a network rounds by ranges that it finds in its own values: the last digit of one decides which
byte others become, and what is read in the end. With the same functions all of it comes out the same.
"""

from __future__ import annotations

from dataclasses import replace

from clnn.arith.quantised_maps import Quantise
from clnn.graph.ir import Graph, Node
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.elementwise.fixed_map import FixedMap
from clnn.ops.recurrent.cells import SCALES
from clnn.ops.recurrent.spec import Recurrent
from clnn.ops.shared.functions import rational


def rational_functions(graph: Graph) -> Graph:
    """Return `graph` with rational functions where it rounds by ranges of its own values."""
    if not any(_rounds(node, graph) for node in graph.nodes):
        return graph
    return graph.with_nodes([_changed(node) for node in graph.nodes])


def _rounds(node: Node, graph: Graph) -> bool:
    if isinstance(node.spec, FixedMap) and isinstance(node.spec.function, Quantise):
        return node.inputs[1] not in graph.consts
    return isinstance(node.spec, Recurrent) and len(node.inputs) > SCALES


def _changed(node: Node) -> Node:
    spec = node.spec
    if isinstance(spec, Eltwise):
        return replace(node, spec=replace(spec, post_ops=rational(spec.post_ops)))
    if isinstance(spec, Recurrent):
        chains = tuple(tuple(map(rational, each)) for each in spec.functions)
        return replace(node, spec=replace(spec, functions=chains))
    return node

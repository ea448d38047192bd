"""Sums of bytes, such as residuals, other scales and tables, fused into the convolution of bytes before them."""

from __future__ import annotations

from collections.abc import Mapping

from clnn.arith.quantised import Requantised, limits_of
from clnn.arith.quantised_maps import ByteLine, ByteTable, QuantisedSum, WrittenBinary
from clnn.graph.ir import Graph, Node
from clnn.ops.conv.spec import Conv2d
from clnn.ops.elementwise.fixed_map import FixedMap
from clnn.ops.shared.functions import PostOp
from clnn.records import changed
from clnn.types import Array, TensorType


def fuse_byte_sums(graph: Graph) -> Graph:
    """Return `graph` with sums of two tensors of bytes computed where one of them is made; so are functions of one.

    That is the convolution that comes last; nothing else reads its result. The other operand is made before it.
    """
    uses = {name: len(found) for name, found in graph.consumers().items()}
    for public in graph.outputs.values():
        uses[public] = uses.get(public, 0) + 1
    nodes, places = dict(enumerate(graph.nodes)), dict[str, int]()
    consts, types = dict(graph.consts), dict(graph.types)
    for place, node in enumerate(graph.nodes):
        step = _step(node)
        if step is not None:
            found = [
                k for k in range(len(node.inputs)) if _takes(node, k, nodes, places, graph, uses)
            ]
            last = max(found, key=lambda k: places[node.inputs[k] or ""], default=None)
            if last is not None:
                producer = nodes.pop(places[node.inputs[last] or ""])
                if (entries := _entries(node)) is not None:
                    name = f"{node.outputs[0]}:entries"
                    consts[name], types[name] = entries, TensorType.of(entries)
                    node = changed(node, inputs=(*node.inputs, name))
                nodes[place] = _merged(producer, node, step, last)
        places[node.outputs[0]] = place
    if len(nodes) == len(graph.nodes):
        return graph
    return graph.with_nodes([nodes[place] for place in sorted(nodes)], types=types, consts=consts)


def _step(node: Node) -> PostOp | None:
    """Return a function of one or two tensors of bytes as a step, None for another node."""
    function = node.spec.function if isinstance(node.spec, FixedMap) else None
    if isinstance(function, ByteLine):
        numbers = (function.ratio, function.offset, function.zero)
        return PostOp("byte_line", (*numbers, *limits_of(function.result)))
    if isinstance(function, ByteTable):
        return PostOp("byte_table")
    if isinstance(function, QuantisedSum):
        fn = "shifted_byte_sum" if function.shifted else "byte_sum"
        return PostOp(fn, (*function.ratios, function.offset, *limits_of(function.kind)))
    if isinstance(function, WrittenBinary) and function.fn == "add":
        pairs = zip(function.zeros, function.steps, strict=True)
        return PostOp("written_sum", (*(n for p in pairs for n in p), function.low, function.high))
    return None


def _entries(node: Node) -> Array | None:
    """Return the table of a function that has one."""
    function = node.spec.function if isinstance(node.spec, FixedMap) else None
    return function.tables()[0] if isinstance(function, ByteTable) else None


def _takes(
    node: Node,
    which: int,
    nodes: Mapping[int, Node],
    places: Mapping[str, int],
    graph: Graph,
    uses: Mapping[str, int],
) -> bool:
    """Whether input `which` is made by a convolution that can compute the step."""
    name, out = node.inputs[which] or "", graph.types[node.outputs[0]]
    others = [other or "" for k, other in enumerate(node.inputs) if k != which]
    if name not in places or uses[name] != 1 or name in others or graph.types[name] != out:
        return False
    if any(graph.types[n].shape != out.shape or n in graph.consts for n in others):
        return False
    spec = nodes[places[name]].spec
    return isinstance(spec, Conv2d) and isinstance(spec.arith, Requantised) and not spec.post_ops


def _merged(producer: Node, node: Node, step: PostOp, which: int) -> Node:
    """Return the convolution with the step behind it."""
    spec, inputs = producer.spec, list(producer.inputs)
    assert isinstance(spec, Conv2d)
    while len(inputs) < spec.first_operand:
        inputs.append(None)
    if len(node.inputs) > 1:
        step = changed(step, operand=len(inputs), swapped=which == 1)
        inputs.append(node.inputs[1 - which])
    origin = f"{producer.origin} + {node.origin}"
    return Node(producer.name, changed(spec, post_ops=(step,)), tuple(inputs), node.outputs, origin)

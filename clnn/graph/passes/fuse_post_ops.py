"""Elementwise chains fused into the op that makes their input: activation, residual, scale."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from clnn.graph.ir import Graph, Node
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.shared.functions import FUNCTIONS, MOST_STEPS, PostOp
from clnn.ops.spec import with_fields
from clnn.records import changed


def fuse_post_ops(graph: Graph) -> Graph:
    """Return `graph` with elementwise nodes merged into the producer of one of their inputs.

    An elementwise node fuses into a producer whose output has the same shape, is read by nothing
    else and is no output of the graph; further operands become operands of the fused node. All
    operands must be made before the producer, or the producer moves behind them. What is made of
    constants alone has no batch: it takes in no operand that is made of inputs, whose batch may be 1
    at these extents and another at others. So it is with what is made of a reduction alone, such as the
    gates of an image, whose extents an image of one pixel has, too.
    """
    of_inputs, reduced = _of_inputs(graph), _reduced(graph)
    uses = {name: len(found) for name, found in graph.consumers().items()}
    for public in graph.outputs.values():
        uses[public] = uses.get(public, 0) + 1
    nodes: dict[int, Node] = {}
    places: dict[str, int] = {}
    for place, node in enumerate(graph.nodes):
        while (
            which := _fusing_input(node, nodes, places, graph, uses, (of_inputs, reduced))
        ) is not None:
            producer = nodes.pop(places.pop(node.inputs[which] or ""))
            node = _merge(producer, node, which)
        nodes[place] = node
        if len(node.outputs) == 1:
            places[node.outputs[0]] = place
    return graph.with_nodes(nodes.values())


def _of_inputs(graph: Graph) -> set[str | None]:
    """Return the values that depend on what the graph is fed."""
    found: set[str | None] = set(graph.inputs)
    for node in graph.nodes:
        if not found.isdisjoint(node.inputs):
            found.update(node.outputs)
    return found


def _reduced(graph: Graph) -> set[str | None]:
    """Return the values that are made of nothing but results of reductions, and constants."""
    found: set[str | None] = set()
    consts: set[str | None] = {None, *graph.consts}
    for node in graph.nodes:
        given = set(node.inputs) - consts
        if node.spec.kind == "reduce" or (given and given <= found):
            found.update(node.outputs)
    return found


def _fusing_input(
    node: Node,
    nodes: Mapping[int, Node],
    places: Mapping[str, int],
    graph: Graph,
    uses: Mapping[str, int],
    kinds: tuple[AbstractSet[str | None], AbstractSet[str | None]],
) -> int | None:
    """Return the input of `node` whose producer it fuses into, None where there is none.

    nodes: those before it, by place. places: of the producers with one output. kinds: values that
    depend on inputs, and those that are made of reductions alone.
    """
    of_inputs, reduced = kinds
    if not isinstance(node.spec, Eltwise):
        return None
    out = graph.types[node.outputs[0]]
    choices = []
    for which, name in enumerate(node.inputs):
        if name is None or name not in places or uses[name] != 1 or graph.types[name] != out:
            continue
        others = of_inputs & set(node.inputs)
        if (name not in of_inputs and others) or (name in reduced and not others <= reduced):
            continue
        producer = nodes[places[name]]
        if not takes_steps(producer, node.spec):
            continue
        if post_ops_from(node.spec.post_ops, which) is not None:
            choices.append((isinstance(producer.spec, Eltwise), -places[name], which))
    return min(choices)[-1] if choices else None


def takes_steps(producer: Node, spec: Eltwise) -> bool:
    """Whether a node's kernels compute the steps of an elementwise op behind its own."""
    length = len(getattr(producer.spec, "post_ops", ())) + len(spec.post_ops)
    return producer.spec.fuses_post_ops and length <= MOST_STEPS


def post_ops_from(post_ops: tuple[PostOp, ...], which: int) -> tuple[PostOp, ...] | None:
    """Return `post_ops` rewritten so that node input `which` is the running value.

    The former running value (input 0) becomes an operand of the first step; None where that
    cannot be.
    """
    if which == 0:
        return post_ops
    first = post_ops[0] if post_ops else None
    if first is None or first.operand != which or not FUNCTIONS[first.fn].binary:
        return None
    if any(s.operand == which for s in post_ops[1:]):
        return None
    return (changed(first, operand=0, swapped=not first.swapped), *post_ops[1:])


def operands_from(
    post_ops: tuple[PostOp, ...], first: int
) -> tuple[tuple[PostOp, ...], tuple[int, ...]]:
    """Return `post_ops` with their operands as inputs from `first` on, and which inputs these were."""
    taken = tuple(dict.fromkeys(s.operand for s in post_ops if s.operand is not None))
    places = {operand: place for place, operand in enumerate(taken, first)}
    renamed = tuple(
        s if s.operand is None else changed(s, operand=places[s.operand]) for s in post_ops
    )
    return renamed, taken


def _merge(producer: Node, node: Node, which: int) -> Node:
    """Return the producer with the node's steps behind its own."""
    assert isinstance(node.spec, Eltwise)
    post_ops = post_ops_from(node.spec.post_ops, which)
    assert post_ops is not None
    inputs = list(producer.inputs)
    while len(inputs) < getattr(producer.spec, "first_operand", 1):
        inputs.append(None)
    renamed, taken = operands_from(post_ops, len(inputs))
    inputs += (node.inputs[operand] for operand in taken)
    own: tuple[PostOp, ...] = getattr(producer.spec, "post_ops", ())
    spec = with_fields(producer.spec, post_ops=own + renamed)
    origin = f"{producer.origin} + {node.origin}"
    return Node(producer.name, spec, tuple(inputs), node.outputs, origin)

"""Layer and RMS normalisations that a model spells out become one node.

    x - mean(x) -> d    d / sqrt(mean(d * d) + epsilon)        before there was an operator for it, and
                        x / sqrt(mean(x * x) + epsilon)        as exporters still write RMS norms

Over any axes, with or without keeping the deviation's reciprocal; what is done to the result, such as a
scale and a shift, is already behind the division and stays there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import isfinite

from clnn.graph.ir import Graph, Node
from clnn.graph.passes.dead import remove_dead
from clnn.graph.passes.fuse_post_ops import operands_from
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.rows.norm import Normalise
from clnn.ops.rows.reduce import Reduce
from clnn.ops.shared.functions import PostOp
from clnn.records import changed, dataclass
from clnn.types import F32, F64

ROOT = PostOp("sqrt")
# Steps behind the mean and epsilon, and the function that then makes the result of them: its reciprocals too.
ENDINGS = {(ROOT,): "div", (ROOT, PostOp("reciprocal")): "mul"}
MEAN = Reduce("mean", ())


@dataclass(frozen=True)
class _Part:
    """What a part of a normalisation is made of, and the nodes that make it."""

    source: str
    axes: tuple[int, ...]
    nodes: tuple[Node, ...]
    epsilon: float = 0.0


def fuse_written_norms(graph: Graph) -> Graph:
    """Return `graph` with normalisations by mean and mean square, or the latter alone, as single nodes.

    Only where nothing else reads what is between.
    """
    finder = _Finder(graph)
    made = [finder.normalisation(node) or node for node in graph.nodes]
    return remove_dead(graph.with_nodes(made))


class _Finder:
    """Nodes of a graph that together are a normalisation."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.producers, self.uses = graph.producers(), graph.consumers()
        self.public = set(graph.outputs.values())

    def normalisation(self, node: Node) -> Node | None:
        """Return a normalisation that ends in an elementwise node, None where none does."""
        for x, name, fn, post_ops in _divisions(node):
            spread = self.spread(name, fn)
            if spread is None:
                continue
            centred, square = self.centred(x), self.centred(spread.source)
            inside = spread.nodes
            if centred and square and centred.source == square.source:
                source = centred.source
                same = centred.axes == square.axes == spread.axes
                inside += centred.nodes + square.nodes
            else:
                centred, source, same = None, x, spread.source == x
            if same and self.is_whole(node, inside, source):
                spec = Normalise(spread.axes, spread.epsilon, centre=centred is not None)
                return _node(node, spec, source, post_ops, inside)
        return None

    def is_whole(self, last: Node, inside: tuple[Node, ...], source: str) -> bool:
        """Whether nothing else reads what nodes before the last one make, and types fit."""
        own = {n.name for n in (*inside, last)}
        outs = [n.outputs[0] for n in inside]
        if any(o in self.public or any(r.name not in own for r in self.uses[o]) for o in outs):
            return False
        types = self.graph.types
        return types[source] == types[last.outputs[0]] and types[source].dtype in (F32, F64)

    def spread(self, name: str, fn: str) -> _Part | None:
        """Return of what `name` is the root of the mean square and epsilon, or its reciprocal."""
        node = self.producers.get(name)
        found = None if node is None else self.mean(node)
        if node is None or found is None or not isinstance(node.spec, Reduce):
            return None
        square = self.producers.get(found)
        source = None if square is None else _squared(square)
        epsilon, ending = self.ending(node)
        if source is None or square is None or epsilon is None or ENDINGS.get(ending) != fn:
            return None
        return _Part(source, node.spec.axes, (node, square), epsilon)

    def mean(self, node: Node) -> str | None:
        """Return of what a node makes the mean that it keeps the axes of, None where it makes none."""
        spec = node.spec
        is_mean = isinstance(spec, Reduce) and replace(spec, axes=(), post_ops=()) == MEAN
        return node.inputs[0] if is_mean else None

    def ending(self, node: Node) -> tuple[float | None, tuple[PostOp, ...]]:
        """Return what a mean has added to it, None where it has none, and the steps behind, the same for the same."""
        assert isinstance(node.spec, Reduce)
        first, *rest = node.spec.post_ops or (ROOT,)
        added = self.number(first, node) if first.fn == "add" else None
        if added is None or not isfinite(added) or added < 0:
            return None, ()
        return added, tuple(step for s in rest for step in self.plain(s, node))

    def plain(self, step: PostOp, node: Node) -> tuple[PostOp, ...]:
        """Return a step, or those that do the same: 1 / x, and x to the power of a half, negative or not."""
        number = self.number(step, node)
        if step.fn == "div" and step.swapped and number == 1:
            return (PostOp("reciprocal"),)
        if step.fn == "pow" and not step.swapped and number in (0.5, -0.5):
            return (ROOT,) if number > 0 else (ROOT, PostOp("reciprocal"))
        return (step,)

    def number(self, step: PostOp, node: Node) -> float | None:
        """Return the one number that a step takes besides the running value, None where it takes none."""
        if step.operand is None:
            return float(step.params[0]) if len(step.params) == 1 else None
        array = self.graph.consts.get(node.inputs[step.operand] or "")
        return float(array.reshape(())) if array is not None and array.size == 1 else None

    def centred(self, name: str) -> _Part | None:
        """Return of what `name` is the distance from its mean, None where it is not."""
        node = self.producers.get(name)
        if node is None or not isinstance(node.spec, Eltwise) or len(node.inputs) != 2:
            return None
        if node.spec.post_ops != (PostOp("sub", operand=1),):
            return None
        source, mean = node.inputs[0] or "", self.producers.get(node.inputs[1] or "")
        if mean is None or self.mean(mean) != source:
            return None
        assert isinstance(mean.spec, Reduce)
        if mean.spec.post_ops:
            return None
        return _Part(source, mean.spec.axes, (node, mean))


def _divisions(node: Node) -> Iterator[tuple[str, str, str, tuple[PostOp, ...]]]:
    """Yield (x, divisor, how, steps behind) of an elementwise node: x over or times another value."""
    if not isinstance(node.spec, Eltwise) or not node.spec.post_ops:
        return
    first, *rest = node.spec.post_ops
    if first.operand in (None, 0) or first.fn not in ("div", "mul"):
        return
    which = first.operand
    value, other = node.inputs[0], node.inputs[which or 0]
    if value is None or other is None or any(s.operand in (0, which) for s in rest):
        return
    if first.fn == "mul" or not first.swapped:
        yield value, other, first.fn, tuple(rest)
    if first.fn == "mul":
        yield other, value, first.fn, tuple(rest)


def _squared(node: Node) -> str | None:
    """Return what a node makes the square of, None where it makes something else."""
    if not isinstance(node.spec, Eltwise) or len(node.spec.post_ops) != 1:
        return None
    (step,) = node.spec.post_ops
    if step.fn == "mul":
        times = step.operand is not None and node.inputs[step.operand] == node.inputs[0]
        return node.inputs[0] if times else None
    return node.inputs[0] if step.fn == "square" else None


def _node(
    last: Node, spec: Normalise, source: str, post_ops: tuple[PostOp, ...], inside: tuple[Node, ...]
) -> Node:
    """Return a normalisation in the place of the last of its nodes, with the steps behind it."""
    renamed, taken = operands_from(post_ops, 1)
    inputs = (source, *(last.inputs[k] for k in taken))
    origin = " + ".join(n.origin for n in (*reversed(dict.fromkeys(inside)), last))
    return changed(last, spec=replace(spec, post_ops=renamed), inputs=inputs, origin=origin)

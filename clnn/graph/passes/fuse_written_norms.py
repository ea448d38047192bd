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
SQUARE = 2  # as a power


@dataclass(frozen=True)
class _Distance:
    """A value, or its distance from its mean over some axes, and the nodes that make that."""

    source: str
    axes: tuple[int, ...] | None = None
    nodes: tuple[Node, ...] = ()


@dataclass(frozen=True)
class _Spread:
    """What is squared, the axes of the mean, what is added to it, and the nodes that make the root."""

    squared: _Distance
    axes: tuple[int, ...]
    epsilon: float
    nodes: tuple[Node, ...]


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
        for divided, name, fn, post_ops in self.divisions(node):
            for spread in self.spreads(name, fn):
                one, two = divided, spread.squared
                same = one.source == two.source and one.axes == two.axes
                if not same or one.axes not in (None, spread.axes):
                    continue
                inside = (*spread.nodes, *one.nodes, *two.nodes)
                if self.is_whole(node, inside, one.source):
                    spec = Normalise(spread.axes, spread.epsilon, centre=one.axes is not None)
                    return _node(node, spec, one.source, post_ops, inside)
        return None

    def divisions(self, node: Node) -> Iterator[tuple[_Distance, str, str, tuple[PostOp, ...]]]:
        """Yield (value, divisor, how, steps behind) of an elementwise node: a value over or times another one."""
        for value, steps in self.distances(node):
            if not steps or steps[0].fn not in ("div", "mul") or steps[0].operand in (None, 0):
                continue
            first, *rest = steps
            which = first.operand or 0
            other = node.inputs[which]
            if other is None or any(s.operand in (0, which) for s in rest):
                continue
            if first.fn == "mul" or not first.swapped:
                yield value, other, first.fn, tuple(rest)
            if first.fn == "mul" and not value.nodes:
                for found in self.known(other):
                    yield found, value.source, first.fn, tuple(rest)

    def distances(self, node: Node) -> Iterator[tuple[_Distance, tuple[PostOp, ...]]]:
        """Yield what an elementwise node begins with, as far as that is known, and its steps from there on."""
        if not isinstance(node.spec, Eltwise) or node.inputs[0] is None:
            return
        steps = node.spec.post_ops
        for found in self.known(node.inputs[0]):
            yield found, steps
        inside = self.from_mean(node)
        if inside is not None:
            yield inside, steps[1:]

    def known(self, name: str) -> Iterator[_Distance]:
        """Yield a value as the distance from a mean, if it is one, and as itself."""
        node = self.producers.get(name)
        alone = node is not None and isinstance(node.spec, Eltwise) and len(node.spec.post_ops) == 1
        found = self.from_mean(node) if node is not None and alone else None
        if node is not None and found is not None:
            yield _Distance(found.source, found.axes, (*found.nodes, node))
        yield _Distance(name)

    def from_mean(self, node: Node) -> _Distance | None:
        """Return the distance from its mean that an elementwise node begins with, None where it does not."""
        assert isinstance(node.spec, Eltwise)
        steps, source = node.spec.post_ops, node.inputs[0]
        first = steps[0] if steps else None
        if first is None or first.fn != "sub" or first.swapped or not first.operand:
            return None
        mean = self.producers.get(node.inputs[first.operand] or "")
        if mean is None or source is None or self.mean(mean) != source:
            return None
        assert isinstance(mean.spec, Reduce)
        again = any(s.operand in (0, first.operand) for s in steps[1:])
        return None if mean.spec.post_ops or again else _Distance(source, mean.spec.axes, (mean,))

    def is_whole(self, last: Node, inside: tuple[Node, ...], source: str) -> bool:
        """Whether nothing else reads what nodes before the last one make, and types fit."""
        own = {n.name for n in (*inside, last)}
        outs = [n.outputs[0] for n in inside]
        if any(o in self.public or any(r.name not in own for r in self.uses[o]) for o in outs):
            return False
        types = self.graph.types
        return types[source] == types[last.outputs[0]] and types[source].dtype in (F32, F64)

    def spreads(self, name: str, fn: str) -> Iterator[_Spread]:
        """Yield of what `name` is the root of the mean square and epsilon, or its reciprocal."""
        node = self.producers.get(name)
        square = None if node is None else self.producers.get(self.mean(node) or "")
        if node is None or square is None or not isinstance(node.spec, Reduce):
            return
        epsilon, ending = self.ending(node)
        if epsilon is None or ENDINGS.get(ending) != fn:
            return
        for value, steps in self.distances(square):
            if self.is_square(square, steps):
                yield _Spread(value, node.spec.axes, epsilon, (node, square))

    def is_square(self, node: Node, steps: tuple[PostOp, ...]) -> bool:
        """Whether steps of a node make the square of what they begin with."""
        if len(steps) != 1:
            return False
        (step,) = steps
        if step.fn == "pow":
            return not step.swapped and self.number(step, node) == SQUARE
        times = step.fn == "mul" and step.operand and node.inputs[step.operand] == node.inputs[0]
        plain = isinstance(node.spec, Eltwise) and len(node.spec.post_ops) == 1
        return step.fn == "square" or bool(times and plain)

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


def _node(
    last: Node, spec: Normalise, source: str, post_ops: tuple[PostOp, ...], inside: tuple[Node, ...]
) -> Node:
    """Return a normalisation in the place of the last of its nodes, with the steps behind it."""
    renamed, taken = operands_from(post_ops, 1)
    inputs = (source, *(last.inputs[k] for k in taken))
    origin = " + ".join(n.origin for n in (*reversed(dict.fromkeys(inside)), last))
    return changed(last, spec=replace(spec, post_ops=renamed), inputs=inputs, origin=origin)

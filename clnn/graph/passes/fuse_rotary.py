"""Rotary positions become one op, in whichever way a model writes them.

    x cos + concat(-x2, x1) sin                    x1, x2: the halves of the last axis of x,
    x cos + reshape(concat(-x2, x1)) sin           or every second value
    concat(x1 cos - x2 sin, x2 cos + x1 sin)       where a pair has one cosine and one sine

A number that the result is multiplied by, such as the scale of attention, goes into tables that are constants;
other steps stay an elementwise op behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import numpy as np

from clnn.graph.ir import Graph, Node
from clnn.graph.passes.dead import remove_dead
from clnn.graph.passes.fuse_post_ops import operands_from
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.movement.views import Concat, Reshape, Slice
from clnn.ops.shared.functions import PostOp
from clnn.ops.transformer.rotate import Rotate
from clnn.records import changed, dataclass
from clnn.types import F32

Pair = tuple[str, str]
NEGATED = PostOp("neg")


@dataclass(frozen=True)
class _Sum:
    """Two products, the second one added or taken away, and the steps behind."""

    first: Pair
    second: Pair
    less: bool
    post_ops: tuple[PostOp, ...]


def fuse_rotary(graph: Graph) -> Graph:
    """Return `graph` with rotary positions as single nodes, for kernels of float32 and known extents."""
    return remove_dead(_Fusing(graph).run())


class _Fusing:
    """The pass at work: who makes each value, and the types of those that it makes."""

    def __init__(self, graph: Graph) -> None:
        self.types, self.consts = dict(graph.types), dict(graph.consts)
        self.graph, self.producers = graph, graph.producers()

    def run(self) -> Graph:
        """Return the graph with what was found."""
        nodes = [made for node in self.graph.nodes for made in self.rotation(node) or (node,)]
        return self.graph.with_nodes(nodes, types=self.types, consts=self.consts)

    def rotation(self, node: Node) -> tuple[Node, ...]:
        """Return the nodes for a rotation that ends in `node`, none where none does."""
        if self.types[node.outputs[0]].dtype != F32:
            return ()
        if isinstance(node.spec, Concat):
            return self.of_halves(node)
        for found in self.sums(node.outputs[0]):
            for turned, sin in permutations(found.second):
                x, beside = self.turned(turned)
                if found.less or x not in found.first:
                    continue
                cos = found.first[x == found.first[0]]
                if self.fits(x, node.outputs[0], cos, sin):
                    return self.made(node, Rotate(beside), (x, cos, sin), found.post_ops)
        return ()

    def of_halves(self, node: Node) -> tuple[Node, ...]:
        """Return the node for two halves that are turned each, none where they are something else."""
        out, parts = self.types[node.outputs[0]], node.inputs
        if len(parts) != 2 or node.spec != Concat(out.rank - 1):
            return ()
        for real in self.sums(parts[0]):
            for other in self.sums(parts[1]):
                for (a, cos), (b, sin) in _orders(real.first, real.second):
                    plain = real.less and not other.less and not real.post_ops + other.post_ops
                    crossed = {frozenset((b, cos)), frozenset((a, sin))}
                    if not plain or {frozenset(other.first), frozenset(other.second)} != crossed:
                        continue
                    x = self.halves(a, b)
                    if x is not None and self.fits(x, node.outputs[0], cos, sin):
                        return self.made(node, Rotate(), (x, cos, sin), ())
        return ()

    def made(
        self, node: Node, spec: Rotate, inputs: tuple[str, ...], post_ops: tuple[PostOp, ...]
    ) -> tuple[Node, ...]:
        """Return a rotation in the place of `node`, and what does the steps behind it."""
        factor = self.factor(node, post_ops)
        if factor is not None and self.consts.keys() >= {*inputs[1:]}:
            inputs, post_ops = (inputs[0], *(self.scaled(n, factor) for n in inputs[1:])), ()
        if not post_ops:
            return (changed(node, spec=spec, inputs=inputs),)
        between = f"{node.outputs[0]}:rotated"
        self.types[between] = self.types[node.outputs[0]]
        renamed, taken = operands_from(post_ops, 1)
        behind = changed(
            node,
            name=f"{node.name}:behind",
            spec=Eltwise(renamed),
            inputs=(between, *(node.inputs[k] for k in taken)),
        )
        return changed(node, spec=spec, inputs=inputs, outputs=(between,)), behind

    def factor(self, node: Node, post_ops: tuple[PostOp, ...]) -> float | None:
        """Return the one number that steps multiply by, None where they do something else."""
        if len(post_ops) != 1 or post_ops[0].fn != "mul":
            return None
        (step,) = post_ops
        if step.operand is None:
            return float(step.params[0])
        array = self.consts.get(node.inputs[step.operand] or "")
        return float(array.reshape(())) if array is not None and array.size == 1 else None

    def scaled(self, table: str, factor: float) -> str:
        """Return a constant table times a number."""
        name = f"{table}:times{factor!r}"
        if name not in self.consts:
            self.consts[name] = self.consts[table] * np.float32(factor)
            self.types[name] = self.types[table]
        return name

    def fits(self, x: str, out: str, cos: str, sin: str) -> bool:
        """Whether tables have a number for each value or each pair of `x`."""
        kind = self.types[x]
        if kind != self.types[out] or kind.rank < 2:
            return False
        return all(
            self.types[t].dtype == F32 and _spans(self.types[t].shape, kind.shape)
            for t in (cos, sin)
        )

    def sums(self, name: str | None) -> Iterator[_Sum]:
        """Yield the two products that a value is the sum or difference of, in both orders of a sum."""
        node = self.elementwise(name)
        if node is None or len(node.spec.post_ops) < 2:  # type: ignore[attr-defined]
            return
        times, plus, *rest = node.spec.post_ops  # type: ignore[attr-defined]
        own = {times.operand, plus.operand}
        if times.fn != "mul" or plus.fn not in ("add", "sub") or own & {None, 0}:
            return
        if len(own) < 2 or any(s.operand in own | {0} for s in rest):
            return
        here = self.names(node, 0, times.operand)
        there = self.product(node.inputs[plus.operand])
        if here is None or there is None:
            return
        if plus.fn == "add":
            yield _Sum(here, there, False, tuple(rest))
            yield _Sum(there, here, False, tuple(rest))
        else:
            first, second = (there, here) if plus.swapped else (here, there)
            yield _Sum(first, second, True, tuple(rest))

    def product(self, name: str | None) -> Pair | None:
        """Return the two values that one is the product of, None where it is something else."""
        node = self.elementwise(name)
        if node is None or len(node.inputs) != 2:
            return None
        steps = node.spec.post_ops  # type: ignore[attr-defined]
        plain = len(steps) == 1 and steps[0].fn == "mul" and steps[0].operand == 1
        return self.names(node, 0, 1) if plain else None

    def names(self, node: Node, *places: int) -> Pair | None:
        """Return two inputs of a node, None where one is left out."""
        one, two = (node.inputs[k] for k in places)
        return None if one is None or two is None else (one, two)

    def elementwise(self, name: str | None) -> Node | None:
        """Return the elementwise node that makes a value, None where another does."""
        node = self.producers.get(name or "")
        return node if node is not None and isinstance(node.spec, Eltwise) else None

    def turned(self, name: str) -> tuple[str, bool]:
        """Return x where a value has (-b, a) for each pair (a, b) of it, and whether these lie side by side.

        "" where it has something else.
        """
        node = self.producers.get(name)
        joined, beside = node, False
        if node is not None and isinstance(node.spec, Reshape):
            joined, beside = self.producers.get(node.inputs[0] or ""), True
        if joined is None or len(joined.inputs) != 2 or not isinstance(joined.spec, Concat):
            return "", beside
        kind = self.types[joined.outputs[0]]
        wide = (*kind.shape[:-2], 2 * kind.shape[-2]) if kind.rank > 1 else ()
        if joined.spec != Concat(kind.rank - 1):
            return "", beside
        if beside and (kind.shape[-1] != 2 or self.types[name].shape != wide):
            return "", beside
        first, second = (self.alone(n, beside) for n in joined.inputs)
        minus = self.elementwise(first)
        if minus is None or minus.spec != Eltwise((NEGATED,)):
            return "", beside
        return self.halves(second, self.alone(minus.inputs[0], False), beside) or "", beside

    def alone(self, name: str | None, beside: bool) -> str | None:
        """Return a value without the axis of extent 1 that a reshape put behind it, where `beside`."""
        node = self.producers.get(name or "")
        if not beside:
            return name
        if node is None or not isinstance(node.spec, Reshape):
            return None
        before = self.types[node.inputs[0] or ""].shape
        return node.inputs[0] if self.types[name or ""].shape == (*before, 1) else None

    def halves(self, first: str | None, second: str | None, beside: bool = False) -> str | None:
        """Return what two values are the halves of, along its last axis, or every second value of."""
        nodes = [self.producers.get(n or "") for n in (first, second)]
        sources = [n.inputs[0] for n in nodes if n is not None and isinstance(n.spec, Slice)]
        if len(sources) != 2 or sources[0] != sources[1] or sources[0] is None:
            return None
        shape = self.types[sources[0]].shape
        half, odd = divmod(shape[-1], 2)
        for k, node in enumerate(nodes):
            start, step = (k, 2) if beside else (k * half, 1)
            zeros, ones = (0,) * (len(shape) - 1), (1,) * (len(shape) - 1)
            want = Slice((*zeros, start), (*shape[:-1], half), (*ones, step))
            if odd or node is None or node.spec != want:
                return None
        return sources[0]


def _orders(one: Pair, two: Pair) -> Iterator[tuple[Pair, Pair]]:
    """Yield both products with their factors in either order."""
    for first in permutations(one):
        for second in permutations(two):
            yield (first[0], first[1]), (second[0], second[1])


def _spans(table: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether a table is broadcast to rows of a shape, and has a number for each of their values or pairs."""
    if not table or len(table) > len(shape) or table[-1] not in (shape[-1], shape[-1] // 2):
        return False
    outer = shape[len(shape) - len(table) : -1]
    return all(t in (1, d) for t, d in zip(table[:-1], outer, strict=True))

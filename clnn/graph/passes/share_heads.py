"""Attention whose heads share keys and values in groups reads these where they lie, without a copy for each head.

    k (b, groups, n, d) -> (b, groups, 1, n, d) -> expanded (b, groups, each, n, d) -> (b, heads, n, d)

That is how grouped-query attention is written. The queries are seen in groups instead, (b, groups, each, m, d).
"""

from __future__ import annotations

from dataclasses import replace

from clnn.graph.ir import Graph, Node
from clnn.graph.passes.dead import remove_dead
from clnn.layout import TensorLayout
from clnn.ops.gemm.spec import ADDEND
from clnn.ops.movement.views import Expand, Reshape, Transpose
from clnn.ops.transformer.attend import Attention
from clnn.records import changed, dataclass
from clnn.types import TensorType

RANK = 4  # of what attention multiplies: a batch, heads, and matrices


@dataclass(frozen=True)
class _Shared:
    """A value of groups before it is repeated, (b, groups, 1, rows, columns), and whether it is then transposed."""

    name: str
    each: int
    transposed: bool


def share_heads(graph: Graph) -> Graph:
    """Return `graph` with attention of shared keys and values on what is shared."""
    return remove_dead(_Sharing(graph).run())


class _Sharing:
    """The pass at work: who makes each value, and what it adds."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.producers = graph, graph.producers()
        self.types, self.consts = dict(graph.types), dict(graph.consts)

    def run(self) -> Graph:
        """Return the graph with what was found."""
        nodes = [made for node in self.graph.nodes for made in self.attention(node) or (node,)]
        return self.graph.with_nodes(nodes, types=self.types, consts=self.consts)

    def attention(self, node: Node) -> tuple[Node, ...]:
        """Return the nodes for an attention of shared keys and values, none where they are no such."""
        spec, out = node.spec, node.outputs[0]
        if not isinstance(spec, Attention) or spec.turned > 1 or self.types[out].rank != RANK:
            return ()
        query, key, value = node.inputs[0], node.inputs[1], node.inputs[-1]
        keys, values = self.shared(key), self.shared(value)
        if query is None or keys is None or values is None or keys.each != values.each:
            return ()
        grouped = self.types[keys.name].shape[:2] == self.types[values.name].shape[:2]
        if not grouped or self.types[query].rank != RANK:
            return ()
        own = [self.split(n, keys, node) for n in node.inputs[ADDEND:-1]]
        views = [view for view, _ in own if view is not None]
        seen, queries = self.split(query, keys, node)
        if seen is not None:
            views.append(seen)
        scores = replace(spec.scores, trans_b=spec.scores.trans_b != keys.transposed)
        made = replace(
            spec,
            scores=scores,
            trans_v=spec.trans_v != values.transposed,
            turned=2 * spec.turned,
        )
        inputs = (queries, keys.name, *(name for _, name in own), values.name)
        kinds = [None if n is None else self.types[n] for n in inputs]
        result = f"{out}:groups"
        (self.types[result],) = made.infer(kinds)
        fused = changed(node, spec=made, inputs=inputs, outputs=(result,))
        joined = Node(f"{node.name}:joined", Reshape(self.types[out].shape), (result,), (out,))
        return (*views, fused, changed(joined, origin=node.origin))

    def shared(self, name: str | None) -> _Shared | None:
        """Return what a value (b, heads, rows, columns) repeats, None where it repeats nothing."""
        views: list[Node] = []
        node = self.producers.get(name or "")
        while node is not None and isinstance(node.spec, (Reshape, Transpose)):
            views.insert(0, node)
            node = self.producers.get(node.inputs[0] or "")
        if node is None or not isinstance(node.spec, Expand) or node.inputs[0] is None:
            return None
        before, after = self.types[node.inputs[0]].shape, self.types[node.outputs[0]].shape
        if len(after) != RANK + 1 or before != (*after[:2], 1, *after[3:]):
            return None
        lies: TensorLayout | None = TensorLayout.make(after)
        for view in views:
            lies = None if lies is None else view.spec.forward(lies)  # type: ignore[attr-defined]
        if lies is None or lies.rank != RANK or lies.shape[1] != after[1] * after[2]:
            return None
        rows, columns = after[3:]
        outer = (after[1] * after[2] * rows * columns, rows * columns)
        for pitches in ((columns, 1), (1, columns)):
            shape = after[3:] if pitches[1] == 1 else after[:2:-1]
            want = TensorLayout.of_pitches(
                (after[0], lies.shape[1], *shape), (*outer, *pitches), lies.offset, lies.size
            )
            if lies.shape == want.shape and _same(lies, want):
                return _Shared(node.inputs[0], after[2], pitches[1] != 1)
        return None

    def split(self, name: str | None, keys: _Shared, node: Node) -> tuple[Node | None, str | None]:
        """Return a value with its heads in groups, and the view that makes it, where one is needed."""
        if name is None or self.types[name].rank < RANK - 1:
            return None, name
        kind = self.types[name]
        heads = kind.shape[-3]
        groups = (1, 1) if heads == 1 else (heads // keys.each, keys.each)
        shape = (*kind.shape[:-3], *groups, *kind.shape[-2:])
        made = f"{name}:groups{keys.each}"
        if name in self.consts:
            self.consts[made] = self.consts[name].reshape(shape)
            self.types[made] = TensorType(shape, kind.dtype)
            return None, made
        made = f"{made}:{node.name}"
        self.types[made] = TensorType(shape, kind.dtype)
        return Node(made, Reshape(shape), (name,), (made,), f"Reshape {name}"), made


def _same(one: TensorLayout, two: TensorLayout) -> bool:
    """Whether layouts of one shape place all elements alike."""
    return all(
        a == b for a, b, d in zip(one.pitches, two.pitches, one.shape, strict=True) if d != 1
    )

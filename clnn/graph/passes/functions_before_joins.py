"""Functions of one value change places with the concatenation in front of them, whose members' makers take them.

    a -+                                     a -> function -+
       concat -> function     becomes                       concat
    b -+                                     b -> function -+

Constants that vary along the axis of the concatenation are cut as it is, as of a batch normalisation behind
convolutions that share the channels.
"""

from __future__ import annotations

from clnn.graph.ir import Graph, Node
from clnn.graph.passes.fuse_post_ops import takes_steps
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.views import Concat
from clnn.records import changed
from clnn.types import TensorType


def functions_before_joins(graph: Graph) -> Graph:
    """Return `graph` with elementwise functions of one value in front of concatenations of it.

    Only where all members are made by ops that fuse post-ops, and nothing else reads them or what they are
    joined to. One function after another where several follow each other.
    """
    while True:
        moving = _Moving(graph)
        if not moving.joins:
            return graph
        graph = moving.run()


class _Moving:
    """The pass at work: nodes in order, and what they make."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.types, self.consts = graph, dict(graph.types), dict(graph.consts)
        self.producers, self.uses = graph.producers(), graph.consumers()
        self.public = set(graph.outputs.values())
        found = [(self._join(node), node) for node in graph.nodes]
        self.joins = {join.name: node for join, node in found if join is not None}

    def run(self) -> Graph:
        """Return the graph with each function at its place."""
        gone = {node.name for node in self.joins.values()}
        nodes: list[Node] = []
        for node in self.graph.nodes:
            if node.name in self.joins:
                nodes += self._parts(node, self.joins[node.name])
            elif node.name not in gone:
                nodes.append(node)
        return self.graph.with_nodes(nodes, types=self.types, consts=self.consts)

    def _join(self, node: Node) -> Node | None:
        """Return the concatenation whose members can take a function, None where there is none."""
        if not isinstance(node.spec, Eltwise) or not node.spec.post_ops:
            return None
        (first, *others), join = node.inputs, self._above(node.inputs[0])
        if join is None or not isinstance(join.spec, Concat) or join.spec.mixed:
            return None
        if any(n not in self.consts for n in others) or 0 in {
            s.operand for s in node.spec.post_ops
        }:
            return None
        if self.types[first or ""] != self.types[node.outputs[0]]:
            return None
        makers = [self._above(name) for name in join.inputs]
        taken = all(m is not None and self._takes(m, node.spec) for m in makers)
        return join if taken else None

    def _takes(self, maker: Node, function: Eltwise) -> bool:
        """Whether what makes a member computes the steps of a function; products of two computed values do not."""
        known = any(n in self.consts for n in maker.inputs[:2])
        computed = isinstance(maker.spec, Gemm) and not known
        return len(maker.outputs) == 1 and not computed and takes_steps(maker, function)

    def _above(self, name: str | None) -> Node | None:
        """Return what makes a value that is read once, None where it is read elsewhere."""
        if name is None or name in self.public or len(self.uses.get(name, ())) != 1:
            return None
        return self.producers.get(name)

    def _parts(self, join: Node, function: Node) -> list[Node]:
        """Return the function of each member, and the concatenation of these."""
        assert isinstance(join.spec, Concat)
        made, names, start = [], [], 0
        for place, name in enumerate(join.inputs):
            kind = self.types[name or ""]
            stop = start + kind.shape[join.spec.axis]
            operands = [
                self._cut(n or "", join.spec.axis, (start, stop), kind, place)
                for n in function.inputs[1:]
            ]
            names.append(f"{function.outputs[0]}:{place}")
            self.types[names[-1]] = kind
            inputs, outputs = (name, *operands), (names[-1],)
            made.append(changed(function, name=names[-1], inputs=inputs, outputs=outputs))
            start = stop
        return [*made, changed(join, inputs=tuple(names), outputs=function.outputs)]

    def _cut(
        self, name: str, axis: int, part: tuple[int, int], kind: TensorType, place: int
    ) -> str:
        """Return what of a constant meets a member."""
        array = self.consts[name]
        own = axis - (kind.rank - array.ndim)
        if own < 0 or array.shape[own] == 1:
            return name
        made = f"{name}:{axis}:{place}"
        self.consts[made] = array[(slice(None),) * own + (slice(*part),)]
        self.types[made] = TensorType(self.consts[made].shape, self.types[name].dtype)
        return made

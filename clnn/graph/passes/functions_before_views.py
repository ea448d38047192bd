"""Functions of one value change places with the views in front of them, so that what makes the value takes them.

    convolution -> reshape -> transpose -> gelu      becomes      convolution -> gelu -> reshape -> transpose

A view only renames elements: what is done to each by itself may be done before. Constants along one axis
follow it through the views. A computed operand of the same shape, such as a residual sum's, is seen through
the reverse of the views, where these are transposes alone.
"""

from __future__ import annotations

import numpy as np

from clnn.graph.ir import Graph, Node
from clnn.graph.passes.fuse_post_ops import operands_from, post_ops_from, takes_steps
from clnn.layout import reshape_groups
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.views import Reshape, Transpose
from clnn.records import changed
from clnn.traced import is_one
from clnn.types import TensorType


def functions_before_views(graph: Graph, fixed: bool = False) -> Graph:
    """Return `graph` with elementwise functions of one value in front of reshapes and transposes of it.

    Operands are constants of at most one axis that is not of extent 1, or, where the network has no other shapes
    (fixed) and behind transposes, one value of the same shape: what makes the value may then write an image with a
    border row by row, which kernels of extents that are known do well. Only where the op before the
    views fuses post-ops, and nothing else reads its result or what lies between. A product of two
    computed values is left as it is: as the end of attention it takes no function.
    """
    return _Moving(graph, fixed).run()


class _Moving:
    """The pass at work: nodes by name as they are now, who makes each value, and how often it is read."""

    def __init__(self, graph: Graph, fixed: bool) -> None:
        self.most = 2 if fixed else 1  # computed values
        self.graph, self.types, self.consts = graph, dict(graph.types), dict(graph.consts)
        self.nodes = {node.name: node for node in graph.nodes}
        self.producers = graph.producers()
        self.uses = {name: len(found) for name, found in graph.consumers().items()}
        for public in graph.outputs.values():
            self.uses[public] = self.uses.get(public, 0) + 1
        self.before: dict[str, list[Node]] = {}
        places = {node.name: place for place, node in enumerate(graph.nodes)}
        self.places = {name: places[node.name] for name, node in self.producers.items()}

    def run(self) -> Graph:
        """Return the graph with each function at its place."""
        for node in self.graph.nodes:
            self._move(node)
        nodes = [
            each
            for node in self.graph.nodes
            if node.name in self.nodes
            for each in (*self.before.get(node.name, ()), self.nodes[node.name])
        ]
        return self.graph.with_nodes(nodes, types=self.types, consts=self.consts)

    def _move(self, node: Node) -> None:
        """Put a node in front of the views of its value, where that may be."""
        computed = [k for k, name in enumerate(node.inputs) if name not in self.consts]
        if isinstance(node.spec, Eltwise) and 0 < len(computed) <= self.most:
            for which in computed:
                if self._moved(node, which, computed):
                    return

    def _moved(self, node: Node, which: int, computed: list[int]) -> bool:
        """Put a node in front of the views of an input, where that may be, and tell whether it was."""
        assert isinstance(node.spec, Eltwise)
        views = self._views(node.inputs[which])
        post_ops = post_ops_from(node.spec.post_ops, which)
        if not views or post_ops is None or not self._is_taken(node, views):
            return False
        if self.types[node.outputs[0]] != self.types[views[-1].outputs[0]]:
            return False
        turns = len(computed) == 1 or self._turns(node, computed, views)
        post_ops, operands = operands_from(post_ops, 1)
        names = {k: self._operand(node, k, views) for k in operands if k not in computed}
        if not turns or None in names.values():
            return False
        names |= {k: self._beside(node, k, views) for k in operands if k in computed}
        inputs = (views[0].inputs[0], *(names[k] for k in operands))
        self._put(changed(node, spec=Eltwise(post_ops), inputs=inputs), views)
        return True

    def _turns(self, node: Node, computed: list[int], views: list[Node]) -> bool:
        """Whether views are transposes, through which computed operands of the result's shape can be seen.

        These are made before the first view.
        """
        out, first = self.types[node.outputs[0]], self.places[views[0].outputs[0]]
        names = [node.inputs[k] or "" for k in computed]
        others = [n for n in names if n != views[-1].outputs[0]]
        made = all(self.places.get(n, -1) < first for n in others)
        same = len(others) == 1 and all(self.types[n] == out for n in names)
        return made and same and all(isinstance(v.spec, Transpose) for v in views)

    def _beside(self, node: Node, which: int, views: list[Node]) -> str:
        """Return a computed operand as it is seen in front of transposes, and add what makes it."""
        name = node.inputs[which]
        assert name is not None
        for place, view in enumerate(reversed(views)):
            assert isinstance(view.spec, Transpose)
            order = tuple(int(a) for a in np.argsort(view.spec.perm))
            made = f"{node.outputs[0]}:{which}:back{place}"
            self.types[made] = self.types[view.inputs[0] or ""]
            back = Node(made, Transpose(order), (name,), (made,), f"Transpose {name}")
            self.before.setdefault(views[0].name, []).append(back)
            self.producers[made], self.uses[made] = back, 1
            name = made
        return name

    def _views(self, name: str | None) -> list[Node]:
        """Return the views that a value comes through, the last one behind; none where others read within."""
        found: list[Node] = []
        while name is not None and self.uses[name] == 1:
            view = self.producers.get(name)
            if view is None or not isinstance(view.spec, (Reshape, Transpose)):
                return found
            found.insert(0, view)
            name = view.inputs[0]
        return []

    def _is_taken(self, node: Node, views: list[Node]) -> bool:
        """Whether what makes the value fuses the steps of a node."""
        producer = self.producers.get(views[0].inputs[0] or "")
        if producer is None or not isinstance(node.spec, Eltwise) or len(producer.outputs) != 1:
            return False
        if isinstance(producer.spec, Gemm) and self.consts.keys().isdisjoint(
            n for n in producer.inputs[:2] if n is not None
        ):
            return False
        return takes_steps(producer, node.spec)

    def _operand(self, node: Node, which: int, views: list[Node]) -> str | None:
        """Return the constant operand as it is broadcast in front of the views, None where it is not."""
        name = node.inputs[which]
        assert name is not None
        constant, rank = self.consts[name], self.types[views[-1].outputs[0]].rank
        long = [rank - constant.ndim + k for k, extent in enumerate(constant.shape) if extent != 1]
        if len(long) > 1:
            return None
        shape: tuple[int, ...] = ()
        if long:
            axis = self._axis_in_front(long[0], views)
            if axis is None:
                return None
            source = self.types[views[0].inputs[0] or ""]
            shape = (constant.size, *(1,) * (source.rank - 1 - axis))
        if shape == constant.shape:
            return name
        made = f"{node.outputs[0]}:{which}"
        self.consts[made] = constant.reshape(shape)
        self.types[made] = TensorType(shape, self.types[name].dtype)
        return made

    def _axis_in_front(self, axis: int, views: list[Node]) -> int | None:
        """Return the axis of the views' source that is `axis` behind them, None where it is not one."""
        found: int | None = axis
        for view in reversed(views):
            if found is None:
                return None
            if isinstance(view.spec, Transpose):
                found = view.spec.perm[found]
            else:
                source = self.types[view.inputs[0] or ""].shape
                found = _reshaped_from(source, self.types[view.outputs[0]].shape, found)
        return found

    def _put(self, function: Node, views: list[Node]) -> None:
        """Put a function in front of views, the last of which makes what the function made then."""
        result, first = function.outputs[0], views[0]
        name = f"{result}:seen"
        self.types[name] = self.types[first.inputs[0] or ""]
        self.uses[name] = 1
        function = changed(function, outputs=(name,))
        del self.nodes[function.name]
        self.before.setdefault(first.name, []).append(function)
        self.producers[name] = function
        self._replace(changed(first, inputs=(name,)))
        self._replace(changed(self.nodes[views[-1].name], outputs=(result,)))

    def _replace(self, view: Node) -> None:
        self.nodes[view.name] = self.producers[view.outputs[0]] = view


def _reshaped_from(source: tuple[int, ...], result: tuple[int, ...], axis: int) -> int | None:
    """Return the axis of `source` that is `axis` of its reshape, None where it is split or merged."""
    for olds, news in reshape_groups(source, result):
        if axis in news:
            long = [a for a in olds if not is_one(source[a])]
            others = [a for a in news if a != axis and not is_one(result[a])]
            return long[0] if len(long) == 1 and not others else None
    return None

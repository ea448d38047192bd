"""Matrix products with constant weights as convolutions of one pixel wide windows, between views.

A row of k numbers is a pixel of k channels: (m, k) is seen as the image (1, k, m), whose channels are
innermost already, so that views launch nothing.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from clnn.arith._base import FLOAT
from clnn.graph.ir import Graph, Node
from clnn.ops.conv.spec import Conv2d
from clnn.ops.gemm.spec import ADDEND, Gemm
from clnn.ops.movement.views import Reshape, Transpose
from clnn.ops.shared.epilogue import post_op_operands
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.ops.spec import OpSpec
from clnn.types import F32, Array, TensorType

RANKS = (2, 3, 4)


def products_as_convolutions(graph: Graph) -> Graph:
    """Return `graph` with float32 products of constant matrices (k, n) as convolutions."""
    return _Rewriting(graph).run()


class _Rewriting:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.types, self.consts = dict(graph.types), dict(graph.consts)
        self.nodes: list[Node] = []

    def run(self) -> Graph:
        for node in self.graph.nodes:
            if not self._convert(node):
                self.nodes.append(node)
        return self.graph.with_nodes(self.nodes, types=self.types, consts=self.consts)

    def _convert(self, node: Node) -> bool:
        """Add a product as a convolution; returns whether that is possible."""
        spec, out = node.spec, self.types[node.outputs[0]]
        if not isinstance(spec, Gemm) or out.dtype != F32 or not out.size:
            return False
        a, b = node.inputs[0], self.consts.get(node.inputs[1] or "")
        if a is None or a in self.consts or b is None or b.ndim != 2 or spec.trans_a:
            return False
        rank = self.types[a].rank
        bias = self._bias(spec, node, out.shape[-1])
        if rank not in RANKS or bias is None:
            return False
        weights = (b if spec.trans_b else b.T).astype(np.float64) * spec.alpha
        ones = (1,) * (max(rank, 3) - 2)
        inputs: list[str | None] = [
            self._seen(node, a, rank),
            self._const(node, "w", weights.reshape(*weights.shape, *ones)),
            self._const(node, "b", bias),
        ]
        post_ops = self._steps(spec, node, rank, inputs)
        window = Window(ones, ones, ones, (0,) * len(ones), (0,) * len(ones))
        made = self._add(node, "image", Conv2d(window, 1, post_ops, FLOAT), inputs, node.origin)
        self._unseen(node, made, rank, out.shape)
        return True

    def _bias(self, spec: Gemm, node: Node, columns: int) -> Array | None:
        """Return the addend as a bias of every column, None where it is something else."""
        given = node.inputs[ADDEND] if len(node.inputs) > ADDEND else None
        if given is None or spec.beta == 0:
            return np.zeros(columns)
        found = self.consts.get(given)
        if found is None or any(d != 1 for d in found.shape[:-1]):
            return None
        return np.broadcast_to(found.reshape(-1) * np.float64(spec.beta), (columns,))

    def _const(self, node: Node, what: str, values: Array) -> str:
        name = f"{node.outputs[0]}:{what}"
        self.consts[name] = np.ascontiguousarray(values, np.float32)
        self.types[name] = TensorType(values.shape)
        return name

    def _add(
        self, node: Node, what: str, spec: OpSpec, inputs: list[str | None], origin: str = ""
    ) -> str:
        name = f"{node.outputs[0]}:{what}"
        self.types[name] = spec.infer([None if n is None else self.types[n] for n in inputs])[0]
        title = node.name if isinstance(spec, Conv2d) else f"{node.name}:{what}"
        self.nodes.append(Node(title, spec, tuple(inputs), (name,), origin))
        return name

    def _seen(self, node: Node, name: str, rank: int) -> str:
        """Return a value or constant of up to `rank` axes as an image: the last axis is channels."""
        shape = self.types[name].shape
        full = (1,) * (max(rank, 3) - len(shape)) + shape
        perm = (0, len(full) - 1, *range(1, len(full) - 1))
        place = f"in{len(self.nodes)}"
        if name in self.consts:
            return self._const(node, place, self.consts[name].reshape(full).transpose(perm))
        if full != shape:
            name = self._add(node, f"{place}r", Reshape(full), [name])
        return self._add(node, place, Transpose(perm), [name])

    def _unseen(self, node: Node, name: str, rank: int, shape: tuple[int, ...]) -> None:
        """Add the views that make an image the product's result again."""
        axes = max(rank, 3)
        perm, result = (0, *range(2, axes), 1), node.outputs[0]
        views: list[OpSpec] = [Transpose(perm), *([Reshape(shape)] if rank == 2 else [])]
        for number, spec in enumerate(views):
            last = number == len(views) - 1
            inputs = (name,)
            name = result if last else self._add(node, "rows", spec, [name])
            if last:
                self.nodes.append(Node(f"{node.name}:out", spec, inputs, (result,), ""))

    def _steps(
        self, spec: Gemm, node: Node, rank: int, inputs: list[str | None]
    ) -> tuple[PostOp, ...]:
        """Return the steps with their operands as images, which join `inputs`."""
        places: dict[int, int] = {}
        for which in post_op_operands(spec.post_ops):
            name = node.inputs[which]
            assert name is not None
            places[which] = len(inputs)
            inputs.append(self._seen(node, name, rank))
        return tuple(
            s if s.operand is None else replace(s, operand=places[s.operand]) for s in spec.post_ops
        )

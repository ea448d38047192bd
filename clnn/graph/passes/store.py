"""Storage in 16 bits: float32 values and constants of a graph, with conversions where it begins and ends.

An op whose kernels read and write such storage (OpSpec.supports_narrow_storage) has all of its
float32 values stored so; any other, and one with a constant too large for the type, keeps float32.
Conversions stand between the two, once for each value. Inputs and outputs of the network stay
float32. A view has the storage of what it is a view of.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from clnn.graph.ir import Graph, Node
from clnn.graph.passes._stored import StoredGraph
from clnn.logs import log
from clnn.ops.spec import ViewSpec
from clnn.types import F32, DType, narrow, widen


def store_as(graph: Graph, stored: DType) -> Graph:
    """Return `graph` with its float32 values stored as `stored` where its ops can (F32: unchanged)."""
    return graph if stored == F32 else _Storing(graph, stored).run()


class _Storing(StoredGraph):
    def __init__(self, graph: Graph, stored: DType) -> None:
        super().__init__(graph)
        self.stored = stored

    def run(self) -> Graph:
        for node in self.graph.nodes:
            small = self.fits(node)
            inputs = tuple(n if n is None else self.given(n, small) for n in node.inputs)
            self.nodes.append(replace(node, inputs=inputs))
            self.narrow |= {n: self.stored for n in node.outputs if small and self.real(n)}
        return self.finished(lambda name: self.given(name, False))

    def real(self, name: str) -> bool:
        return self.graph.types[name].dtype == F32

    def fits(self, node: Node) -> bool:
        """Whether a node's float32 values are to be stored in 16 bits."""
        read = [n for n in node.inputs if n is not None and self.real(n)]
        if not node.spec.supports_narrow_storage or not any(map(self.real, (*read, *node.outputs))):
            return False
        if isinstance(node.spec, ViewSpec) and not any(n in self.narrow for n in read):
            return False
        wide = [n for n in read if n in self.graph.consts and self.too_large(n)]
        if wide:
            log.warning(
                "%s stays in float32: a constant of it does not fit %s", node.name, self.stored.name
            )
        return not wide

    def too_large(self, name: str) -> bool:
        """Whether a finite constant would become infinite."""
        given = self.graph.consts[name]
        largest = float(np.max(np.abs(given), initial=0.0, where=np.isfinite(given)))
        return bool(np.isinf(widen(narrow(np.array([largest]), self.stored), self.stored))[0])

    def given(self, name: str, small: bool) -> str:
        """Return the value that stands for `name` in the storage asked for; makes it once."""
        if not self.real(name) or (name in self.narrow) == small:
            return name
        if small:
            return self.converted(name, self.stored.name, self.stored)
        return self.converted(name, "f32", None)

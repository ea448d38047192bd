"""Storage in 16 bits: float32 values and constants of a graph, with conversions where it begins and ends.

An op whose kernels read and write such storage (OpSpec.narrows) has all of its float32 values stored so;
any other, and one with a constant too large for the type, keeps float32. Conversions stand between the
two, once for each value. Inputs and outputs of the network stay float32. A view has the storage of what it
is a view of.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from clnn.graph.ir import Graph, Node, check
from clnn.graph.passes.dead import remove_dead
from clnn.logs import log
from clnn.ops._base import ViewSpec
from clnn.ops.storage import Convert, PortConvert
from clnn.types import F32, DType, narrow, widen


def store_as(graph: Graph, stored: DType) -> Graph:
    """Return `graph` with its float32 values stored as `stored` where its ops can (F32: unchanged)."""
    return graph if stored == F32 else _Storing(graph, stored).run()


class _Storing:
    def __init__(self, graph: Graph, stored: DType) -> None:
        self.graph, self.stored = graph, stored
        self.types, self.consts = dict(graph.types), dict(graph.consts)
        self.narrow: dict[str, DType] = {}
        self.nodes: list[Node] = []

    def run(self) -> Graph:
        for node in self.graph.nodes:
            small = self.fits(node)
            inputs = tuple(n if n is None else self.given(n, small) for n in node.inputs)
            self.nodes.append(replace(node, inputs=inputs))
            self.narrow |= {n: self.stored for n in node.outputs if small and self.real(n)}
        outputs = {public: self.given(n, False) for public, n in self.graph.outputs.items()}
        made = replace(self.graph, nodes=tuple(self.nodes), types=self.types, consts=self.consts,
                       outputs=outputs, stored=self.narrow)  # fmt: skip
        made = remove_dead(made)
        return check(
            replace(made, stored={n: t for n, t in self.narrow.items() if n in made.types})
        )

    def real(self, name: str) -> bool:
        return self.graph.types[name].dtype == F32

    def fits(self, node: Node) -> bool:
        """Whether a node's float32 values are to be stored in 16 bits."""
        read = [n for n in node.inputs if n is not None and self.real(n)]
        if not node.spec.narrows or not any(map(self.real, (*read, *node.outputs))):
            return False
        if isinstance(node.spec, ViewSpec) and not any(n in self.narrow for n in read):
            return False
        wide = [n for n in read if n in self.graph.consts and self.too_large(n)]
        if wide:
            log.warning("%s stays in float32: a constant of it does not fit %s",
                        node.name, self.stored.name)  # fmt: skip
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
        kind = self.stored.name if small else "f32"
        made = f"{name}:{kind}"
        if made in self.types:
            return made
        self.types[made] = self.types[name]
        if small:
            self.narrow[made] = self.stored
        if name in self.graph.consts:
            self.consts[made] = self.graph.consts[name]
            return made
        port = name in self.graph.inputs or (not small and name in self.graph.outputs.values())
        spec = PortConvert() if port else Convert()
        self.nodes.append(Node(f"to_{kind}:{name}", spec, (name,), (made,), f"{name} as {kind}"))
        return made

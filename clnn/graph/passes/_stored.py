"""A graph in the making, some of whose float32 values lie in memory as other types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from clnn.graph.ir import Graph, Node, check
from clnn.graph.passes.dead import remove_dead
from clnn.ops.elementwise.storage import Convert, PortConvert
from clnn.types import DType


class StoredGraph:
    """What a pass makes of `graph`: nodes, types, constants, and value -> storage in `narrow`."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.types, self.consts = dict(graph.types), dict(graph.consts)
        self.narrow: dict[str, DType] = {}
        self.nodes: list[Node] = []
        self.inputs, self.outputs = frozenset(graph.inputs), frozenset(graph.outputs.values())

    def converted(self, name: str, kind: str, stored: DType | None) -> str:
        """Return the value that stands for `name` as `stored`, None: float32; makes it once.

        kind: the storage in names.
        """
        made = f"{name}:{kind}"
        if made in self.types:
            return made
        self.types[made] = self.types[name]
        if stored is not None:
            self.narrow[made] = stored
        if name in self.graph.consts:
            self.consts[made] = self.graph.consts[name]
            return made
        read = stored is None and name in self.outputs
        spec = PortConvert() if read or name in self.inputs else Convert()
        self.nodes.append(Node(f"to_{kind}:{name}", spec, (name,), (made,), f"{name} as {kind}"))
        return made

    def finished(self, output: Callable[[str], str]) -> Graph:
        """Return the graph, checked; output: the value that stands for one that leaves it."""
        outputs = {public: output(name) for public, name in self.graph.outputs.items()}
        made = replace(
            self.graph,
            nodes=tuple(self.nodes),
            types=self.types,
            consts=self.consts,
            outputs=outputs,
            stored=self.narrow,
        )
        made = remove_dead(made)
        stored = {n: t for n, t in self.narrow.items() if n in made.types}
        return check(replace(made, stored=stored))

"""Runs of layers with large maps compute a batch some images at a time, within the cores' caches.

What a layer makes of a large batch has left the caches before the next layer reads it. A run of such
layers is repeated for each part of the batch instead: the graph gets slices of what enters, the nodes
once per part, and concatenations of what leaves. Those are views, so that nothing is copied, and
memory planning gives the values between them the same memory in every part.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field, replace

from clnn.graph.ir import Graph, Node
from clnn.ops.movement.views import Concat, slice_of
from clnn.ops.spec import ViewSpec
from clnn.target import Target

LARGE_BYTES = 4 * 2**20  # per compute unit, that a layer moves and that leave the caches
PART_BYTES = 2 * 2**20  # per compute unit, that a layer of a part moves, or one image
CONST_BYTES = 128 * 2**10  # of constants, that may be read again for every part
MOST_PARTS = 16
MIN_LAYERS = 2  # that are worth a run


@dataclass(frozen=True)
class LayerRun:
    """Nodes `begin` to `end`, the last excluded, which compute `images` of `batch` at a time."""

    begin: int
    end: int
    batch: int
    images: int


def split_batch(graph: Graph, target: Target) -> Graph:
    """Return `graph` with its runs of large layers repeated for each part of a batch, on CPUs."""
    runs = runs_of(graph, target.compute_units) if target.is_cpu else []
    for run in reversed(runs):
        graph = _repeated(graph, run)
    return graph


def runs_of(graph: Graph, units: int) -> list[LayerRun]:
    """Return the runs of layers of which a batch does not stay in the caches of `units` cores."""
    runs: list[LayerRun] = []
    current = _Open(graph, units)
    for place in range(len(graph.nodes)):
        if not current.takes(place):
            runs += current.closed()
            current = _Open(graph, units)
            current.takes(place)
    return [*runs, *current.closed()]


@dataclass
class _Open:
    """A run that may go on: its batch, what it made, and the places of layers that are large.

    least: images that a part has at least. most: bytes that one image of its largest layer moves.
    """

    graph: Graph
    units: int
    batch: int = 0
    least: int = 0
    most: int = 0
    made: set[str] = field(default_factory=set)
    large: list[int] = field(default_factory=list)

    def takes(self, place: int) -> bool:
        """Add a node, if it can be computed for some images alone and its weights are few."""
        node = self.graph.nodes[place]
        shape = self.graph.types[node.outputs[0]].shape
        batch = self.batch or (shape[0] if shape else 0)
        least = _parts(batch)[0]
        if least == batch or not self._can_split(node, batch):
            return False
        moved, held = _traffic(self.graph, node)
        moved //= batch
        if moved * least > LARGE_BYTES * self.units or held > max(moved * least // 2, CONST_BYTES):
            return False
        self.batch, self.least = batch, least
        self.made.update(node.outputs)
        if moved * batch > LARGE_BYTES * self.units:
            self.large.append(place)
            self.most = max(self.most, moved)
        return True

    def _can_split(self, node: Node, batch: int) -> bool:
        """Whether the node can be computed for some images alone."""
        graph = self.graph
        if any(t.shape[:1] != (batch,) for t in graph.output_types(node)):
            return False
        split = node.spec.split_batch(graph.input_types(node), 1)
        if split is None:
            return False
        places = split[1]
        inputs = [(k, name) for k, name in enumerate(node.inputs) if name is not None]
        whole = [name for k, name in inputs if k not in places]
        parts = [name for k, name in inputs if k in places]
        fits = all(n not in graph.consts and graph.types[n].shape[0] == batch for n in parts)
        return fits and not self.made.intersection(whole)

    def closed(self) -> list[LayerRun]:
        """Return the run from its first large layer to its last, if it is worth it."""
        while len(self.large) >= MIN_LAYERS and self._tied(self.large[0], self.large[-1] + 1):
            self.large.pop()
        if len(self.large) < MIN_LAYERS:
            return []
        room = PART_BYTES * self.units // self.most
        images = max(n for n in _parts(self.batch) if n <= max(room, self.least))
        if images == self.batch:
            return []
        return [LayerRun(self.large[0], self.large[-1] + 1, self.batch, images)]

    def _tied(self, begin: int, end: int) -> bool:
        """Whether a value that crosses the run's ends would lie inside another, or another in it.

        A slice of it could not, and would be copied.
        """
        graph, run = self.graph, LayerRun(begin, end, self.batch, self.least)
        entering, leaving = _crossing(graph, run)
        outside = (*graph.nodes[:begin], *graph.nodes[end:])
        views = [n for n in outside if isinstance(n.spec, ViewSpec)]
        near = {name for n in views for name in (*n.inputs, *n.outputs)}
        joined = [n for n in graph.nodes[begin:end] if isinstance(n.spec, Concat)]
        members = {name for n in joined for name in n.inputs}
        return not near.isdisjoint([*entering, *leaving]) or not members.isdisjoint(entering)


def _parts(batch: int) -> list[int]:
    """Return how many images a part may have, by rising number."""
    return [batch // n for n in range(min(batch, MOST_PARTS), 0, -1) if batch % n == 0] or [batch]


def _traffic(graph: Graph, node: Node) -> tuple[int, int]:
    """Return the bytes of a node's values, and of its constants; those of views are not moved."""
    if isinstance(node.spec, ViewSpec):
        return 0, 0
    names = [n for n in dict.fromkeys((*node.inputs, *node.outputs)) if n is not None]
    sizes = {n: graph.types[n].size * graph.memory(n).itemsize for n in names}
    held = sum(size for n, size in sizes.items() if n in graph.consts)
    return sum(sizes.values()) - held, held


def _repeated(graph: Graph, run: LayerRun) -> Graph:
    """Return `graph` with the nodes of a run once for each part of the batch."""
    nodes = graph.nodes[run.begin : run.end]
    entering, leaving = _crossing(graph, run)
    types, stored = dict(graph.types), dict(graph.stored)
    taken = {node.name for node in graph.nodes}
    parts: dict[str, list[str]] = {name: [] for name in leaving}
    repeated: list[Node] = []

    def part(name: str, start: int) -> str:
        new = _free(f"{name}@{start}", types)
        types[new] = replace(types[name], shape=(run.images, *types[name].shape[1:]))
        if name in stored:
            stored[new] = stored[name]
        return new

    def add(name: str, node: Node) -> None:
        repeated.append(replace(node, name=_free(name, taken)))
        taken.add(repeated[-1].name)

    for start in range(0, run.batch, run.images):
        names = {name: part(name, start) for name in entering}
        for name, given in names.items():
            one = slice_of(types[name].shape, 0, start, run.images)
            add(f"{name}@{start}:part", Node("", one, (name,), (given,)))
        for node in nodes:
            names |= {name: part(name, start) for name in node.outputs}
            add(f"{node.name}@{start}", _for_part(graph, node, names, run.images))
        for name, list_of in parts.items():
            list_of.append(names[name])
    for name, list_of in parts.items():
        add(f"{name}:parts", Node("", Concat(0), tuple(list_of), (name,)))
    every = (*graph.nodes[: run.begin], *repeated, *graph.nodes[run.end :])
    kept = {n for node in every for n in (*node.inputs, *node.outputs)}
    kept |= {*graph.inputs, *graph.outputs.values(), *graph.consts}
    types = {name: kind for name, kind in types.items() if name in kept}
    return replace(graph, nodes=every, types=types, stored=stored)


def _free(name: str, taken: Container[str]) -> str:
    """Return `name`, or one like it that is not taken."""
    while name in taken:
        name += "'"
    return name


def _for_part(graph: Graph, node: Node, names: dict[str, str], images: int) -> Node:
    split = node.spec.split_batch(graph.input_types(node), images)
    assert split is not None
    spec, places = split
    inputs = tuple(
        names[name] if name is not None and k in places else name
        for k, name in enumerate(node.inputs)
    )
    outputs = tuple(names[name] for name in node.outputs)
    return replace(node, spec=spec, inputs=inputs, outputs=outputs, whole=node.layer)


def _crossing(graph: Graph, run: LayerRun) -> tuple[list[str], list[str]]:
    """Return the values that a run takes image by image, and those of its own that others read."""
    nodes = graph.nodes[run.begin : run.end]
    own = [name for node in nodes for name in node.outputs]
    outside = (*graph.nodes[: run.begin], *graph.nodes[run.end :])
    read = {name for node in outside for name in node.inputs} | set(graph.outputs.values())
    entering: dict[str, None] = {}
    for node in nodes:
        split = node.spec.split_batch(graph.input_types(node), run.images)
        assert split is not None
        names = [node.inputs[k] for k in split[1] if k < len(node.inputs)]
        entering |= {name: None for name in names if name is not None and name not in own}
    return list(entering), [name for name in own if name in read]

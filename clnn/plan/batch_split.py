"""Runs of layers with large maps compute a batch some images at a time, within the cores' caches.

What a layer makes of a large batch has left the caches before the next layer reads it. A run of such
layers is repeated for each part of the batch instead: the graph gets slices of what enters, the nodes
once per part, and concatenations of what leaves. Those are views, so that nothing is copied, and
memory planning gives the values between them the same memory in every part. An input of the network
which layers want in another order or with a border is copied anyway: that is done part by part, too.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import field, replace
from itertools import accumulate

from clnn.graph.ir import Graph, Node
from clnn.ops.spec import OpSpec, ViewSpec
from clnn.records import dataclass
from clnn.target import Target

LARGE_BYTES = 4 * 2**20  # per compute unit, that a layer moves and that leave the caches
PART_BYTES = 2 * 2**20  # per compute unit, that a layer of a part moves, or one image
CONST_BYTES = 128 * 2**10  # of constants, that may be read again for every part
MOST_PARTS = 16
MOST_NODES = 2**15  # that parts may add to a network
MIN_LAYERS = 2  # that are worth a run
MORE_IMAGES = 2  # times those of a part that are worth a run of their own


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
    added = sum((run.end - run.begin) * (run.batch // run.images) for run in runs)
    return _repeated(graph, runs) if runs and added <= MOST_NODES else graph


def runs_of(graph: Graph, units: int) -> list[LayerRun]:
    """Return the runs of layers of which a batch does not stay in the caches of `units` cores."""
    runs: list[LayerRun] = []
    uses = _Uses(graph)
    current = _Open(graph, uses, units)
    for place in range(len(graph.nodes)):
        if not current.takes(place):
            runs += current.closed()
            current = _Open(graph, uses, units)
            current.takes(place)
    return [*runs, *current.closed()]


class _Uses:
    """Where values are used: the last node that reads each, and the first and last view of each.

    readers: by place, that of the end for values that leave the network.
    """

    def __init__(self, graph: Graph) -> None:
        self.readers: dict[str, int] = {}
        self.views: dict[str, tuple[int, int]] = {}
        for place, node in enumerate(graph.nodes):
            self.readers.update((name, place) for name in node.inputs if name is not None)
            if isinstance(node.spec, ViewSpec):
                for name in (*node.inputs, *node.outputs):
                    if name is not None:
                        self.views[name] = (self.views.get(name, (place,))[0], place)
        self.readers.update((name, len(graph.nodes)) for name in graph.outputs.values())


@dataclass
class _Open:
    """A run that may go on: its batch, what it made, and the places of layers that are large.

    least: images that a part has at least. moved: bytes that one image of each large layer moves.
    """

    graph: Graph
    uses: _Uses
    units: int
    batch: int = 0
    least: int = 0
    made: set[str] = field(default_factory=set)
    large: list[int] = field(default_factory=list)
    moved: dict[int, int] = field(default_factory=dict)

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
            self.moved[place] = moved
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
        """Return the run from its first large layer to its last, if it is worth it.

        As several runs where layers behind a place move so little that parts have twice the images there.
        """
        tied = self._tied_ends()
        while len(self.large) >= MIN_LAYERS and self.large[-1] + 1 in tied:
            self.large.pop()
        count, most = len(self.large), self._most()
        runs: list[LayerRun] = []
        first, begin = 0, min(self.large, default=0)
        while count - first >= MIN_LAYERS:
            images = self._images(most[first])
            cuts = range(first + MIN_LAYERS, count - MIN_LAYERS + 1)
            free = (k for k in cuts if self._images(most[k]) >= MORE_IMAGES * images)
            first = next((k for k in free if self.large[k - 1] + 1 not in tied), count)
            end = self.large[first - 1] + 1
            runs.append(LayerRun(begin, end, self.batch, images))
            begin = end
        return [run for run in runs if run.images < self.batch]

    def _most(self) -> list[int]:
        """Return the most bytes that one image of a large layer or of any behind it moves."""
        moved = [self.moved[place] for place in self.large]
        return [*accumulate(reversed(moved), max)][::-1]

    def _images(self, moved: int) -> int:
        """Return how many images stay in the caches, if each moves so many bytes."""
        room = PART_BYTES * self.units // moved
        return max(n for n in _parts(self.batch) if n <= max(room, self.least))

    def _tied_ends(self) -> set[int]:
        """Return the ends at which a value that crosses an end lies inside another, or another in it.

        A slice of it could not, and would be copied.
        """
        from clnn.ops.movement.views import Concat  # here, for stored plans need no ops

        graph, uses = self.graph, self.uses
        begin, end = (self.large[0], self.large[-1] + 1) if self.large else (0, 0)
        change = [0] * (end - begin + 2)
        made: set[str] = set()

        def tie(place: int, last: int) -> None:
            """Note all ends behind `place`, up to `last`."""
            if last > place:
                change[place + 1 - begin] += 1
                change[min(last, end) + 1 - begin] -= 1

        for place in range(begin, end):
            node = graph.nodes[place]
            for name in _entering(graph, node, self.least, made):
                first, last = uses.views.get(name, (end, -1))
                tie(place, end if first < begin or isinstance(node.spec, Concat) else last)
            for name in node.outputs:
                tie(place, min(uses.views.get(name, (end, -1))[1], uses.readers.get(name, -1)))
            made.update(node.outputs)
        return {begin + at for at, ties in enumerate(accumulate(change)) if ties}


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


def _repeated(graph: Graph, runs: Sequence[LayerRun]) -> Graph:
    """Return `graph` with the nodes of each run once for each part of the batch."""
    repeating = _Repeating(graph)
    replaced = {run.begin: (run.end, repeating.nodes_of(run)) for run in reversed(runs)}
    nodes: list[Node] = []
    place = 0
    while place < len(graph.nodes):
        place, more = replaced.get(place, (place + 1, graph.nodes[place : place + 1]))
        nodes += more
    kept = {n for node in nodes for n in (*node.inputs, *node.outputs)}
    kept |= {*graph.inputs, *graph.outputs.values(), *graph.consts}
    types = {name: kind for name, kind in repeating.types.items() if name in kept}
    return replace(graph, nodes=tuple(nodes), types=types, stored=repeating.stored)


class _Repeating:
    """Types, storages and names of nodes, with those of the parts made so far."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.uses = graph, _Uses(graph)
        self.types, self.stored = dict(graph.types), dict(graph.stored)
        self.taken = {node.name for node in graph.nodes}

    def nodes_of(self, run: LayerRun) -> Sequence[Node]:
        """Return the nodes of a run for each part, between slices and concatenations."""
        from clnn.ops.movement.part import Part
        from clnn.ops.movement.views import Concat, slice_of

        graph = self.graph
        nodes, made = graph.nodes[run.begin : run.end], list[Node]()
        copied = _copied(graph, run)
        entering, leaving = self._crossing(run)
        parts: dict[str, list[str]] = {name: [] for name in leaving}

        def add(name: str, node: Node) -> None:
            made.append(replace(node, name=_free(name, self.taken)))
            self.taken.add(made[-1].name)

        for start in range(0, run.batch, run.images):
            names = {name: self._part(name, start, run.images) for name in entering}
            for name, part in names.items():
                one: OpSpec = slice_of(self.types[name].shape, 0, start, run.images)
                if name in copied:
                    one = Part(start, run.images)
                whole = f"{name}:part"
                add(f"{name}@{start}:part", Node("", one, (name,), (part,), whole=whole))
            for node in nodes:
                names |= {name: self._part(name, start, run.images) for name in node.outputs}
                add(f"{node.name}@{start}", _for_part(graph, node, names, run.images))
            for name, list_of in parts.items():
                list_of.append(names[name])
        for name, list_of in parts.items():
            add(f"{name}:parts", Node("", Concat(0), tuple(list_of), (name,)))
        return made

    def _part(self, name: str, start: int, images: int) -> str:
        """Return the value that is some images of another."""
        part = _free(f"{name}@{start}", self.types)
        self.types[part] = replace(self.types[name], shape=(images, *self.types[name].shape[1:]))
        if name in self.stored:
            self.stored[part] = self.stored[name]
        return part

    def _crossing(self, run: LayerRun) -> tuple[list[str], list[str]]:
        """Return what a run takes image by image, and the values of its own that others read."""
        nodes = self.graph.nodes[run.begin : run.end]
        made: set[str] = set()
        entering: dict[str, None] = {}
        for node in nodes:
            entering |= dict.fromkeys(_entering(self.graph, node, run.images, made))
            made.update(node.outputs)
        outputs = (name for node in nodes for name in node.outputs)
        return list(entering), [n for n in outputs if self.uses.readers.get(n, -1) >= run.end]


def _copied(graph: Graph, run: LayerRun) -> set[str]:
    """Return the inputs of the network that only a run reads, in another order or with a border."""
    found: set[str] = set()
    kept = {*graph.outputs.values(), *graph.stored}
    for place, node in enumerate(graph.nodes):
        if run.begin <= place < run.end:
            found |= _wanted_otherwise(graph, node)
        else:
            kept.update(name for name in node.inputs if name is not None)
    return found.intersection(graph.inputs) - kept


def _wanted_otherwise(graph: Graph, node: Node) -> set[str]:
    """Return what a node reads with channels innermost, or with a border."""
    types, spec = graph.input_types(node), node.spec
    found = [
        node.inputs[k]
        for k, border in spec.padding_needs(types).items()
        if any((*border.before, *border.after))
    ]
    if spec.layout_rule == "image" and not spec.accepts_nchw(types):
        found += node.inputs[:1]
    return {name for name in found if name is not None}


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


def _entering(graph: Graph, node: Node, images: int, made: Container[str]) -> list[str]:
    """Return the values that a node takes image by image, but those in `made`."""
    found = node.spec.split_batch(graph.input_types(node), images)
    assert found is not None
    names = [node.inputs[k] for k in found[1] if k < len(node.inputs)]
    return [name for name in names if name is not None and name not in made]

"""Where each value lies: memory order, border and storage, from what its consumers ask for.

Every tensor gets the largest border that any of its consumers wants, so that no op copies to pad.
Where a border and a view exclude each other, the border wins and the view becomes a copy. Pixels
that would compete for few sets of a cache are kept further apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import reduce
from typing import TYPE_CHECKING

from clnn.graph.ir import Graph
from clnn.layout import TensorLayout, channels_last
from clnn.ops.problem import Border
from clnn.plan.plan import Placed
from clnn.recorded import larger
from clnn.records import dataclass
from clnn.traced import is_one, is_open
from clnn.types import DType, TensorType

if TYPE_CHECKING:
    from clnn.ops.spec import OpSpec
    from clnn.plan.alias import Link

Demands = dict[str, list[Border]]
Types = Sequence["TensorType | None"]

CACHE_LINE_BYTES = 64
PIECE_BYTES = 16  # that tensor cores are fed with at once
MIN_CHANNELS = 3  # of whole pieces: with fewer the rest of a piece would cost too much
CROWDED = 2  # sets of a cache that all pixels share where they are kept further apart
IMAGE_AXES = 3  # at least: images, channels and places
MOST_VIEWS = 64  # between a storage and a view whose border it has


@dataclass(frozen=True)
class Hints:
    """What a caller wants beyond the consumers' needs: borders and memory orders of values.

    layouts: the layouts of values in memory of their own, as a caller's buffers have them, with zeros
    as padding; a value that is a view of another has that one's.
    """

    borders: Mapping[str, Border] = field(default_factory=dict)
    orders: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    layouts: Mapping[str, TensorLayout] = field(default_factory=dict)


def place(
    graph: Graph,
    hints: Hints | None = None,
    cache_way: int = 0,
    in_pieces: Callable[[DType], bool] = lambda kind: False,
) -> dict[str, Placed]:
    """Return value name -> place for every value of `graph`, constants included.

    cache_way: bytes after which addresses share a set of the nearest cache (0: it has no sets).
    in_pieces: whether pixels of elements of a type are to begin at multiples of 16 bytes.
    """
    from clnn.plan.alias import children_of, find_links  # stored plans have places, and need no ops
    from clnn.plan.copies import Copies
    from clnn.plan.followers import followed, order_of

    hints = hints or Hints()
    demands = border_demands(graph)
    for name, border in hints.borders.items():
        if any(border.before) or any(border.after):
            demands.setdefault(name, []).append(border)
    orders = {**memory_orders(graph), **hints.orders}
    free = not hints.orders and not hints.layouts
    links = find_links(graph, orders if free else None, _bordered(graph, demands))
    views = _Views(
        children_of(links),
        demands,
        _demanding(demands, links),
        _named(graph, lambda spec, types: spec.needs_border(types)),
        _named(graph, lambda spec, types: spec.needs_neighbours(types)),
    )
    placed: dict[str, Placed] = {}
    sources = followed(graph, links, orders) if free else {}
    copies = Copies(graph, links)
    roots = [name for name in graph.types if name not in {**links, **graph.consts, **sources}]
    late = [*reversed(sources)]
    while roots or late:
        root = roots.pop() if roots else late.pop()
        if root in sources:
            orders[root] = order_of(placed[sources[root]].layout)
        elif free:
            orders[root] = copies.order(root, orders[root], placed)
        if root in hints.layouts:
            layout = hints.layouts[root]
            here = Placed(root, layout, 0.0 if layout.has_padding else None)
            roots += _place_views(here, views, placed)
            continue
        memory = graph.memory(root)
        apart = _apart(graph.types[root], memory.itemsize, orders[root], cache_way)
        apart = apart or (
            _pieces(graph.types[root], memory, orders[root]) if in_pieces(memory) else {}
        )
        roots += _place_tree(root, graph, views, (orders[root], apart), placed)
    for name in graph.consts:
        placed[name] = Placed(name, TensorLayout.make(graph.types[name].shape, orders[name]))
    return placed


@dataclass(frozen=True)
class _Views:
    """Links by parent, the borders that are wanted, and the values that such views lie in.

    worth_a_copy: values that do not become views where these lack a border that is wanted.
    neighbouring: values that do not where the channels of a pixel would lie apart.
    """

    children: dict[str, list[Link]]
    demands: Demands
    demanding: set[str]
    worth_a_copy: set[str]
    neighbouring: set[str]

    def refuses(self, link: Link, layout: TensorLayout) -> bool:
        """Whether a value with this layout in its parent's storage had better be a copy."""
        if link.child in self.neighbouring and not _side_by_side(layout):
            return True
        if link.backward or link.child not in self.worth_a_copy:
            return False
        sides = (*layout.before, *layout.after)
        wanted = [(*b.before, *b.after) for b in self.demands.get(link.child, ())]
        return any(w > s for want in wanted for w, s in zip(want, sides, strict=True))


def _demanding(demands: Demands, links: Mapping[str, Link]) -> set[str]:
    """Return the values that want a border, and those that they are views of."""
    found: set[str] = set()
    for value in demands:
        name: str | None = value
        while name is not None and name not in found:
            found.add(name)
            name = links[name].parent if name in links else None
    return found


def _bordered(graph: Graph, demands: Demands) -> Callable[[str], bool]:
    """Return whether somebody wants a border of a value, or of a view of it."""
    readers = graph.consumers()

    def wanted(name: str) -> bool:
        views = [node for node in readers[name] if node.spec.is_view]
        return name in demands or any(wanted(out) for node in views for out in node.outputs)

    return wanted


def _named(graph: Graph, wanted: Callable[[OpSpec, Types], Sequence[int]]) -> set[str]:
    """Return the values that nodes want something of: those of the inputs that `wanted` says."""
    found: set[str] = set()
    for node in graph.nodes:
        names = (node.inputs[k] for k in wanted(node.spec, graph.input_types(node)))
        found.update(name for name in names if name is not None)
    return found


def _side_by_side(layout: TensorLayout) -> bool:
    """Whether the channels of a pixel are neighbours, at all shapes."""
    return is_one(layout.pitches[1]) or is_one(layout.shape[1])


def border_demands(graph: Graph) -> Demands:
    """Return value name -> the borders that its consumers want."""
    found: Demands = {}
    for node in graph.nodes:
        for index, border in node.spec.padding_needs(graph.input_types(node)).items():
            name = node.inputs[index]
            if name is not None and (any(border.before) or any(border.after)):
                found.setdefault(name, []).append(border)
    return found


def memory_orders(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Return value name -> axes from outermost to innermost.

    Inputs and outputs of image ops have their channels innermost, and so have images that are put
    together from tokens; ops of rule "same" carry that on to values of the same rank; everything else
    is row-major.
    """
    images = _put_together(graph)
    for node in graph.nodes:
        if node.spec.layout_rule == "image":
            images |= {n for n in (*node.inputs[:1], *node.outputs) if n is not None}
    _follow(images, graph)
    images -= _planes(graph)
    for node in graph.nodes:  # constants lie as the tensors that they are combined with
        if any(n in images for n in node.outputs):
            images |= {n for n in node.inputs if n is not None and n in graph.consts}
    orders = {
        name: channels_last(t.rank) if name in images else tuple(range(t.rank))
        for name, t in graph.types.items()
    }
    return orders | _depths_beside(graph)


def _depths_beside(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Return the orders of volumes of which windows of depth are read: the depths of a pixel side by side."""
    producers, found = graph.producers(), dict[str, tuple[int, ...]]()
    for node in graph.nodes:
        if node.spec.kind != "depth_windows":
            continue
        volume = node.inputs[0] or ""
        found[volume] = (0, *range(3, graph.types[volume].rank), 2, 1)
        maker = producers.get(volume)
        if maker is not None and maker.spec.kind == "split_depth":
            images = maker.inputs[0] or ""
            found[images] = (*range(2, graph.types[images].rank), 0, 1)
    return found


def _put_together(graph: Graph) -> set[str]:
    """Return the reshaped transposes whose axis 1 is the last one, innermost, of what is transposed."""
    # Stored plans have places, and need no ops.
    from clnn.ops.movement.views import Reshape, Transpose

    turned: set[str] = set()
    found: set[str] = set()
    for node in graph.nodes:
        if isinstance(node.spec, Transpose) and node.spec.perm[1:2] == (len(node.spec.perm) - 1,):
            turned.update(node.outputs)
        elif isinstance(node.spec, Reshape) and node.inputs[0] in turned:
            before, after = (graph.types[n].shape for n in (node.inputs[0], node.outputs[0]))
            if len(after) >= IMAGE_AXES and before[:2] == after[:2]:
                found.update(node.outputs)
    return found


def _follow(images: set[str], graph: Graph) -> None:
    """Add the values that ops of rule "same" tie to one of the same rank, whichever it is."""
    tied: dict[str, list[list[str]]] = {}
    for node in graph.nodes:
        if node.spec.layout_rule == "same":
            by_rank: dict[int, list[str]] = {}
            for name in (*node.inputs, *node.outputs):
                if name is not None and name not in graph.consts:
                    by_rank.setdefault(graph.types[name].rank, []).append(name)
            for names in by_rank.values():
                for name in names:
                    tied.setdefault(name, []).append(names)
    todo = list(images)
    while todo:
        for names in tied.pop(todo.pop(), ()):
            todo += [name for name in names if name not in images]
            images.update(names)
            names.clear()


def _apart(
    given: TensorType, itemsize: int, order: tuple[int, ...], cache_way: int
) -> dict[int, int]:
    """Return what the channels of an image are rounded up to, so that its pixels spread over a cache.

    Where the channels of a pixel fill a whole way, or half of one, equal channels of neighbouring
    pixels lie in one or two sets, and no cache holds a tile of them.
    """
    if not cache_way or not order or order != channels_last(len(order)):
        return {}
    channels = order[-1]
    if given.size <= given.shape[0] * given.shape[channels]:
        return {}
    nbytes, line = given.shape[channels] * itemsize, CACHE_LINE_BYTES // itemsize
    return {channels: given.shape[channels] + line} if nbytes % (cache_way // CROWDED) == 0 else {}


def _pieces(given: TensorType, memory: DType, order: tuple[int, ...]) -> dict[int, int]:
    """Return what the channels of an image are rounded up to, so that its pixels are whole pieces."""
    if order == tuple(range(len(order))):
        return {}
    channels = order[-1]
    if given.shape[channels] < MIN_CHANNELS:
        return {}
    return {channels: PIECE_BYTES // memory.itemsize}


def _planes(graph: Graph) -> set[str]:
    """Return the inputs of the network, and parts of them, that only nodes use which take planes."""
    found = set(graph.inputs) - set(graph.outputs.values())
    parts = [node for node in graph.nodes if node.whole and found.issuperset(node.inputs)]
    views = [node for node in parts if node.spec.kind == "slice"]
    found.update(node.outputs[0] for node in parts if node.spec.kind in ("part", "slice"))
    skipped = {node.name for node in views}
    for node in graph.nodes:
        if node.name not in skipped:
            takes = node.spec.accepts_nchw(graph.input_types(node))
            found -= {n for n in (node.inputs[1:] if takes else node.inputs) if n is not None}
    for node in views:  # an input and its views lie in one order
        if not found.issuperset((*node.inputs, *node.outputs)):
            found.difference_update(n for n in node.inputs if n is not None)
    for node in views:
        if not found.issuperset(node.inputs):
            found.discard(node.outputs[0])
    return found


def _place_tree(
    root: str,
    graph: Graph,
    views: _Views,
    memory: tuple[tuple[int, ...], dict[int, int]],
    placed: dict[str, Placed],
) -> list[str]:
    """Place `root` and its views; return the children that could not be views (new roots).

    memory: the root's axes from outermost to innermost, and what their extents are rounded up to.
    """
    shape, (order, apart) = graph.types[root].shape, memory
    border = _root_border(root, shape, order, views)
    layout = TensorLayout.make(shape, order, border.before, border.after, apart)
    here = Placed(root, layout, border.fill if layout.has_padding else None)
    return _place_views(here, views, placed)


def _place_views(here: Placed, views: _Views, placed: dict[str, Placed]) -> list[str]:
    """Place a root and its views; return the children that could not be views (new roots)."""
    root = here.storage
    placed[root] = here
    detached: list[str] = []
    todo = [root]
    while todo:
        parent = todo.pop()
        for link in views.children.get(parent, ()):
            lies, fill = placed[parent].layout, placed[parent].fill
            derived = link.view.forward(lies)
            border_fits = link.backward or link.view.takes(lies, fill)
            if derived is None or not border_fits or views.refuses(link, derived):
                detached.append(link.child)
            else:
                placed[link.child] = Placed(root, derived, placed[root].fill)
                todo.append(link.child)
    return detached


# The layouts that a view has of a storage with a border along one axis, by that axis.
Probes = dict[int, TensorLayout]


def _root_border(root: str, shape: Sequence[int], order: tuple[int, ...], views: _Views) -> Border:
    """Return the border of a storage: the largest of all demands that can be met together."""
    rank, mapped = len(shape), list[Border]()
    if root not in views.demanding:
        return _merge(mapped, rank)
    if not views.children.get(root):  # its border is its own
        return _merge(views.demands.get(root, []), rank)
    todo: list[tuple[str, Probes, int]] = []

    def visit(name: str, probes: Probes, depth: int) -> None:
        if probes and name in views.demanding and depth <= MOST_VIEWS:
            maps = _axis_maps(probes)
            found = [_to_root(b, maps, rank) for b in views.demands.get(name, ())]
            mapped.extend(b for b in found if b is not None)
            todo.append((name, probes, depth))

    visit(root, _probes(shape, order), 0)
    while todo:
        name, probes, depth = todo.pop()
        for link in views.children.get(name, ()):
            seen = {axis: link.view.forward(layout) for axis, layout in probes.items()}
            left = {axis: layout for axis, layout in seen.items() if layout is not None}
            visit(link.child, left, depth + 1)
    return _merge(mapped, rank)


def _probes(shape: Sequence[int], order: tuple[int, ...]) -> Probes:
    """Return the layouts of a storage with a border of 1 along each axis alone."""
    axes = range(len(shape))
    ones = [tuple(int(a == axis) for a in axes) for axis in axes]
    return {axis: TensorLayout.make(shape, order, ones[axis], ones[axis]) for axis in axes}


AxisMap = tuple[int, bool, bool]


def _axis_maps(probes: Probes) -> dict[int, AxisMap]:
    """Return member axis -> (root axis, padding before survives, padding after survives)."""
    found: dict[int, AxisMap] = {}
    for axis, layout in probes.items():
        for a, (low, high) in enumerate(zip(layout.before, layout.after, strict=True)):
            if low or high:
                found[a] = (axis, bool(low), bool(high))
    return found


def _to_root(border: Border, maps: dict[int, AxisMap], rank: int) -> Border | None:
    """Return a member's border in axes of the root, or None where a view cannot carry it."""
    before, after = [0] * rank, [0] * rank
    for axis, (low, high) in enumerate(zip(border.before, border.after, strict=True)):
        root_axis, keeps_low, keeps_high = maps.get(axis, (-1, False, False))
        if (low and not keeps_low) or (high and not keeps_high):
            return None
        if low or high or (keeps_high and is_open(high)):
            before[root_axis], after[root_axis] = low, high
    return Border(tuple(before), tuple(after), border.fill)


def _merge(borders: list[Border], rank: int) -> Border:
    """Return the axis-wise largest border of those that share one fill value (0 preferred)."""
    fills = [b.fill for b in borders if b.fill is not None]
    fill = 0.0 if 0.0 in fills or not fills else fills[0]
    chosen = [b for b in borders if b.fill in (None, fill)]
    before = tuple(reduce(larger, (b.before[a] for b in chosen), 0) for a in range(rank))
    after = tuple(reduce(larger, (b.after[a] for b in chosen), 0) for a in range(rank))
    return Border(before, after, fill)

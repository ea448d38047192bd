"""Chains of reshapes and transposes written as one split of axes, one transposition and one join.

Exporters cut images into windows or patches, and put them together, by chains that join axes too early,
as channels with rows: each such reshape would be a copy. What a chain does to an index is told by
factors of the axes alone, so one copy at most does all of it. Which factors there are depends on
extents, so graphs that other shapes share are left as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from clnn.graph.ir import Graph, Node
from clnn.ops.movement.views import Reshape, Transpose
from clnn.records import changed, dataclass
from clnn.traced import is_open
from clnn.types import TensorType

VIEWS = (Reshape, Transpose)
Factor = tuple[int, int]  # extent, and pitch in row-major order of the source
Axes = tuple[tuple[Factor, ...], ...]


@dataclass(frozen=True)
class _Chain:
    """A value as so many views of a source make it: the factors of the source that each axis joins."""

    source: str
    axes: Axes
    length: int


def shorten_chains(graph: Graph) -> Graph:
    """Return `graph` with chains of reshapes and transposes shortened where three views do, or fewer."""
    consumers, public = graph.consumers(), set(graph.outputs.values())
    chains: dict[str, _Chain] = {}
    types = dict(graph.types)
    nodes: list[Node] = []
    for node in graph.nodes:
        chain = _followed(node, chains, graph) if isinstance(node.spec, VIEWS) else None
        if chain is None:
            nodes.append(node)
            continue
        (out,) = node.outputs
        chains[out] = chain
        ends = out in public or any(not isinstance(n.spec, VIEWS) for n in consumers[out])
        views = _views(chain, types[out].shape) if ends else []
        shorter = 0 < len(views) < chain.length
        nodes += _written(node, chain.source, views, types) if shorter else [node]
    return graph.with_nodes(nodes, types=types)


def _followed(node: Node, chains: dict[str, _Chain], graph: Graph) -> _Chain | None:
    """Return the chain that ends with a view, None where extents are open or cuts of axes do not nest."""
    before, after = graph.input_types(node)[0], graph.types[node.outputs[0]]
    name = node.inputs[0]
    if before is None or name is None or name in graph.consts or not before.size:
        return None
    if any(map(is_open, (*before.shape, *after.shape))):
        return None
    for chain in (chains.get(name), _source(name, before.shape)):
        axes = None if chain is None else _seen(chain.axes, node.spec)
        if chain is not None and axes is not None:
            return _Chain(chain.source, axes, chain.length + 1)
    return None


def _source(name: str, shape: Sequence[int]) -> _Chain:
    pitches = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return _Chain(name, tuple(((d, p),) for d, p in zip(shape, pitches, strict=True)), 0)


def _seen(axes: Axes, view: object) -> Axes | None:
    """Return the axes behind a view, None where it cuts between factors."""
    if isinstance(view, Transpose):
        return tuple(axes[axis] for axis in view.perm)
    assert isinstance(view, Reshape)
    left = [factor for axis in axes for factor in axis if factor[0] > 1]
    joined: list[tuple[Factor, ...]] = []
    for wanted in view.shape:
        found: list[Factor] = []
        while wanted > 1:
            extent, pitch = left.pop(0)
            if extent > wanted:
                if extent % wanted:
                    return None
                rest = extent // wanted
                left.insert(0, (rest, pitch))
                extent, pitch = wanted, pitch * rest
            if wanted % extent:
                return None
            wanted //= extent
            found.append((extent, pitch))
        joined.append(tuple(found))
    return tuple(joined)


def _views(chain: _Chain, shape: tuple[int, ...]) -> list[Reshape | Transpose]:
    """Return the views that do what a chain does: a split, a transposition and a join, as far as it needs them."""
    factors = _runs([factor for axis in chain.axes for factor in axis if factor[0] > 1])
    order = sorted(range(len(factors)), key=lambda k: -factors[k][1])
    if order == [*range(len(factors))]:
        return [Reshape(shape)]
    perm = tuple(order.index(k) for k in range(len(factors)))
    return [Reshape(tuple(factors[k][0] for k in order)), Transpose(perm), Reshape(shape)]


def _runs(factors: Sequence[Factor]) -> list[Factor]:
    """Return the factors with those joined that are neighbours in the source, too."""
    runs: list[Factor] = []
    for extent, pitch in factors:
        if runs and runs[-1][1] == extent * pitch:
            runs[-1] = (runs[-1][0] * extent, pitch)
        else:
            runs.append((extent, pitch))
    return runs


def _written(
    node: Node, source: str, views: Sequence[Reshape | Transpose], types: dict[str, TensorType]
) -> list[Node]:
    """Return a node as these views of a source."""
    made: list[Node] = []
    for place, view in enumerate(views):
        last = place == len(views) - 1
        name = node.outputs[0] if last else f"{node.outputs[0]}:view{place}"
        types[name] = view.infer((types[source],))[0]
        label = node.name if last else name
        made.append(changed(node, name=label, spec=view, inputs=(source,), outputs=(name,)))
        source = name
    return made

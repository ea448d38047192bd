"""Activations that a model spells out become one function: x * sigmoid(x) is swish(x).

Exporters write an activation in many orders, so the steps between a value and what is made of it
alone are compared by what they compute, not by how: on numbers of all magnitudes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, lru_cache

import numpy as np

from clnn.graph.ir import Graph, Node
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.shared.functions import FUNCTIONS, PostOp, apply_post_ops
from clnn.records import changed, dataclass
from clnn.types import F32, Array

MOST_NODES = 12
"""Of one function: gelu's tanh form takes nine."""

ROOTS = frozenset({"mul", "div", "reciprocal", "log"})
"""Functions whose result can be an activation spelled out."""

KEYS = frozenset(
    {
        "erf",
        "tanh",
        "sigmoid",
        "rational_sigmoid",
        "exp",
        "softplus",
        "hard_sigmoid",
        "clip",
        "min",
        "at_most",
    }
)
"""Each activation that is looked for has one of these within."""

CLOSE = 1e-6
"""Error of a function that is taken for another, relative to the argument where it is below 1."""

Step = tuple[tuple[PostOp, ...], tuple[int | float, ...]]
"""Post-ops of a node and, for each input, the number of an earlier value (0 is x) or a constant."""


@dataclass(frozen=True)
class _Region:
    """Nodes that make one value of `x` alone, in order, the last one that value."""

    x: str
    nodes: tuple[Node, ...]


def fuse_functions(graph: Graph) -> Graph:
    """Return `graph` with elementwise nodes that together are a known function of one value as it.

    swish with any slope, gelu in both forms, mish, hard_swish, sigmoid and softplus; only where
    nothing else reads what is between.
    """
    finder = _Finder(graph)
    nodes: dict[str, Node] = {}
    gone: set[str] = set()
    for node in graph.nodes:
        nodes[node.name] = node
        for region in finder.regions(node):
            step = known(finder.steps(region))
            if step is None:
                continue
            origin = " + ".join(n.origin for n in region.nodes)
            fused = changed(node, spec=Eltwise((step,)), inputs=(region.x,), origin=origin)
            nodes[node.name] = finder.producers[node.outputs[0]] = fused
            gone |= {n.name for n in region.nodes[:-1]}
            break
    return graph.with_nodes([node for name, node in nodes.items() if name not in gone])


class _Finder:
    """Parts of a graph that make a value of one other alone."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.uses = graph.consumers()
        self.public = set(graph.outputs.values())
        self.producers = {name: node for node in graph.nodes for name in node.outputs}
        self.places = {node.name: place for place, node in enumerate(graph.nodes)}

    def regions(self, root: Node) -> Iterator[_Region]:
        """Yield the parts that end in `root`, the smallest first."""
        if not isinstance(root.spec, Eltwise) or not root.spec.post_ops:
            return
        if root.spec.post_ops[-1].fn not in ROOTS:
            return
        within: dict[str, Node] = {}
        leaves: set[str] = set()
        taken: Node | None = root
        while taken is not None and self._is_elementwise(taken) and len(within) < MOST_NODES:
            within[taken.name] = taken
            leaves.discard(taken.outputs[0])
            leaves |= {n for n in taken.inputs if n is not None and n not in self.graph.consts}
            if len(leaves) == 1:
                ordered = sorted(within.values(), key=lambda n: self.places[n.name])
                yield _Region(min(leaves), tuple(ordered))
            taken = self._next(leaves, within)

    def _is_elementwise(self, node: Node) -> bool:
        """Whether a node computes float32 elementwise, of constants that are one number each."""
        out = self.graph.types[node.outputs[0]]
        return isinstance(node.spec, Eltwise) and all(
            n is not None
            and (
                self.graph.consts[n].size == 1
                if n in self.graph.consts
                else self.graph.types[n] == out and out.dtype == F32
            )
            for n in node.inputs
        )

    def _next(self, leaves: set[str], within: Mapping[str, Node]) -> Node | None:
        """Return the last node before those `within`, where only those read what it makes."""
        made = [self.producers[n] for n in leaves if n in self.producers]
        last = max(made, key=lambda n: self.places[n.name], default=None)
        if last is None or len(last.outputs) != 1 or last.outputs[0] in self.public:
            return None
        readers = self.uses[last.outputs[0]]
        return last if all(r.name in within for r in readers) else None

    def steps(self, region: _Region) -> tuple[Step, ...]:
        """Return what a region computes, without names."""
        numbers: dict[str, int] = {region.x: 0}
        found: list[Step] = []
        for place, node in enumerate(region.nodes, 1):
            assert isinstance(node.spec, Eltwise)
            sources = tuple(
                numbers[n] if n in numbers else float(self.graph.consts[n].reshape(()))
                for n in map(str, node.inputs)
            )
            numbers[node.outputs[0]] = place
            found.append((node.spec.post_ops, sources))
        return tuple(found)


@lru_cache(maxsize=512)
def known(steps: tuple[Step, ...]) -> PostOp | None:
    """Return the one function that `steps` compute, None where it has no name."""
    made = [step for post_ops, _ in steps for step in post_ops]
    if len(made) < 2 or KEYS.isdisjoint(step.fn for step in made):
        return None
    got = _computed(steps)
    for candidate in _candidates(steps):
        with np.errstate(all="ignore"):
            want = np.asarray(FUNCTIONS[candidate.fn].numpy(_samples(), *candidate.params))
        near = CLOSE * np.maximum(np.abs(want), np.minimum(np.abs(_samples()), 1))
        if (np.abs(got - want) <= near).all():  # NaN is near nothing
            return candidate
    return None


def _candidates(steps: tuple[Step, ...]) -> Iterator[PostOp]:
    """Yield the functions that `steps` may be; slopes are constants of theirs."""
    if any(s.fn.startswith("rational_") for post_ops, _ in steps for s in post_ops):
        yield PostOp("rational_swish")  # the others round otherwise
        return
    for fn in ("gelu", "gelu_tanh", "mish", "hard_swish", "sigmoid", "softplus"):
        yield PostOp(fn)
    constants = {float(c) for _, sources in steps for c in sources if isinstance(c, float)}
    constants |= {p for post_ops, _ in steps for s in post_ops for p in s.params}
    for slope in sorted({1.0} | {abs(c) for c in constants}):
        yield PostOp("swish", (slope,))


@cache
def _samples() -> Array:
    """Return numbers of both signs and all magnitudes of float32, most of them small."""
    tiny = np.exp2(np.arange(-40, 6, 0.5))
    huge = 10.0 ** np.arange(2, 38)
    sizes = np.concatenate([[0.0], tiny, np.linspace(0.01, 20, 500), huge])
    return np.concatenate([-sizes[::-1], sizes])


def _computed(steps: tuple[Step, ...]) -> Array:
    """Return what `steps` make of the samples, in double precision with float32's infinities."""
    values = [_samples()]
    with np.errstate(all="ignore"):
        for post_ops, sources in steps:
            inputs = [values[s] if isinstance(s, int) else np.asarray(s) for s in sources]
            value = np.broadcast_to(inputs[0], _samples().shape)
            for post_op in post_ops:
                value = apply_post_ops(value, (post_op,), inputs)
                value = np.where(
                    np.abs(value) > np.finfo(np.float32).max, np.copysign(np.inf, value), value
                )
            values.append(value)
    return values[-1]

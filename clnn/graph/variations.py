"""Other extents of a network's open dimensions, at which it stays the same network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from clnn.errors import ClnnError
from clnn.graph.ir import Graph

Extents = Mapping[str, int]  # dimension -> extent
SMALL = 8  # extents below which any number is as likely: batches, counts
BLOCK = 32  # what networks that halve images want extents to be multiples of
FEW = 4  # of a batch: from so many on kernels are others than for one
STEPS = (3, 5, 7, 11, 13, 17, 19, 23)  # added in turn, so that no two dimensions stay in proportion


def alike(
    graph: Graph, at: Callable[[Extents], Graph], proposals: Iterable[Extents], most: int
) -> Iterator[Graph]:
    """Yield up to `most` graphs that have the nodes of `graph`, at extents that are proposed.

    at: returns the network at some extents; what it refuses is left out, and what has no elements.
    """
    found = 0
    for extents in proposals:
        if found == most:
            break
        try:
            other = at(extents)
        except ClnnError:
            continue
        if nodes_of(other) == nodes_of(graph) and not any(
            0 in t.shape for t in other.types.values()
        ):
            found += 1
            yield other


def nodes_of(graph: Graph) -> list[tuple[object, ...]]:
    """Return what networks at other extents have in common: their nodes without attributes."""
    return [(n.name, n.spec.kind, n.inputs, n.outputs) for n in graph.nodes]


def larger(extents: Extents) -> Iterator[dict[str, int]]:
    """Yield extents above those given, in every dimension, out of proportion as far as can be."""
    for turn in range(3):
        yield {
            name: _more(extent, STEPS[(k + 3 * turn) % len(STEPS)])
            for k, (name, extent) in enumerate(extents.items())
        }
    for factor in (2, 3):  # where dimensions must stay in proportion
        yield {name: extent * factor for name, extent in extents.items()}
    yield from ({n: e + more for n, e in extents.items()} for more in (BLOCK, 1))
    # Networks that have other nodes for a batch of two than for one.
    yield from (
        _with_counts(extents, {n: _more(e, step) for n, e in extents.items()}) for step in (5, 13)
    )


def uneven(extents: Extents) -> Iterator[dict[str, int]]:
    """Yield larger extents that halve with a rest each time, and such that halve without one.

    What lies behind the last window of a stride differs between them. Small ones but the first, which
    may be sides of an image, become large, so that they are more than one behind some strides.
    """
    batch = next(iter(extents), "")

    def one(rest: int, few: int) -> dict[str, int]:
        return {
            name: extent + 1
            if extent < (SMALL if name == batch else few)
            else (extent // BLOCK + 2) * BLOCK + rest
            for name, extent in extents.items()
        }

    found = [one(rest, few) for few in (0, SMALL) for rest in (1, 0)]
    yield from found
    yield from (_with_counts(extents, one) for one in found[-2:])


def _with_counts(extents: Extents, others: Extents) -> dict[str, int]:
    """Return other extents with counts as they are."""
    return {n: e if e < SMALL else others[n] for n, e in extents.items()}


def _more(extent: int, step: int) -> int:
    if extent < SMALL:
        return extent + 1 + step // 4
    return extent + step * (BLOCK if extent % BLOCK == 0 else 1)


def smaller(extents: Extents) -> Iterator[dict[str, int]]:
    """Yield small extents, the smallest first; those below SMALL become 1 in most."""
    found = [
        {name: _less(extent, part, block) for name, extent in extents.items()}
        for part in (32, 16, 8, 4, 2)
        for block in (1, BLOCK)
    ]
    for least in (1, 2, 4, 8, 16):  # what networks that halve images a few times take
        found.append({n: 1 if e < SMALL else min(e, least) for n, e in extents.items()})
        found.append({n: min(e, least) for n, e in extents.items()})  # where 1 is too few
    yield from sorted(found, key=lambda one: sum(one.values()))


def halves(extents: Extents) -> Iterator[dict[str, int]]:
    """Yield about half of these extents; counts stay."""
    for block in (BLOCK, 1):
        yield {n: e if e < SMALL else _less(e, 2, block) for n, e in extents.items()}


def other_counts(extents: Extents) -> Iterator[dict[str, int]]:
    """Yield these extents with larger batches and counts, or with 1 where there are some already."""
    counts = {name: extent for name, extent in extents.items() if extent < SMALL}
    if counts:
        to = FEW if min(counts.values()) < FEW else 1
        yield {**extents, **dict.fromkeys(counts, to)}


def _less(extent: int, part: int, block: int) -> int:
    if extent < SMALL:
        return 1
    less = max(1, extent // part)
    return min(extent, -(-less // block) * block)

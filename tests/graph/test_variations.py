"""Other extents of a network's open dimensions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_graphs import classifier

from clnn.errors import ShapeError
from clnn.graph.variations import SMALL, alike, larger, smaller, uneven


def test_proposals_differ_in_every_dimension():
    extents = {"batch": 1, "height": 224, "width": 224, "length": 37}
    others = [one for one in larger(extents) if one["batch"] > 1]
    assert others[:3] == [*larger(extents)][:3]
    for other in others:
        assert all(other[name] > extent for name, extent in extents.items())
    first = next(larger(extents))
    assert first["height"] != first["width"] and first["height"] % 32 == first["width"] % 32 == 0
    for other in smaller(extents):
        assert other["batch"] == 1
        assert all(1 <= other[name] <= extent for name, extent in extents.items())


@pytest.mark.parametrize("least", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("extent", [96, 100, 224, 640])
def test_the_smallest_image_of_networks_that_halve_is_among_the_proposals(least, extent):
    sizes = smaller({"batch": 2, "height": extent, "width": extent})
    first = next(s for s in sizes if s["height"] % least == 0 and s["width"] % least == 0)
    assert first == {"batch": 1, "height": least, "width": least}


@pytest.mark.parametrize("least", [2, 4, 8])
def test_few_columns_need_not_become_one(least):
    """Of a narrow first image, what a network takes at least is among the proposals."""
    sizes = smaller({"batch": 1, "height": 140, "width": 3})
    found = next(s for s in sizes if s["height"] >= least and s["width"] >= min(least, 3))
    assert found == {"batch": 1, "height": least, "width": min(least, 3)}


def test_small_sides_become_large_ones_in_uneven_proposals():
    """Strides make one of a few columns, whatever their number; counts of images stay few."""
    first, second, *others = uneven({"batch": 1, "height": 25, "width": 1})
    assert first == {"batch": 2, "height": 65, "width": 65}
    assert second == {"batch": 2, "height": 64, "width": 64}
    assert {"batch": 2, "height": 65, "width": 2} in others


def test_networks_that_are_refused_or_differ_are_left_out():
    graph = classifier()
    extra = replace(graph, nodes=graph.nodes[:-1])

    def at(extents):
        if extents["n"] == 1:
            raise ShapeError("no")
        return graph if extents["n"] > 2 else extra

    proposals = [{"n": n} for n in (1, 2, 3, 4, 5)]
    assert [*alike(graph, at, proposals, 2)] == [graph, graph]
    assert [*alike(graph, at, proposals[:2], 2)] == []


@pytest.mark.parametrize("proposals", [larger, uneven])
def test_counts_stay_in_some_proposals(proposals):
    """A network may have other nodes for a batch of two than for one: then its lengths alone differ."""
    extents = {"batch": 1, "length": 30, "width": 64}
    kept = [one for one in proposals(extents) if one["batch"] == 1]
    assert len(kept) >= 2
    for one in kept:
        assert all(one[name] > extent for name, extent in extents.items() if extent >= SMALL)

"""tools/fuzz/metamorphic.py: pairs of networks agree with each other; a fault in one of them is found."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest
from common import ROOT

FOLDER = ROOT / "tools" / "fuzz"
RELATIONS = {"batch", "padding", "views", "memory"}


@pytest.fixture(scope="module")
def tool():
    """The tool as a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        before = set(sys.modules)
        yield importlib.import_module("metamorphic")
        for name in set(sys.modules) - before:
            if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


def agree(tool, first, count, device):
    rows = list(tool.run(first, count, device))
    assert [row["seed"] for row in rows] == list(range(first, first + count))
    assert not [row for row in rows if row["wrong"]]
    return rows


@pytest.mark.parametrize("first", [1, 17])
def test_pairs_of_networks_agree(tool, device, first):
    rows = agree(tool, first, 16, device)
    assert {row["ops"][0] for row in rows} == RELATIONS
    assert sum(row["refused"] for row in rows) < 4


@pytest.mark.exhaustive
@pytest.mark.timeout(4 * 3600)
def test_thousands_of_pairs_agree(tool, any_device):
    agree(tool, 1_000_000, tool.LONG, any_device)


def test_every_pair_agrees_on_another_engine(tool):
    """So that what differs on clnn is a fault of clnn, and not of the pair."""
    pairs = [tool.draw(seed) for seed in range(1, 121)]
    assert not [told for pair in pairs if (told := tool.check(pair, tool.on_onnxruntime))]
    met = {op for pair in pairs for op in pair.ops}
    assert met > RELATIONS and len(met) > 45, sorted(met)
    assert {len(pair.right.calls) for pair in pairs} >= {1, 2, 3, 4, 5}


def test_a_seed_always_draws_the_same_pair(tool):
    drawn = [tool.draw(seed).right.model.SerializeToString() for seed in (5, 5, 6)]
    assert drawn[0] == drawn[1] != drawn[2]


def images(feeds):
    return next(iter(feeds.values())).shape[0]


FAULTS = {
    "batch": lambda model, calls: images(calls[0]) > 1,
    "padding": lambda model, calls: any(n.input[0] == "padded" for n in model.graph.node),
    "views": lambda model, calls: any(i.name == "one" for i in model.graph.input),
    "memory": lambda model, calls: calls is not None,
}


@pytest.mark.parametrize("relation", sorted(RELATIONS))
def test_a_fault_on_one_side_is_found(tool, relation):
    """An engine that is off in the last element, for one form of a network."""
    seeds = range(1, 100)
    pair = next(p for p in map(tool.draw, seeds) if p.relation == relation)
    if relation == "views":
        pair = next(p for p in map(tool.draw, seeds) if "Transpose" in p.ops and "views" in p.ops)

    def wrong(model, calls, options):
        made = tool.on_onnxruntime(model, calls, options)
        if FAULTS[relation](model, calls) and options.get("arena") != "shared" * (
            relation == "memory"
        ):
            for array in made[0]:
                array.reshape(-1)[-1:] += np.float32(100)
        return made

    assert tool.check(pair, tool.on_onnxruntime) == ""
    assert relation in tool.check(pair, wrong)


def test_an_error_of_the_engine_is_a_finding(tool):
    def broken(model, calls, options):
        raise ValueError("no such thing")

    assert "ValueError: no such thing" in tool.check(tool.draw(3), broken)

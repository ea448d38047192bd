"""What stays of what was made for earlier calls."""

from __future__ import annotations

from operator import itemgetter

from clnn.runtime.run import keeping
from clnn.runtime.run.keeping import Cost, Recent


def kept(costs, few, large):
    """Return the places of the costs that stay, when they come one after the other."""
    recent = Recent(itemgetter(1), few, large)
    for place, cost in enumerate(costs):
        recent[place] = (place, Cost(*cost))
        recent.shrink()
    return list(recent)


def test_few_stay_whatever_their_launches(monkeypatch):
    monkeypatch.setattr(keeping, "MAX_LAUNCHES", 10)
    assert kept([(100, 0)] * 5, few=3, large=1) == [2, 3, 4]


def test_many_small_ones_stay_up_to_the_launches_of_all(monkeypatch):
    monkeypatch.setattr(keeping, "MAX_LAUNCHES", 10)
    assert kept([(2, 0)] * 9, few=3, large=1) == [4, 5, 6, 7, 8]
    assert kept([(1, 0)] * 9 + [(6, 0)], few=3, large=1) == [5, 6, 7, 8, 9]


def test_memory_counts_without_that_of_the_newest(monkeypatch):
    monkeypatch.setattr(keeping, "MAX_BYTES", 10)
    assert kept([(1, 6)] * 4, few=3, large=1) == [2, 3]
    assert kept([(1, 1), (1, 99)], few=3, large=1) == [0, 1]
    assert kept([(1, 6)] * 6, few=1, large=4) == [2, 3, 4, 5]


def test_what_is_used_stays_longer_and_what_goes_is_told(monkeypatch):
    monkeypatch.setattr(keeping, "MAX_LAUNCHES", 2)
    recent = Recent(itemgetter(1), few=2, large=2)
    for name in "ab":
        recent[name] = (name, Cost(1, 0))
    assert recent.use("a") == ("a", (1, 0)) and recent.use("z") is None
    recent["c"] = ("c", Cost(1, 0))
    assert recent.shrink() == [("b", ("b", (1, 0)))]
    assert list(recent) == ["a", "c"]


def test_what_grows_is_weighed_anew(monkeypatch):
    monkeypatch.setattr(keeping, "MAX_LAUNCHES", 5)
    costs = {"a": Cost(1, 0), "b": Cost(1, 0)}
    recent = Recent(costs.__getitem__, few=1, large=9)
    for name in "ab":
        recent[name] = name
    assert not recent.shrink()
    costs["a"] = Cost(9, 0)
    assert recent.shrink() == [("a", "a")]

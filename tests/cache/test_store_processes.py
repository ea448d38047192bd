"""Processes that share a folder, and processes that are killed: no wrong, torn or lost entry."""

from __future__ import annotations

import pytest
from cache_children import answer_of, run_worker, start_worker
from cache_worker import content, key

from clnn.cache import Store


def test_killed_before_every_call(tmp_path):
    """A writer dies at each of its file calls: the next process finds old or new, never another."""
    result = run_worker("kill-each", tmp_path)
    assert result["calls"] > 20
    assert result["killed"] == result["calls"]
    assert result["wrong"] == []


@pytest.mark.parametrize("rounds", [6, pytest.param(500, marks=pytest.mark.exhaustive, id="long")])
@pytest.mark.timeout(900)
def test_killed_at_random_times(tmp_path, rounds):
    result = run_worker("kill-loop", tmp_path, rounds)
    assert result["rounds"] == rounds
    assert result["wrong"] == []
    assert result["seen"] > 0


def _hammers(root, count, operations):
    small = {"CLNN_CACHE_MAX_BYTES": "300000"}
    return [start_worker("hammer", root, seed, operations, **small) for seed in range(count)]


@pytest.mark.parametrize(
    ("count", "operations"),
    [(4, 400), pytest.param(8, 3000, marks=pytest.mark.exhaustive, id="long")],
)
@pytest.mark.timeout(900)
def test_many_processes_in_one_folder(tmp_path, count, operations):
    """Readers, writers, evictions and clearings at once: no wrong, torn or bad entry."""
    for child in _hammers(tmp_path, count, operations):
        answer = answer_of(child)
        assert answer["wrong"] == []
        assert answer["bad"] == 0
        assert answer["told"] == []
        assert answer["mode"] == "rw"
        assert answer["hits"] > 0
    assert Store(tmp_path, "rw").verify().bad == ()


def test_others_go_on_when_some_processes_are_killed(tmp_path):
    children = _hammers(tmp_path, 4, 300)
    for child in children[:2]:
        child.stderr.readline()
        child.kill()
        child.communicate()
    for child in children[2:]:
        answer = answer_of(child)
        assert (answer["wrong"], answer["bad"], answer["told"]) == ([], 0, [])
    store = Store(tmp_path, "rw")
    assert store.verify().bad == ()
    assert all(store.get(key(s)) in (None, content(s)) for s in range(200))

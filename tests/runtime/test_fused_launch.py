"""Networks as few kernels compute what their launches one by one do, to the bit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import small_graphs
from harness import normal
from small_graphs import Builder

import clnn
from clnn.graph.ir import Graph
from clnn.runtime.run import fusing
from clnn.runtime.run.fused_launch import launches_of
from clnn.runtime.run.fusing import MOST_CALLS, MOST_FUNCTIONS, SMALL_CALLS, SMALL_FUNCTIONS
from clnn.runtime.run.fusing import _even as even

pytestmark = pytest.mark.dealt  # kernels that are slow to build


def wide() -> Graph:
    """Winograd, borders that are filled again, a concat, an input that two consumers slice."""
    b = Builder(x=(2, 16, 30, 30), y=(2, 32, 30, 30))
    first = b.post_ops("relu", b.conv("x", 32))
    body = [b.post_ops("relu", b.conv(b.conv(first, 32, 1), 32)) for _ in range(3)]
    joined = b.post_ops("add", b.post_ops("add", body[0], body[1]), b.post_ops("mul", body[2], "y"))
    return b.graph(b.conv(b.conv(joined, 32, 5, stride=2), 5, 3), b.conv("y", 4))


GRAPHS = {
    "wide": wide,
    "classifier": small_graphs.classifier,
    "decoder": small_graphs.decoder,
    "rows": small_graphs.rows,
}


def feeds_of(session: clnn.Session, seed: int = 0) -> dict[str, np.ndarray]:
    return {i.name: normal(i.shape, seed + k) for k, i in enumerate(session.inputs)}


@pytest.fixture(params=GRAPHS)
def pair(request, device):
    graph = GRAPHS[request.param]()
    with (
        clnn.compile_model(graph, device, clnn.Options(states=3)) as fused,
        clnn.compile_model(graph, device, clnn.Options(merge=False)) as alone,
    ):
        yield fused, alone


def kernels(session: clnn.Session) -> int:
    return len(session._call_states[0].launches)


def test_equal_to_the_bit_and_again(pair):
    fused, alone = pair
    assert kernels(fused) < kernels(alone)
    for seed in (0, 10, 20):
        feeds = feeds_of(alone, seed)
        want = alone(feeds)
        for _ in range(3):
            got = fused(feeds)
            assert all(np.array_equal(got[name], want[name], equal_nan=True) for name in want)


def test_several_callers(pair):
    fused, alone = pair
    feeds = [feeds_of(alone, seed) for seed in range(8)]
    want = [alone(f) for f in feeds]
    with ThreadPoolExecutor(4) as pool:
        for got, expected in zip(pool.map(fused, feeds * 3), want * 3, strict=True):
            assert all(np.array_equal(got[n], expected[n], equal_nan=True) for n in expected)


@pytest.mark.parametrize("separate", [False, True])
def test_a_profile_has_a_time_for_every_launch(pair, separate):
    fused, alone = pair
    feeds = feeds_of(fused)
    with fused.profile(separate=separate) as profile:
        fused(feeds)
        got = fused(feeds)
    want = alone(feeds)
    rows, launches = profile.rows(), launches_of(fused.plan)
    assert sum(row.launches for row in rows) == len(launches) > 1
    assert [row.node for row in rows] == list(dict.fromkeys(one.node for one in launches))
    assert len(profile.state.launches) == (len(launches) if separate else kernels(fused))
    for run in profile.runs:
        spans = run.launches
        assert all(span.start < span.end for span in spans)
        assert all(a.end <= b.start for a, b in pairwise(spans))
    assert profile.summary().gap >= 0
    assert all(np.array_equal(got[name], want[name], equal_nan=True) for name in want)
    again = fused(feeds)
    assert all(np.array_equal(again[name], want[name], equal_nan=True) for name in want)


def test_bound_inputs(device):
    graph = wide()
    with (
        clnn.compile_model(graph, device) as fused,
        clnn.compile_model(graph, device, clnn.Options(merge=False)) as alone,
    ):
        feeds = feeds_of(alone)
        want = alone(feeds)
        binding = fused.bind_input("x")
        binding.copy_from(feeds["x"])
        got = fused({"y": feeds["y"]})
        assert all(np.array_equal(got[name], want[name]) for name in want)
        fused.unbind_input("x")
        other = {**feeds, "x": feeds["x"] * 2}
        got, want = fused(other), alone(other)
        assert all(np.array_equal(got[name], want[name]) for name in want)


def test_guards_and_separate_arenas_keep_launches_apart(device):
    for options in (clnn.Options(guard=64), clnn.Options(arena="separate")):
        with clnn.compile_model(wide(), device, options) as session:
            assert kernels(session) == len(session.plan.launches) - len(session.plan.first_fills)


@pytest.mark.parametrize(
    ("sources", "sizes"),
    [
        (range(MOST_FUNCTIONS), [MOST_FUNCTIONS]),
        (range(MOST_FUNCTIONS + 2), [MOST_FUNCTIONS // 2 + 1] * 2),
        (range(3 * MOST_FUNCTIONS), [MOST_FUNCTIONS] * 3),
        ([0] * (MOST_CALLS + 1), [MOST_CALLS, 1]),
        ([*range(MOST_FUNCTIONS), *range(MOST_FUNCTIONS)], [2 * MOST_FUNCTIONS]),
        ([], []),
    ],
)
def test_groups_are_few_and_of_about_as_many_functions_of_equal_texts(sources, sizes):
    groups = even([SimpleNamespace(source=f"{s:04}") for s in sources])
    assert [len(g) for g in groups] == sizes
    assert [one.source for g in groups for one in g] == [f"{s:04}" for s in sources]


@pytest.mark.parametrize(
    ("sources", "sizes"),
    [
        (range(SMALL_FUNCTIONS), [SMALL_FUNCTIONS]),
        (range(SMALL_FUNCTIONS + 2), [SMALL_FUNCTIONS // 2 + 1] * 2),
        ([0] * (SMALL_CALLS + 1), [SMALL_CALLS, 1]),
    ],
)
def test_small_networks_are_fewer_groups(sources, sizes):
    groups = even([SimpleNamespace(source=f"{s:04}") for s in sources], small=True)
    assert [len(g) for g in groups] == sizes


@pytest.mark.parametrize(
    ("functions", "builders", "sizes"),
    [
        (3 * MOST_FUNCTIONS, 2, [MOST_FUNCTIONS * 3 // 2] * 2),
        (3 * MOST_FUNCTIONS, 3, [MOST_FUNCTIONS] * 3),
        (3 * MOST_FUNCTIONS, 8, [MOST_FUNCTIONS] * 3),
        (4 * MOST_FUNCTIONS, 2, [MOST_FUNCTIONS] * 4),
        (7 * MOST_FUNCTIONS, 4, [MOST_FUNCTIONS * 7 // 8] * 8),
        (2 * MOST_FUNCTIONS, 1, [MOST_FUNCTIONS] * 2),
    ],
)
def test_each_of_those_who_build_has_as_many_groups(functions, builders, sizes):
    ones = [SimpleNamespace(source=f"{s:04}") for s in range(functions)]
    assert [len(g) for g in even(ones, builders=builders)] == sizes


def test_groups_have_texts_of_about_the_same_length():
    lengths = [90] + [10] * MOST_FUNCTIONS + [90, 200]
    ones = [SimpleNamespace(source=f"{k:03}".ljust(n)) for k, n in enumerate(lengths)]
    first, second = even(ones)
    assert abs(sum(len(one.source) for one in first) - sum(lengths) // 2) < 90
    assert first + second == ones


def test_a_network_of_few_operations_is_one_kernel(device, monkeypatch, request):
    request.addfinalizer(fusing._even_counts.cache_clear)
    monkeypatch.setattr(fusing, "MOST_FUNCTIONS", 2)
    fusing._even_counts.cache_clear()
    with clnn.compile_model(wide(), device) as session:
        assert kernels(session) == 1
    monkeypatch.setattr(fusing, "SMALL_WORK", 0)
    fusing._even_counts.cache_clear()
    with clnn.compile_model(wide(), device) as session:
        assert kernels(session) > 1

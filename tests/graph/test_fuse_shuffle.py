"""Concatenations with a channel shuffle behind them."""

from __future__ import annotations

import numpy as np
import pytest
from small_graphs import Builder

import clnn
from clnn.graph.passes import optimise
from clnn.ops.movement.views import Concat, Reshape, Transpose
from clnn.plan.schedule import make_plan
from clnn.target import Target


def shuffled(b, parts, groups=None, perm=(0, 2, 1, 3, 4)):
    joined = b.add(Concat(1), *parts)
    n, c, h, w = b.types[joined].shape
    groups = groups or len(parts)
    split = b.add(Reshape((n, groups, c // groups, h, w)), joined)
    return joined, b.add(Reshape((n, c, h, w)), b.add(Transpose(perm), split))


def network(**options):
    b = Builder(x=(2, 6, 5, 7))
    parts = [b.post_ops("relu", b.conv("x", 20, k)) for k in (1, 3)]
    joined, mixed = shuffled(b, parts, **options)
    return b, parts, joined, mixed


def spread(graph):
    return [n.spec for n in graph.nodes if isinstance(n.spec, Concat)]


def test_a_shuffle_behind_a_concat_moves_no_data(device):
    b, parts, _, mixed = network()
    graph = b.graph(b.conv(mixed, 8, 3))
    made = optimise(graph)
    assert spread(made) == [Concat(1, mixed=True)]
    assert not any(isinstance(n.spec, (Reshape, Transpose)) for n in made.nodes)
    plan = make_plan(made, Target())
    assert plan.copied_bytes == 0
    assert [plan.placed[p].layout.pitches[1] for p in parts] == [2, 2]
    x = np.random.default_rng(0).standard_normal((2, 6, 5, 7)).astype(np.float32)
    with clnn.compile_model(graph, device) as session:
        got = session({"x": x})["out0"]
    with clnn.compile_model(graph, device, clnn.Options(fuse=False)) as session:
        want = session({"x": x})["out0"]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "options", [{"groups": 4}, {"perm": (0, 1, 2, 4, 3)}], ids=["groups", "perm"]
)
def test_other_orders_stay(options):
    b, _, _, mixed = network(**options) if "groups" in options else network()
    if "perm" in options:
        b = Builder(x=(2, 6, 5, 5))
        _, mixed = shuffled(b, [b.conv("x", 4), b.conv("x", 4)], **options)
    assert spread(optimise(b.graph(mixed))) == [Concat(1)]


def test_a_joined_value_with_another_use_stays():
    b, _, joined, mixed = network()
    assert spread(optimise(b.graph(mixed, joined))) == [Concat(1)]


def test_parts_of_unequal_extents_stay():
    b = Builder(x=(1, 6, 5, 7))
    _, mixed = shuffled(b, [b.conv("x", 12), b.conv("x", 4)])
    assert spread(optimise(b.graph(mixed))) == [Concat(1)]


def test_reference_and_shapes():
    a, b = np.arange(6).reshape(1, 3, 2), -np.arange(6).reshape(1, 3, 2)
    (got,) = Concat(1, mixed=True).reference(a, b)
    np.testing.assert_array_equal(got, np.stack([a, b], 2).reshape(1, 6, 2))
    types = [clnn.types.TensorType((1, 3, 2)), clnn.types.TensorType((1, 2, 2))]
    with pytest.raises(clnn.errors.ShapeError, match="must be equal"):
        Concat(1, mixed=True).infer(types)

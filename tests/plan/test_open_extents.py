"""Extents that know what they are at another shape: what follows from them, and networks of them."""

from __future__ import annotations

import math
import operator
import pickle
import random

import pytest
from sequences import NETWORKS, WIDTH

from clnn.compile import load_graph
from clnn.layout import TensorLayout, reshape_groups
from clnn.ops.movement.views import refine
from clnn.ops.shared.loops import collapse
from clnn.plan.open_extents import opened
from clnn.traced import Open, alike, divides, greatest, is_one, is_open, is_zero, least, other

OPERATIONS = (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod)


@pytest.mark.parametrize("compute", OPERATIONS, ids=lambda op: op.__name__)
def test_numbers_are_computed_at_both_shapes(compute):
    draw = random.Random(compute.__name__)
    for _ in range(200):
        (a, b), (c, d) = [(draw.randrange(1, 99), draw.randrange(1, 99)) for _ in range(2)]
        for made, here, there in (
            (compute(Open(a, b), Open(c, d)), compute(a, c), compute(b, d)),
            (compute(Open(a, b), c), compute(a, c), compute(b, c)),
            (compute(a, Open(c, d)), compute(a, c), compute(a, d)),
            (math.prod((2, Open(a, b), c)), 2 * a * c, 2 * b * c),
            (least(Open(a, b), c), min(a, c), min(b, c)),
            (greatest(c, Open(a, b)), max(a, c), max(b, c)),
        ):
            assert is_open(made) and (int(made), other(made)) == (here, there)


def test_decisions_hold_at_both_shapes():
    one = Open(1, 3)
    assert one == 1 and not is_one(one) and not is_zero(one - one) and not divides(4, Open(8, 12))
    assert is_one(1) and is_zero(0) and divides(4, 8)
    assert alike(one * 4, 4 * one) and not alike(one, 1) and alike(3, 3)
    assert is_open(one + 0) and not is_open(one * 0)


def test_open_numbers_are_integers_elsewhere():
    number = Open(16, 19)
    assert (
        f"{number} {number!r}" == "16 16" and hash(number) == hash(16) and type(int(number)) is int
    )
    assert number / 2 == 8.0 and 0.5 * number == 8.0 and -number == -16 and other(-number) == -19
    again = pickle.loads(pickle.dumps(number))
    assert again == 16 and other(again) == 19
    assert Open(3, 4) // Open(2, 0) == 1  # a quotient that means nothing at the other shape


def pairs_of(batch, length):
    return Open(batch, 3), Open(length, 19)


@pytest.mark.parametrize("batch, length", [(1, 16), (1, 1), (5, 1), (2, 3), (3, 19)])
def test_loops_and_views_do_not_depend_on_the_shape(batch, length):
    """An extent that happens to be 1, or a product that happens to fit, merges nothing."""
    n, s = pairs_of(batch, length)
    x = TensorLayout.make((n, s, 8))
    turned = x.transpose((0, 2, 1))
    assert collapse([x]).extents == (batch * length * 8,)
    per_item = TensorLayout.make((n, 1, 8)).broadcast((n, s, 8))
    assert collapse([per_item, x]).extents == (batch, length, 8)
    assert len(collapse([turned, TensorLayout.make(turned.shape)]).extents) == 3
    assert reshape_groups((n, s, 8), (n * s, 2, 4)) == [((0, 1), (0,)), ((2,), (1, 2))]
    assert refine((n, s, 8), (n, s * 2, 4)) == (batch, length, 2, 4)
    assert x.reshape((n, s * 8)) is not None and turned.reshape((n, s * 8)) is None


def test_open_are_the_extents_that_differ_from_any_other():
    graphs = [
        load_graph(NETWORKS["attention"](), {"x": (batch, length, WIDTH)})
        for batch, length in ((1, 16), (3, 19), (3, 16))
    ]
    first, away, third = graphs
    for graph in (first, third):
        made = opened(graph, away, first)
        assert made.types == graph.types
        assert all(
            is_open(a) == (other(a) != b) == (b != c) or graph is third
            for name in graph.types
            for a, b, c in zip(
                made.types[name].shape, first.types[name].shape, away.types[name].shape, strict=True
            )
        )
        shape = made.types[made.inputs[0]].shape
        assert [is_open(d) for d in shape] == [True, True, False]
        assert [other(d) for d in shape] == [3, 19, WIDTH]
        reshapes = [n.spec.shape for n in made.nodes if n.spec.kind == "reshape"]
        assert reshapes and all(is_open(shape[0]) for shape in reshapes)


def test_graphs_of_other_nodes_stay_as_they_are():
    graph = load_graph(NETWORKS["attention"](), {"x": (1, 16, WIDTH)})
    strange = load_graph(NETWORKS["rows"](), {"x": (3, 19, WIDTH)})
    made = opened(graph, strange, graph)
    assert [n.spec for n in made.nodes] == [n.spec for n in graph.nodes]
    assert made.types == graph.types

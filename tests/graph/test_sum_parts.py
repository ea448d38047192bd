"""Sums over parts of channels, as split attention writes them."""

from __future__ import annotations

import numpy as np
import pytest
from small_graphs import Builder

import clnn
from clnn.graph.passes import optimise
from clnn.ops.movement.views import Reshape
from clnn.ops.rows.reduce import Reduce
from clnn.ops.rows.softmax import Softmax
from clnn.plan.schedule import make_plan
from clnn.target import Target

SHAPE = (2, 6, 5, 7)


def split_attention(parts=2, fn="sum", keepdims=False, axis=1, shared_gate=False):
    """Return the builder, and a convolution of gated parts that are summed."""
    b = Builder(x=SHAPE)
    n, _, h, w = SHAPE
    image = b.post_ops("relu", b.conv("x", parts * 12, group=2))
    split = b.add(Reshape((n, parts, 12, h, w)), image)
    pooled = b.add(Reduce("mean", (2, 3)), b.add(Reduce("sum", (1,), False), split))
    gates = b.conv(pooled, 12 if shared_gate else parts * 12, 1)
    if not shared_gate:
        gates = b.add(Softmax((1,)), b.add(Reshape((n, parts, 12)), gates))
    gates = b.add(Reshape((n, 1 if shared_gate else parts, 12, 1, 1)), gates)
    gated = b.post_ops("mul", split, gates)
    total = b.add(Reduce(fn, (axis,), keepdims), gated)
    return b, gated, total


def agree(graph, device):
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    options = clnn.Options(), clnn.Options(fuse=False)
    sessions = [clnn.compile_model(graph, device, o) for o in options]
    made = [session({"x": x}) for session in sessions]
    for session in sessions:
        session.close()
    for name, want in made[1].items():
        np.testing.assert_allclose(made[0][name], want, rtol=1e-5, atol=1e-5)


def sums(graph):
    return [n for n in graph.nodes if isinstance(n.spec, Reduce) and n.spec.fn == "sum"]


@pytest.mark.parametrize("parts", [2, 3, 4])
@pytest.mark.parametrize("shared_gate", [False, True], ids=["gates", "gate"])
def test_sums_of_parts_become_slices(device, parts, shared_gate):
    b, _, total = split_attention(parts, shared_gate=shared_gate)
    graph = b.graph(b.conv(total, 8, 1))
    made = optimise(graph)
    assert not sums(made)
    assert make_plan(made, Target()).copied_bytes == 0
    agree(graph, device)


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({"parts": 5}, 2),
        ({"fn": "max"}, 0),
        ({"keepdims": True}, 1),
        ({"axis": 2}, 1),
    ],
)
def test_other_sums_stay(device, options, left):
    b, _, total = split_attention(**options)
    graph = b.graph(total)
    assert len(sums(optimise(graph))) == left
    agree(graph, device)


def test_products_that_others_read_stay(device):
    b, gated, total = split_attention()
    graph = b.graph(total, gated)
    assert len(sums(optimise(graph))) == 1
    agree(graph, device)

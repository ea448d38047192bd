"""Dilated convolutions in parts without border: the same numbers, fewer multiplications, no copies."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from drawn_windows import drawn
from small_graphs import Builder

from clnn.graph.ir import check
from clnn.graph.passes import optimise
from clnn.ops.conv.spec import Conv2d
from clnn.ops.movement.views import Concat, Slice
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.options import Options
from clnn.runtime.device.device import select
from clnn.runtime.run.session import Session
from clnn.verification.reference import reference_values

splitting = importlib.import_module("clnn.graph.passes.split_windows")


@pytest.fixture
def eager(monkeypatch):
    """Convolutions of any size are split."""
    monkeypatch.setattr(splitting, "LEAST_FLOPS", 0)
    monkeypatch.setattr(splitting, "LEAST_EXTENT", 1)


def network(shape, window, oc=4, group=1, fn="relu", operand=None):
    """Return a dilated convolution with a bias and a step behind it, then a sum with itself."""
    b = Builder(x=shape)
    weights = b.const(oc, shape[1] // group, *window.kernel)
    steps = (PostOp(fn, operand=None if operand is None else 3),)
    operands = () if operand is None else (b.const(*operand),)
    y = b.add(Conv2d(window, group, steps), "x", weights, b.const(oc), *operands)
    return b.graph(y, b.post_ops("add", y, y))


def parts(graph):
    return [n for n in graph.nodes if isinstance(n.spec, Conv2d)]


def products(graph):
    return sum(n.spec.flops(graph.input_types(n), graph.output_types(n)) for n in parts(graph))


def test_random_windows_give_the_same_numbers(eager):
    split = 0
    for seed in range(300):
        window, shape = drawn(seed)
        graph = network(shape, window, group=1 + seed % 2)
        made = check(splitting.split_windows(graph))
        if made.nodes == graph.nodes:
            continue
        split += 1
        assert products(made) <= splitting.MOST_SHARE * products(graph)
        assert not any(any((*n.spec.window.before, *n.spec.window.after)) for n in parts(made))
        x = np.random.default_rng(seed).standard_normal(shape)
        want, got = reference_values(graph, {"x": x}), reference_values(made, {"x": x})
        for name in graph.outputs.values():
            np.testing.assert_allclose(got[name], want[name], rtol=1e-12, atol=1e-12)
    assert split > 60


def same(dilation, kernel=3):
    pad = dilation * (kernel // 2)
    return Window((kernel,) * 2, (1, 1), (dilation,) * 2, (pad,) * 2, (pad,) * 2)


@pytest.mark.parametrize(
    "dilation, convolutions, taps",
    [(36, 1, (1, 1)), (24, 9, (2, 2)), (12, 9, (2, 2))],
    ids=["a point", "bands of two and one", "bands of two and three"],
)
def test_taps_that_meet_no_data_are_gone(dilation, convolutions, taps):
    graph = optimise(network((1, 32, 28, 28), same(dilation), 32), fixed=True)
    assert len(parts(graph)) == convolutions
    assert parts(graph)[0].spec.window.kernel == taps


@pytest.mark.parametrize(
    "graph",
    [
        network((1, 32, 28, 28), same(1), 32),
        network((1, 32, 28, 28), same(1, 5), 32),
        network((1, 32, 28, 28), same(2), 32),
        network((1, 2, 28, 28), same(24), 2),
        network((1, 32, 28, 28), same(24), 32, fn="add", operand=(1, 1, 28, 28)),
    ],
    ids=["dense", "wide", "little border", "small", "another number at each place"],
)
def test_other_convolutions_stay_whole(graph):
    assert len(parts(optimise(graph, fixed=True))) == 1


def test_networks_of_other_shapes_and_bytes_stay_whole():
    graph = network((1, 32, 28, 28), same(24), 32)
    assert len(parts(optimise(graph))) == len(parts(optimise(graph, True, True))) == 1


@pytest.mark.parametrize("dilation", [12, 24, 36])
def test_parts_are_views_of_one_map_on_a_device(device, dilation):
    shape = (1, 32, 28, 28)
    graph = network(shape, same(dilation), 40, fn="mul", operand=(40, 1, 1))
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    want = reference_values(graph, {"x": x})
    with Session(optimise(graph, fixed=True), select(device), Options(merge=False)) as session:
        got = session({"x": x})
        moved = [
            step.node.name
            for step in session.plan.scheduled
            if isinstance(step.node.spec, Slice | Concat) and step.variant.launches
        ]
    assert not moved
    for public, name in graph.outputs.items():
        np.testing.assert_allclose(got[public], want[name], rtol=1e-4, atol=1e-4)

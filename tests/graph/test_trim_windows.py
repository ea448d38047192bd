"""Taps that meet no data are left out: the same numbers, a smaller window and border."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from drawn_windows import drawn
from small_graphs import Builder

from clnn.graph.ir import check
from clnn.graph.passes import optimise
from clnn.ops.conv.spec import Conv2d
from clnn.ops.shared.window import Window
from clnn.verification.reference import reference_values

trimming = importlib.import_module("clnn.graph.passes.trim_windows")


def network(shape, window, oc, group=1):
    b = Builder(x=shape)
    weights = b.const(oc, shape[1] // group, *window.kernel)
    return b.graph(b.add(Conv2d(window, group), "x", weights, b.const(oc)))


def window_of(graph):
    (window,) = [n.spec.window for n in graph.nodes if isinstance(n.spec, Conv2d)]
    return window


def meets(window, axis, tap, extent, out):
    """Whether a tap meets data: by trying every output."""
    at = (
        o * window.strides[axis] + tap * window.dilations[axis] - window.before[axis]
        for o in range(out)
    )
    return any(0 <= place < extent for place in at)


def test_random_windows_give_the_same_numbers():
    trimmed = 0
    for seed in range(400):
        window, shape = drawn(seed)
        rank, extents = len(shape) - 2, shape[2:]
        group = (1, 2, 4)[seed % 3]
        graph = network(shape, window, 4, group)
        made = check(trimming.trim_windows(graph))
        out = graph.types[graph.nodes[0].outputs[0]].shape[2:]
        live = [
            [t for t in range(window.kernel[a]) if meets(window, a, t, extents[a], out[a])]
            for a in range(rank)
        ]
        assert [list(trimming.live_taps(window, a, extents[a], out[a])) for a in range(rank)] == [
            list(range(taps[0], taps[-1] + 1)) if taps else [] for taps in live
        ]
        if window_of(made) == window:
            continue
        trimmed += 1
        assert window_of(made).kernel == tuple(taps[-1] - taps[0] + 1 for taps in live)
        x = np.random.default_rng(seed).standard_normal(shape)
        want, got = reference_values(graph, {"x": x}), reference_values(made, {"x": x})
        for name in graph.outputs.values():
            np.testing.assert_allclose(got[name], want[name], rtol=1e-12, atol=1e-12)
    assert trimmed > 60


def same(dilation):
    return Window((3, 3), (1, 1), (dilation,) * 2, (dilation,) * 2, (dilation,) * 2)


@pytest.mark.parametrize("group", [1, 32])
@pytest.mark.parametrize(
    ("dilation", "fixed", "kernel", "border"),
    [(24, True, (1, 1), 0), (24, False, (3, 3), 24), (12, True, (3, 3), 12)],
)
def test_only_for_extents_that_are_known(group, dilation, fixed, kernel, border):
    graph = network((1, 32, 16, 16), same(dilation), 32, group)
    made = optimise(graph, fixed=fixed)
    windows = [n.spec.window for n in made.nodes if isinstance(n.spec, Conv2d)]
    assert [(w.kernel, w.before) for w in windows] == [(kernel, (border,) * 2)]


def test_quantised_networks_keep_their_windows():
    graph = network((1, 32, 16, 16), same(24), 32)
    assert window_of(optimise(graph, True, True)) == same(24)


@pytest.mark.parametrize("dilation", [24, 12], ids=["taps for nothing", "parts"])
@pytest.mark.parametrize("value", [np.inf, np.nan, 1.0])
def test_weights_that_make_nan_of_a_border_keep_it(dilation, value):
    graph = network((1, 32, 28, 28), same(dilation), 64)
    weights = graph.consts[graph.nodes[0].inputs[1]]
    weights[0, 0, 0, 0] = value
    made = optimise(graph, fixed=True)
    windows = [n.spec.window for n in made.nodes if isinstance(n.spec, Conv2d)]
    assert (windows == [same(dilation)]) == (not np.isfinite(value))
    x = np.random.default_rng(0).standard_normal((1, 32, 28, 28))
    with np.errstate(invalid="ignore"):
        want, got = reference_values(graph, {"x": x}), reference_values(made, {"x": x})
    for name in graph.outputs.values():
        np.testing.assert_allclose(got[name], want[name], rtol=1e-9, atol=1e-9)

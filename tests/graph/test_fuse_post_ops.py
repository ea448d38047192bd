"""Elementwise steps join the node before them, where nothing else wants what lies between."""

from __future__ import annotations

import numpy as np
import pytest
from open_images import Net
from small_graphs import Builder

from clnn.compile import load_graph
from clnn.graph.ir import check
from clnn.graph.passes import optimise
from clnn.verification.reference import reference_values


@pytest.mark.parametrize("readers", [1, 2])
def test_an_output_that_others_read_too_stays(readers):
    b = Builder(x=(1, 3, 5, 6))
    made = b.conv("x", 4)
    graph = b.graph(made, *(b.post_ops(fn, made) for fn in ("relu", "sigmoid")[:readers]))
    fused = check(optimise(graph))
    x = np.linspace(-2, 2, 90).reshape(1, 3, 5, 6)
    want, got = reference_values(graph, {"x": x}), reference_values(fused, {"x": x})
    for public, name in graph.outputs.items():
        np.testing.assert_allclose(got[fused.outputs[public]], want[name], rtol=1e-12)


@pytest.mark.parametrize("batch", [1, 2])
def test_what_is_made_of_constants_takes_in_no_batch(batch):
    """A table that is as large as one image is added to the images, not they to it."""
    net = Net()
    table = net.add("Resize", net.weight(1, 4, 3, 5), "", net.scales(1, 1, 2, 2), mode="linear")
    turned = net.add("Transpose", table, perm=[0, 1, 3, 2])
    image = net.conv("x", 3, 4, relu=False)
    model = net.model(net.add("Add", net.add("Sigmoid", turned), image))
    graph = load_graph(model, {"x": (batch, 3, 10, 6)})
    fused = check(optimise(graph))
    steps = {
        node.spec.kind: len(node.spec.post_ops) for node in fused.nodes if node.spec.fuses_post_ops
    }
    assert steps["conv2d"] == 1
    assert sum(steps.values()) == 2  # the sigmoid is by itself, or in what is before it
    x = np.linspace(-2, 2, batch * 180).reshape(batch, 3, 10, 6)
    want, got = reference_values(graph, {"x": x}), reference_values(fused, {"x": x})
    for public, name in graph.outputs.items():
        np.testing.assert_allclose(got[fused.outputs[public]], want[name], rtol=1e-12)


@pytest.mark.parametrize("side", [1, 5])
def test_gates_of_one_pixel_stay_gates(side):
    """An image of one pixel has the nodes that larger ones have."""
    net = Net()
    x = net.conv("x", 3, 8)
    gate = net.conv(net.add("GlobalAveragePool", x), 8, 8, relu=False)
    model = net.model(net.add("Mul", x, net.add("Sigmoid", gate)))
    graph = load_graph(model, {"x": (2, 3, side, side)})
    fused = check(optimise(graph))
    assert [n.spec.kind for n in fused.nodes] == ["conv2d", "reduce", "conv2d", "eltwise"]
    values = np.linspace(-2, 2, 6 * side * side).reshape(2, 3, side, side)
    want, got = (reference_values(one, {"x": values}) for one in (graph, fused))
    for public, name in graph.outputs.items():
        np.testing.assert_allclose(got[fused.outputs[public]], want[name], rtol=1e-12)

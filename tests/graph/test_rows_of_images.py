"""Products whose rows become an image with a border."""

from __future__ import annotations

import numpy as np
import pytest
from small_graphs import Builder

import clnn
from clnn.graph.evaluate import evaluate
from clnn.graph.passes import optimise
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.views import Reshape, Transpose
from clnn.plan.schedule import make_plan
from clnn.target import Target

HEIGHT, WIDTH, CHANNELS = 5, 6, 16


def network(residual=None, *, kernel=3, batch=2, view=(HEIGHT, WIDTH), also="", bias=(CHANNELS,)):
    """Tokens through a product, seen as an image, through filters of one channel; residual: its shape."""
    b = Builder(x=(batch, HEIGHT * WIDTH, 8), **({"z": residual} if residual else {}))
    made = b.add(Gemm(), "x", b.const(8, CHANNELS), None)
    made = b.post_ops("add", made, b.const(*bias))
    made = b.post_ops("add", made, "z") if residual else made
    turned = b.add(Transpose((0, 2, 1)), made)
    image = b.add(Reshape((batch, CHANNELS, *view)), turned)
    out = b.conv(image, CHANNELS, kernel, group=CHANNELS)
    also = {"product": (made,), "turned": (turned,), "image": (image,)}.get(also, ())
    return b.graph(b.post_ops("relu", out), *also)


def feeds(graph):
    rng = np.random.default_rng(0)
    return {n: rng.standard_normal(graph.types[n].shape).astype(np.float32) for n in graph.inputs}


def require_equal(graph, made):
    want, got = evaluate(graph, feeds(graph)), evaluate(made, feeds(graph))
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-5)


def products(graph):
    return [graph.types[n.outputs[0]].rank for n in graph.nodes if isinstance(n.spec, Gemm)]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    "residual", [None, (HEIGHT * WIDTH, CHANNELS), (1, HEIGHT * WIDTH, 1), (1, CHANNELS)]
)
def test_nothing_is_copied_for_the_border(device, residual, batch):
    graph = network(residual, batch=batch)
    made = optimise(graph, fixed=True)
    assert products(made) == [4]
    assert make_plan(made, Target()).copied_bytes == 0
    require_equal(graph, made)
    want = evaluate(graph, feeds(graph))["out0"]
    with clnn.compile_model(graph, device) as session:
        np.testing.assert_allclose(session(feeds(graph))["out0"], want, rtol=1e-4, atol=1e-4)


def test_constants_of_each_row_are_split():
    graph = network(bias=(HEIGHT * WIDTH, CHANNELS))
    made = optimise(graph, fixed=True)
    assert products(made) == [4]
    require_equal(graph, made)


def test_an_image_that_is_an_output_stays_one():
    graph = network(also="image")
    made = optimise(graph, fixed=True)
    assert products(made) == [4]
    require_equal(graph, made)


@pytest.mark.parametrize(
    "changes", [{"kernel": 1}, {"also": "product"}, {"also": "turned"}, {"fixed": False}]
)
def test_others_stay(changes):
    fixed = changes.pop("fixed", True)
    graph = network(**changes)
    made = optimise(graph, fixed=fixed)
    assert products(made) == [3]
    require_equal(graph, made)

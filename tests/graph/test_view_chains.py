"""Chains of reshapes and transposes as one split, one transposition and one join."""

from __future__ import annotations

import numpy as np
import pytest
from small_graphs import Builder

import clnn
from clnn.graph.passes import optimise
from clnn.graph.passes.dead import remove_dead
from clnn.graph.passes.view_chains import VIEWS, shorten_chains
from clnn.graph.passes.views import merge_views
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.views import Reshape, Transpose
from clnn.plan.schedule import make_plan
from clnn.target import Target

EXTENTS = (1, 2, 3, 4, 6, 8, 12)


def chain(builder, source, *views):
    """Add views: tuples are shapes, lists are permutations."""
    for view in views:
        spec = Transpose(tuple(view)) if isinstance(view, list) else Reshape(view)
        source = builder.add(spec, source)
    return source


def results(graph, x):
    values = {"x": x}
    for node in graph.nodes:
        (values[node.outputs[0]],) = node.spec.reference(values[node.inputs[0]])
    return [values[name] for name in graph.outputs.values()]


def random_views(rng, shape):
    for k in range(rng.integers(1, 8)):
        if k % 2:
            view = [int(axis) for axis in rng.permutation(len(shape))]
            shape = tuple(shape[axis] for axis in view)
            yield view
            continue
        left, extents = int(np.prod(shape)), []
        while left > 1 and len(extents) < 5:
            extents.append(int(rng.choice([d for d in range(1, left + 1) if left % d == 0])))
            left //= extents[-1]
        shape = (*extents, left)
        yield shape


@pytest.mark.parametrize("seed", range(20))
def test_random_chains_keep_their_elements(seed):
    rng = np.random.default_rng(seed)
    shortened = 0
    for _ in range(20):
        shape = tuple(int(d) for d in rng.choice(EXTENTS, rng.integers(1, 5)))
        b = Builder(x=shape)
        graph = b.graph(chain(b, "x", *random_views(rng, shape)))
        before = remove_dead(merge_views(graph))
        after = remove_dead(shorten_chains(before))
        shortened += len(after.nodes) < len(before.nodes)
        x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        np.testing.assert_array_equal(results(after, x), results(graph, x))
    assert shortened


def test_a_value_within_that_others_read_stays():
    b = Builder(x=(6, 4))
    within = chain(b, "x", (2, 3, 4), [1, 0, 2])
    out = chain(b, within, (3, 2, 2, 2), [0, 2, 1, 3], (6, 4))
    made = remove_dead(shorten_chains(b.graph(within, out)))
    x = np.arange(24, dtype=np.float32).reshape(6, 4)
    for a, e in zip(results(made, x), results(b.graph(within, out), x), strict=True):
        np.testing.assert_array_equal(a, e)


def test_chains_of_three_views_stay():
    b = Builder(x=(1, 6, 4, 4))
    graph = b.graph(chain(b, "x", (1, 2, 3, 4, 4), [0, 2, 1, 3, 4], (1, 6, 4, 4)))
    assert [n.spec for n in shorten_chains(graph).nodes] == [n.spec for n in graph.nodes]


def patches(b, image):
    """Patches of 2 x 2 as rows, channels joined with rows first; a product; and the image again."""
    n, c, h, w = b.types[image].shape
    rows = chain(
        b, image, (n * c * h // 2, 2, w // 2, 2), [0, 2, 1, 3], (n, c, h * w // 4, 4), [0, 3, 2, 1]
    )
    made = b.add(Gemm(), chain(b, rows, (n * 4, h * w // 4, c)), b.const(c, c))
    back = chain(b, made, (n, 4, h * w // 4, c), [0, 3, 2, 1], (n * c * h // 2, w // 2, 2, 2))
    return chain(b, back, [0, 2, 1, 3], (n, c, h, w))


def windows(b, image):
    """Windows of 3 x 3 as rows; a product; the image; the same of a grid of 3 x 3."""
    n, c, h, w = b.types[image].shape
    for cut in ((h // 3, 3, w // 3, 3), (3, h // 3, 3, w // 3)):
        joined = (n, cut[0] * cut[2], cut[1] * cut[3], c)
        rows = chain(b, image, (n, c, *cut), [0, 2, 4, 3, 5, 1], joined)
        made = b.add(Gemm(), rows, b.const(c, c))
        parts = chain(b, made, (n, cut[0], cut[2], cut[1], cut[3], c), [0, 5, 1, 3, 2, 4])
        image = chain(b, parts, (n, c, h, w))
    return image


@pytest.mark.parametrize(("network", "copies"), [(patches, 2), (windows, 4)])
def test_images_cut_and_put_together_are_copied_in_rows_of_channels(network, copies, device):
    b = Builder(x=(2, 16, 12, 12))
    graph = b.graph(b.conv(network(b, b.conv("x", 16)), 16))
    plan = make_plan(optimise(graph, fixed=True), Target())
    moved = [s for s in plan.scheduled if s.node.spec.kind == "reshape" and s.variant.launches]
    assert len(moved) == copies
    for step in moved:
        assert step.variant.name == "copy"
        (params,) = (launch.params for launch in step.variant.launches)
        assert set(params["inner_pitches"]) == {1}
    x = np.random.default_rng(0).standard_normal((2, 16, 12, 12)).astype(np.float32)
    options = clnn.Options(), clnn.Options(fuse=False)
    made = []
    for option in options:
        with clnn.compile_model(graph, device, option) as session:
            made.append(session({"x": x})["out0"])
    np.testing.assert_allclose(*made, rtol=1e-4, atol=1e-4)


def test_graphs_that_other_shapes_share_keep_their_chains():
    """Which factors nest, and which extents are 1, depends on the shape."""
    b = Builder(x=(2, 16, 12, 12))
    graph = b.graph(windows(b, "x"))
    merged = remove_dead(merge_views(graph, fixed=False))
    kept, found = (
        [n.spec for n in g.nodes if isinstance(n.spec, VIEWS)] for g in (merged, optimise(graph))
    )
    assert found == kept

"""Group normalisation written as a normalisation of rows between two reshapes."""

from __future__ import annotations

import numpy as np
import pytest
from small_graphs import Builder

import clnn
from clnn.graph.passes import optimise
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.movement.views import Reshape
from clnn.ops.rows.norm import Normalise
from clnn.ops.shared.functions import PostOp
from clnn.plan.schedule import make_plan
from clnn.target import Target

AFFINE = (PostOp("mul", operand=1), PostOp("add", operand=2))


def grouped(b, x, groups, scale, shift, split=None, axes=(2,)):
    """Add a normalisation of `groups` groups, with a scale and shift of each group and each channel."""
    n, c, h, w = b.types[x].shape
    rows = b.add(Reshape(split or (n, groups, c // groups * h * w)), x)
    made = b.add(Normalise(axes, 1e-3, post_ops=AFFINE), rows, b.fixed(scale), b.fixed(shift))
    image = b.add(Reshape((n, c, h, w)), made)
    return rows, b.add(Eltwise(AFFINE), image, b.const(c, 1, 1), b.const(c, 1, 1))


def network(groups=2, scale=None, shift=None, **options):
    b = Builder(x=(2, 6, 5, 7))
    shape = (groups, 1)
    scale = np.linspace(1.5, 2, groups).reshape(shape) if scale is None else scale
    shift = np.linspace(-1, 1, groups).reshape(shape) if shift is None else shift
    values = (np.asarray(a, np.float32) for a in (scale, shift))
    rows, made = grouped(b, b.conv("x", 24), groups, *values, **options)
    return b, rows, b.conv(made, 8)


def results(graph, device):
    x = np.random.default_rng(0).standard_normal((2, 6, 5, 7)).astype(np.float32)
    options = clnn.Options(), clnn.Options(fuse=False)
    sessions = [clnn.compile_model(graph, device, o) for o in options]
    made = [session({"x": x})["out0"] for session in sessions]
    for session in sessions:
        session.close()
    return made


@pytest.mark.parametrize("groups", [1, 2, 3, 24])
@pytest.mark.parametrize("idle", [False, True], ids=["scaled", "idle"])
def test_rows_between_reshapes_become_groups(device, groups, idle):
    given = {"scale": np.ones((groups, 1)), "shift": np.zeros((groups, 1))} if idle else {}
    b, _, out = network(groups, **given)
    graph = b.graph(out)
    made = optimise(graph)
    specs = [n.spec for n in made.nodes]
    norms = [s for s in specs if isinstance(s, Normalise)]
    assert [(s.groups, s.axes) for s in norms] == [(0 if groups == 24 else groups, (2, 3))]
    assert not any(isinstance(s, Reshape) for s in specs)
    assert [p.fn for p in norms[0].post_ops] == ["mul", "add"] * (1 if idle else 2)
    assert make_plan(made, Target()).copied_bytes == 0
    got, want = results(graph, device)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_groups_with_their_channels_and_pixels_apart(device):
    b, _, out = network(
        3,
        np.arange(3).reshape(3, 1, 1, 1),
        np.ones(1),
        split=(2, 3, 8, 5, 7),
        axes=(2, 3, 4),
    )
    graph = b.graph(out)
    assert not any(isinstance(n.spec, Reshape) for n in optimise(graph).nodes)
    got, want = results(graph, device)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"split": (2, 2, 12, 35), "axes": (2,)},
        {"split": (2, 2, 12, 35), "axes": (1, 2, 3)},
        {"split": (1, 4, 420)},
        {"split": (2, 5, 168)},
        {"scale": np.ones((1, 420))},
        {"scale": np.arange(4).reshape(2, 2, 1)},
    ],
    ids=["some-axes", "more-axes", "images-joined", "channels-cut", "of-elements", "of-images"],
)
def test_other_rows_stay(options):
    shape = {"scale": np.ones(1), "shift": np.zeros(1)} | options
    b, _, out = network(**shape)
    assert sum(isinstance(n.spec, Reshape) for n in optimise(b.graph(out)).nodes) == 2


def test_rows_that_are_read_elsewhere_stay(device):
    b, rows, out = network()
    graph = b.graph(out, b.post_ops("relu", rows))
    assert any(isinstance(n.spec, Reshape) for n in optimise(graph).nodes)
    got, want = results(graph, device)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_a_reshape_ends_one_normalisation_and_begins_none(device):
    """Of two normalisations in a row with a reshape between them, one is joined."""
    b = Builder(x=(2, 6, 5, 7))
    rows = b.add(Reshape((2, 6, 35)), "x")
    image = b.add(Reshape((2, 6, 5, 7)), b.add(Normalise((2,), 1e-3), rows))
    out = b.add(Reshape((2, 6, 35)), b.add(Normalise((2, 3), 0.5), image))
    graph = b.graph(b.post_ops("relu", out))
    assert sum(isinstance(n.spec, Reshape) for n in optimise(graph).nodes) == 1
    got, want = results(graph, device)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)

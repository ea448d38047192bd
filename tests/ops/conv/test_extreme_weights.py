"""Weights that are infinite, huge, tiny or no numbers: every kernel sums what plain products are."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_op, normal, single_node
from small_graphs import Builder
from targets import GPU, generate_for

from clnn.graph.passes import optimise
from clnn.ops.conv.separable import Separable
from clnn.ops.conv.spec import Conv2d
from clnn.ops.conv.transpose import ConvTranspose
from clnn.ops.conv.winograd import LARGEST_WEIGHT, SMALLEST_WEIGHT, fits_transforms, matrices
from clnn.ops.gemm.spec import Gemm
from clnn.ops.shared.window import Window
from clnn.options import Options
from clnn.plan.schedule import make_plan
from clnn.runtime.device.device import select
from clnn.runtime.run.session import Session
from clnn.target import Target

pytestmark = pytest.mark.dealt  # kernels that are slow to build

CPU = Target("cpu", 16, 2, 256, 32768, frozenset({"fp64"}))
EXTREMES = {"infinite": np.inf, "no number": np.nan, "huge": 1e38, "negative": -np.inf}


def window(k=3, stride=1, pad=1):
    return Window((k, k), (stride, stride), (1, 1), (pad, pad), (pad, pad))


def ordinary(shape, oc, group=1, k=3):
    return [normal(shape), normal((oc, shape[1] // group, k, k), 1), normal((oc,), 2)]


CASES = {
    "winograd": (Conv2d(window()), ordinary((1, 16, 9, 10), 32)),
    "stride": (Conv2d(window(stride=2)), ordinary((1, 16, 12, 12), 32)),
    "point": (Conv2d(window(1, pad=0)), ordinary((1, 16, 5, 7), 24, k=1)),
    "depthwise": (Conv2d(window(), 8), ordinary((1, 8, 7, 6), 8, 8)),
    "grouped": (Conv2d(window(), 2), ordinary((1, 8, 7, 6), 12, 2)),
    "separable": (
        Separable(window()),
        [
            normal((1, 8, 7, 6)),
            normal((8, 1, 3, 3), 1),
            None,
            normal((12, 8, 1, 1), 3),
            normal((12,), 4),
        ],
    ),
    "transposed": (
        ConvTranspose((4, 4), (2, 2), (1, 1), (1, 1), (12, 14)),
        [normal((1, 8, 6, 7)), normal((8, 12, 4, 4), 1), normal((12,), 2)],
    ),
    "transposed, depthwise": (
        ConvTranspose((3, 3), (2, 2), (1, 1), (0, 0), (13, 15), 8),
        [normal((1, 8, 6, 7)), normal((8, 1, 3, 3), 1), None],
    ),
    "product": (Gemm(), [normal((7, 20)), normal((20, 36), 1), normal((36,), 2)]),
}


@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_every_kernel_of_one_extreme_weight(device, monkeypatch, name, extreme, kind):
    spec, inputs = CASES[name]
    if kind == "gpu":
        generate_for(monkeypatch, GPU)
    weights = inputs[1].copy()
    weights.reshape(-1)[[2, weights.size // 2]] = EXTREMES[extreme]
    scale = np.float32(1e-3 if extreme == "huge" else 1)
    consts = tuple(k for k, a in enumerate(inputs) if k and a is not None)
    given = [inputs[0] * scale, weights, *inputs[2:]]
    check_op(device, spec, given, consts=consts, every=name == "winograd")


@pytest.mark.parametrize("size", [1e-40, 1e-30, 1e36])
def test_weights_that_are_all_tiny_or_huge(device, size):
    spec, inputs = CASES["winograd"]
    x = inputs[0] * np.float32(1 if size > 1 else 1e20)
    check_op(device, spec, [x, inputs[1] * np.float32(size), None], consts=(1,), every=True)


def test_pads_add_nothing_to_what_an_infinite_weight_meets():
    weights = np.ones((1, 1, 3, 3), np.float32)
    weights[..., 0, 0] = np.inf
    (y,) = Conv2d(window()).reference(np.ones((1, 1, 3, 3), np.float32), weights, None)
    np.testing.assert_array_equal(y[0, 0], [[4, 6, 4], [6, np.inf, np.inf], [4, np.inf, np.inf]])


@pytest.mark.parametrize("target", [CPU, GPU], ids=["cpu", "gpu"])
def test_transforms_are_left_out_for_extreme_weights_alone(target):
    spec, inputs = CASES["winograd"]

    def names(weights):
        found = []

        def note(node, problem, variants):
            if node.name == "node":
                found.extend([*variants, *spec.candidates(problem)])
            return variants[0]

        make_plan(single_node(spec, [inputs[0], weights, None], (1,)), target, note)
        return {v.name for v in found if "winograd" in v.name}

    assert names(inputs[1]) and names(np.zeros_like(inputs[1]))
    assert not names(inputs[1] * np.float32(1e35)) and not names(inputs[1] * np.float32(1e-35))


def test_limits_leave_room_for_what_transforms_make_of_inputs():
    growth = []
    for m, stride in ((2, 1), (4, 1), (6, 1), (2, 2), (3, 2), (4, 2)):
        at, g, bt = (np.abs(np.array(a)) for a in vars(matrices(m, stride)).values())
        growth.append(float((at @ (g.sum(1) * bt.sum(1))).max()) ** 2)
    assert max(growth) < 2**13
    assert np.finfo(np.float32).max > LARGEST_WEIGHT * 2.0**64 * 2**13 * 2**12
    assert fits_transforms(0.0) and fits_transforms(1.0) and fits_transforms(SMALLEST_WEIGHT)
    assert not any(map(fits_transforms, (np.inf, np.nan, 1e10, 1e-38)))


def scaled(weight, factor):
    """A convolution of 1e-20 by `weight`, and a product with `factor`."""
    b = Builder(x=(1, 4, 6, 6))
    weights = b.fixed(np.full((4, 4, 1, 1), weight, np.float32))
    conv = b.add(Conv2d(window(1, pad=0)), "x", weights)
    return b.graph(b.post_ops("mul", conv, b.fixed(np.full((1, 4, 1, 1), factor, np.float32))))


@pytest.mark.parametrize("weight,factor", [(1e20, 1e30), (-1e25, 1e20), (1e-20, 1e-30)])
def test_a_scale_stays_apart_where_it_would_make_weights_infinite_or_zero(device, weight, factor):
    graph = optimise(scaled(weight, factor))
    x = np.full((1, 4, 6, 6), 1e-20 if factor > 1 else 1e20, np.float32)
    with Session(graph, select(device), Options()) as session:
        (got,) = session({"x": x}).values()
    want = 4 * np.float64(x[0, 0, 0, 0]) * weight * factor
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_a_scale_joins_weights_some_of_which_become_tiny():
    graph = scaled(1.0, 1e-3)
    weights = graph.consts["w0"]
    weights[0, 0] = 1e-37
    (node,) = optimise(graph).nodes
    assert not node.spec.post_ops

"""Equalisation and bias correction: float networks stay what they are, and simulations lose less."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import clnn
from clnn.arith.espdl import FLOOR
from clnn.bridges.bias import average_error, window_means
from clnn.bridges.equalise import equalised, pairs
from clnn.bridges.simulate import float_layers
from clnn.errors import SettingError
from clnn.graph.builder import GraphBuilder
from clnn.ops.conv.spec import Conv2d
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.pool.spec import Pool
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.types import F32, TensorType
from clnn.verification.reference import reference_values

SAME = Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
POINT = Window((1, 1), (1, 1), (1, 1), (0, 0), (0, 0))
HALF = Window((2, 2), (2, 2), (1, 1), (0, 0), (0, 0))
UNEVEN = 2.0 ** np.array([-6, -3, 0, 0, 2, 5, 0, 1])  # sizes of channels


def network(activation=("relu",), seed=0):
    """Return a network whose depthwise layer has channels of very different sizes, and feeds."""
    rng = np.random.default_rng(seed)
    build = GraphBuilder()

    def filtered(x, window, group, sizes, *shape):
        values = rng.normal(0, 1.5 / np.sqrt(np.prod(shape[1:])), shape) * sizes.reshape(
            -1, 1, 1, 1
        )
        bias = rng.normal(0, 0.2, shape[0]) * sizes
        both = (build.const(v.astype(np.float32)) for v in (values, bias))
        made = build.add(Conv2d(window, group), x, *both)
        return build.add(Eltwise((PostOp(activation[0], activation[1:]),)), made)

    x = build.input("x", TensorType((1, 3, 8, 8), F32))
    stem = filtered(x, SAME, 1, 1 / UNEVEN, 8, 3, 3, 3)
    deep = filtered(stem, SAME, 8, UNEVEN, 8, 1, 3, 3)
    small = build.add(Pool(HALF, "max"), deep)
    wide = filtered(small, POINT, 2, np.ones(6), 6, 4, 1, 1)
    feeds = [{"x": rng.normal(0, 1, (1, 3, 8, 8)).astype(np.float32)} for _ in range(6)]
    return build.graph({"y": wide}, "uneven"), feeds


def reals(graph, feed):
    return reference_values(graph, feed)[graph.outputs["y"]]


def ends(graph, node, axis):
    """Return the largest weight of each channel along an axis."""
    weights = np.abs(graph.consts[node.inputs[1]])
    return weights.max(tuple(a for a in range(4) if a != axis))


def test_channels_share_their_sizes_and_results_keep_every_bit():
    graph, feeds = network()
    found = pairs(graph)
    assert [p.activation for p in found] == ["relu", "relu"]
    made = equalised(graph, found, {})
    for feed in feeds:
        np.testing.assert_array_equal(reals(made, feed), reals(graph, feed))
    first, second = pairs(made)
    for pair in (first, second):
        before = ends(graph, found[0].second, 0)
        after = ends(made, pair.first, 0)
        assert after.max() / after.min() < 16 < before.max() / before.min()
    assert set(graph.consts) == set(network()[0].consts)  # the given graph is as it was


def test_a_clip_at_six_bounds_what_channels_grow_to():
    graph, feeds = network(("clip", 0.0, 6.0))
    found = pairs(graph)
    values = [reference_values(graph, f) for f in feeds]
    peaks = {p.value: np.max([v[p.value].max((0, 2, 3)) for v in values], 0) for p in found}
    assert any((p >= 6).any() for p in peaks.values())
    made = equalised(graph, found, peaks)
    changed = [
        not np.array_equal(ends(made, p.first, 0), ends(graph, q.first, 0))
        for p, q in zip(pairs(made), found, strict=True)
    ]
    assert any(changed)
    for feed in feeds:  # of the calibration: to the bit
        np.testing.assert_array_equal(reals(made, feed), reals(graph, feed))


def test_what_is_read_twice_or_is_an_output_stays():
    build = GraphBuilder()
    x = build.input("x", TensorType((1, 2, 2, 2), F32))
    weights = build.const(np.array([[1, 2], [64, 8]], np.float32).reshape(2, 2, 1, 1))
    one = build.add(Conv2d(POINT), x, weights)
    two = build.add(Conv2d(POINT), one, weights)
    graph = build.graph({"y": two})  # one constant for both layers: each gets its own
    (pair,) = pairs(graph)
    feed = {"x": np.arange(8, dtype=np.float32).reshape(1, 2, 2, 2)}
    made = equalised(graph, [pair], {})
    assert made.consts.keys() != graph.consts.keys()
    np.testing.assert_array_equal(reals(made, feed), reals(graph, feed))
    assert pairs(build.graph({"y": two, "z": one})) == []
    both = build.add(Eltwise((PostOp("add", operand=1),)), one, two)
    assert pairs(build.graph({"y": both})) == []


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**31),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(0, 2),
    st.integers(0, 2),
    st.integers(1, 2),
)
def test_the_average_error_is_that_of_a_convolution(
    seed, group, kernel, stride, top, left, dilation
):
    rng = np.random.default_rng(seed)
    window = Window((kernel, 2), (stride, 1), (dilation, 1), (top, left), (1, 0))
    image, error = rng.normal(0, 1, (4, 7, 6)), rng.normal(0, 1, (8, 4 // group, kernel, 2))
    got = average_error(error, group, window_means(image, window))
    (whole,) = Conv2d(window, group).reference(image[None], error)
    np.testing.assert_allclose(got, whole.mean((0, 2, 3)), atol=1e-12)


@pytest.mark.parametrize("target", ["tidl-8", "espdl-int8", "mli-fx16-fx8"])
def test_eight_bits_with_one_scale_survive_uneven_channels(device, target):
    graph, feeds = network()

    def snr(**how):
        with clnn.quantize(graph, feeds, target, device, **how) as made:
            return made.report(feeds).outputs["y"][0]

    plain = snr(equalise=False, correct_bias=False)
    assert snr(correct_bias=False) > plain + 6
    assert snr() > 20


def test_biases_take_back_what_rounding_adds(device):
    rng = np.random.default_rng(5)
    build = GraphBuilder()
    x = build.input("x", TensorType((1, 16, 6, 6), F32))
    weights = rng.normal(0, 0.02, (8, 16, 3, 3)).astype(np.float32)
    weights[0, 0, 0, 0] = 1.9  # makes the steps of all others large
    graph = build.graph({"y": build.add(Conv2d(SAME), x, build.const(weights))})
    feeds = [{"x": rng.random((1, 16, 6, 6), np.float32)} for _ in range(4)]

    def mean_error(**how):
        with clnn.quantize(graph, feeds, "tidl-8", device, **how) as made:
            errors = [made(f)["y"] - reals(graph, f) for f in feeds]
        return np.abs(np.mean(errors, (0, 1, 3, 4))).mean()

    assert mean_error() < mean_error(correct_bias=False) / 4


def test_scales_for_each_channel(device):
    graph, feeds = network()
    for target in ("tidl-8", "espdl-int8", "mli-sa8"):
        with clnn.quantize(graph, feeds, target, device, per_channel=True, equalise=True) as made:
            assert made.report(feeds).outputs["y"][0] > 20
            if target == "espdl-int8":
                rules = {
                    n.spec.arith.rounding for n in made.graph.nodes if isinstance(n.spec, Conv2d)
                }
                assert FLOOR in rules and made.chosen.rounding == "half_even"
    with pytest.raises(SettingError, match="openvx-q78 has no scales for each channel"):
        clnn.quantize(graph, feeds, "openvx-q78", device, per_channel=True)


def test_passes_that_come_first_leave_pairs():
    graph, _ = network()
    assert len(pairs(float_layers(graph))) == 2

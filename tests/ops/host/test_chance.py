"""Random numbers: their distribution, and that a seed repeats them."""

from __future__ import annotations

import numpy as np
import pytest
from harness import rng
from onnx import TensorProto, helper
from onnx_models import model, value
from reference_engines import one_node

import clnn
from clnn.ops.host.registry import HostNode, compute


def drawn(op, *inputs, **attrs):
    return compute(HostNode(op, 22, attrs), inputs)[0]


@pytest.mark.parametrize("like", [False, True])
def test_normal_and_uniform_numbers(like):
    more = {} if like else {"shape": [200, 100]}
    inputs = [np.zeros((200, 100), np.float32)] if like else []
    suffix = "Like" if like else ""
    normal = drawn("RandomNormal" + suffix, *inputs, mean=2.0, scale=3.0, seed=5.0, **more)
    assert normal.dtype == np.float32 and normal.shape == (200, 100)
    assert abs(normal.mean() - 2) < 0.1 and abs(normal.std() - 3) < 0.1
    even = drawn("RandomUniform" + suffix, *inputs, low=-1.0, high=3.0, seed=5.0, dtype=11, **more)
    assert even.dtype == np.float64 and -1 <= even.min() < -0.9 and 2.9 < even.max() < 3
    assert abs(even.mean() - 1) < 0.05


def test_a_seed_repeats_the_numbers_and_none_draws_others():
    shape = {"shape": [50]}
    first, again = (drawn("RandomNormal", seed=1.5, **shape) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert (first != drawn("RandomNormal", seed=2.5, **shape)).any()
    assert (drawn("RandomNormal", **shape) != drawn("RandomNormal", **shape)).any()


def test_bernoulli_draws_by_chances():
    chances = np.full((300, 100), 0.3, np.float32)
    found = drawn("Bernoulli", chances, seed=1.0)
    assert found.dtype == np.float32 and set(np.unique(found)) == {0, 1}
    assert abs(found.mean() - 0.3) < 0.02
    sure = (rng().random((4, 5)) < 0.5).astype(np.float64)
    np.testing.assert_array_equal(drawn("Bernoulli", sure, dtype=9), sure.astype(bool))


def test_multinomial_draws_by_logarithms_of_weights():
    weights = np.array([[1, 3, 0, 4], [5, 0, 5, 0]]) / 1.0
    with np.errstate(divide="ignore"):
        found = drawn(
            "Multinomial", np.log(weights).astype(np.float32), sample_size=20000, seed=3.0
        )
    assert found.dtype == np.int32 and found.shape == (2, 20000)
    for row, line in zip(found, weights, strict=True):
        shares = np.bincount(row, minlength=4) / 20000
        np.testing.assert_allclose(shares, line / line.sum(), atol=0.02)


@pytest.mark.parametrize("seed", [{}, {"seed": 4.0}])
def test_networks_with_random_numbers(any_device, seed):
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["r"], **seed),
        helper.make_node("Add", ["x", "r"], ["y"]),
    ]
    with clnn.compile_model(model(nodes, [value("x", (4, 64))]), any_device) as session:
        x = np.ones((4, 64), np.float32)
        first, again = (next(iter(session({"x": x}).values())) for _ in range(2))
    assert abs(first.mean() - 1) < 0.4 and 0.5 < first.std() < 1.5
    assert (first == again).all() == bool(seed)


def test_determinants(any_device):
    x = rng().standard_normal((2, 3, 4, 4)).astype(np.float32)
    with clnn.compile_model(one_node("Det", [x]), any_device) as session:
        (got,) = session({"i0": x}).values()
    np.testing.assert_allclose(got, np.linalg.det(x.astype(np.float64)), rtol=1e-5, atol=1e-6)


def test_bernoulli_in_a_network_is_not_its_definition(any_device):
    chances = np.array([0, 1, 1, 0], np.float32)
    proto = one_node("Bernoulli", [chances], {"dtype": TensorProto.BOOL}, 15)
    with clnn.compile_model(proto, any_device) as session:
        (got,) = session({"i0": chances}).values()
    np.testing.assert_array_equal(got, chances.astype(bool))

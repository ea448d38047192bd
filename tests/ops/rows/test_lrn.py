from __future__ import annotations

import itertools

import numpy as np
import pytest
from harness import check_op, normal
from reference_engines import onnxruntime_result
from together import evaluate, imported

from clnn.errors import DTypeError, ShapeError
from clnn.ops.rows.lrn import Lrn
from clnn.ops.shared.functions import PostOp
from clnn.types import I32, TensorType

NHWC = {"i0": (0, 2, 3, 1), "o0": (0, 2, 3, 1)}
GEOMETRIES = {  # shape, memory orders
    "channels": ((2, 35, 3, 5), NHWC),
    "planes": ((2, 24, 3, 7), {}),
    "few channels": ((2, 3, 5, 7), NHWC),
    "no image": ((3, 20), {}),
    "one channel": ((2, 1, 9), {}),
}


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("size", [4, 5])
def test_geometries(device, name, size):
    shape, orders = GEOMETRIES[name]
    check_op(device, Lrn(size, 0.3, 0.75, 0.9), [normal(shape) * 3], orders=orders)


@pytest.mark.parametrize("beta", [0.5, 1.0, 0.3, 2.0])
def test_powers(device, beta):
    shape, orders = GEOMETRIES["channels"]
    check_op(device, Lrn(3, 0.3, beta, 0.9), [normal(shape) * 3], orders=orders, only="along")


def test_windows_wider_than_the_channels(device):
    for name in ("channels", "planes"):
        shape, orders = GEOMETRIES[name]
        check_op(device, Lrn(81, 1.0), [normal(shape)], orders=orders)


@pytest.mark.parametrize("shape", [(2, 150, 2, 3), (1, 90, 4)], ids=["long", "short"])
def test_windows_of_many_channels_are_loops(device, shape):
    orders = {"i0": (0, *range(2, len(shape)), 1), "o0": (0, *range(2, len(shape)), 1)}
    check_op(device, Lrn(71, 1.0), [normal(shape)], orders=orders, only="along")


def test_nan_and_infinity(device):
    shape, orders = GEOMETRIES["channels"]
    x = normal(shape)
    x[0, 20, 1, 2], x[1, 3, 0, 0], x[1, 34, 2, 2] = np.nan, np.inf, np.nan
    check_op(device, Lrn(5, 0.5), [x], orders=orders)


@pytest.mark.parametrize("name", ["channels", "planes"])
def test_fused_steps(device, name):
    shape, orders = GEOMETRIES[name]
    spec = Lrn(5, 0.5, post_ops=(PostOp("mul", operand=1), PostOp("relu")))
    check_op(device, spec, [normal(shape), normal((1, shape[1], 1, 1), 1)], orders=orders, border=1)


@pytest.mark.parametrize("name", ["channels", "planes", "one channel"])
def test_code_for_gpus(device, as_gpu, name):
    shape, orders = GEOMETRIES[name]
    check_op(device, Lrn(5, 0.5), [normal(shape)], orders=orders)


@pytest.mark.parametrize(
    "attrs", [{"size": 3}, {"size": 4, "alpha": 0.5, "beta": 0.6, "bias": 2.0}]
)
def test_importer_agrees_with_the_definition(attrs):
    """Written out from ONNX: onnx's own evaluator takes every image to have five channels."""
    x = normal((2, 7, 3, 4)) * 4
    size, alpha = attrs["size"], attrs.get("alpha", 1e-4)
    sums = np.zeros_like(x)
    for c in range(7):
        low, high = max(0, c - (size - 1) // 2), min(6, c + size // 2)
        sums[:, c] = (x[:, low : high + 1] ** 2).sum(1)
    want = x / (attrs.get("bias", 1.0) + alpha / size * sums) ** attrs.get("beta", 0.75)
    np.testing.assert_allclose(evaluate(imported("LRN", [x], attrs, 13), [x]), want, rtol=1e-5)


def test_importer_agrees_with_onnxruntime():
    x, attrs = normal((2, 7, 3, 4)) * 4, {"size": 5, "alpha": 0.5, "beta": 0.6, "bias": 2.0}
    want = onnxruntime_result("LRN", [x], attrs, 13)[0]
    np.testing.assert_allclose(evaluate(imported("LRN", [x], attrs, 13), [x]), want, rtol=1e-5)


def test_bad_inputs_name_the_values():
    with pytest.raises(ShapeError, match=r"size 0 over \(1, 4\)"):
        Lrn(0).infer([TensorType((1, 4))])
    with pytest.raises(ShapeError, match=r"\(4,\)"):
        Lrn(3).infer([TensorType((4,))])
    with pytest.raises(DTypeError, match="int32"):
        Lrn(3).infer([TensorType((1, 4), I32)])


@pytest.mark.exhaustive
@pytest.mark.parametrize("channels,size", list(itertools.product((1, 2, 15, 16, 33), (1, 2, 5, 9))))
def test_every_small_shape(device, channels, size):
    for width, orders in itertools.product((1, 3, 17), ({}, NHWC)):
        check_op(device, Lrn(size, 0.5), [normal((2, channels, 1, width))], orders=orders)

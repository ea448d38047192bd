from __future__ import annotations

import itertools

import numpy as np
import pytest
from harness import check_op, check_subgroups, normal, rng
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_engines import onnx_result
from together import check_together, evaluate, imported

from clnn.errors import DTypeError, ShapeError
from clnn.ops.rows.softmax import Softmax
from clnn.ops.shared.functions import PostOp
from clnn.types import I32, TensorType

NHWC = {"i0": (0, 2, 3, 1), "o0": (0, 2, 3, 1)}
STEPS = (PostOp("mul", operand=1), PostOp("add", (0.25,)))

GEOMETRIES = {  # shape, axes, memory orders
    "classes": ((3, 1000), (1,), {}),
    "odd classes": ((5, 21), (1,), {}),
    "channels": ((1, 21, 5, 7), (1,), NHWC),
    "planes": ((2, 5, 7, 11), (1,), {}),
    "lines": ((2, 18, 4, 5), (2,), NHWC),
    "pairs": ((1, 75, 2), (2,), {}),
    "few": ((2, 3), (1,), {}),
    "all": ((2, 17, 4, 5), (1, 2, 3), NHWC),
    "turned": ((6, 9, 20), (1,), {"i0": (2, 0, 1), "o0": (0, 2, 1)}),
}


@pytest.mark.parametrize("name", GEOMETRIES)
def test_geometries(device, name):
    shape, axes, orders = GEOMETRIES[name]
    check_op(device, Softmax(axes), [normal(shape) * 3], orders=orders)


@pytest.mark.parametrize("name", ["odd classes", "planes", "channels"])
def test_logarithm(device, name):
    shape, axes, orders = GEOMETRIES[name]
    check_op(device, Softmax(axes, True), [normal(shape) * 30], orders=orders, border=1)


@pytest.mark.parametrize("name", ["odd classes", "channels", "turned"])
def test_fused_steps(device, name):
    shape, axes, orders = GEOMETRIES[name]
    operand = normal((1,) * (len(shape) - 1) + shape[-1:], 1)
    check_op(device, Softmax(axes, post_ops=STEPS), [normal(shape), operand], orders=orders)


def test_the_whole_range_of_exponents(device):
    """Differences from 0 to those whose exponential is a subnormal number, or nothing."""
    x = np.concatenate([np.linspace(0, -110, 3001), [-1e30, -np.inf]]).astype(np.float32)
    spec = Softmax((0,))
    check_op(device, spec, [x], tolerance=3e-7)
    post_ops = Softmax((0,), post_ops=(PostOp("log"),))
    check_op(device, post_ops, [x[x > -80]], tolerance=2e-7)


@pytest.mark.parametrize("axis", [0, 1])
def test_nan_and_infinity(device, axis):
    x = normal((19, 19))
    x[1, 18], x[2, 3], x[3] = np.nan, np.inf, -np.inf
    x[4, 5], x[:, 6], x[7, :17] = -np.inf, -np.inf, np.nan
    check_together(device, {"p": Softmax((axis,)), "log": Softmax((axis,), True)}, [x], 1e-5)


def test_double_precision(device):
    x = rng(1).standard_normal((9, 21)) * 100
    specs = {f"{a}{log}": Softmax((a,), log) for a in (0, 1) for log in (False, True)}
    check_together(device, specs, [x], 1e-14)


def test_no_elements(device):
    check_together(device, {"p": Softmax((0,))}, [np.zeros((0, 3), np.float32)])


@pytest.mark.parametrize("name", ["classes", "odd classes", "planes", "pairs", "all"])
@pytest.mark.parametrize("log", [False, True])
def test_code_for_gpus(device, as_gpu, name, log):
    shape, axes, orders = GEOMETRIES[name]
    ran = check_op(device, Softmax(axes, log), [normal(shape) * 3], orders=orders)
    assert ("_across_v1x1_g" in ran[0]) == (name in ("planes", "pairs"))


@settings(max_examples=40, deadline=None)
@given(st.integers(-3, 2), st.sampled_from([11, 13]), st.sampled_from(["Softmax", "LogSoftmax"]))
def test_importer_agrees_with_the_definition(axis, opset, op):
    x = normal((2, 3, 4)) * 5
    if opset < 13:
        rows = x.reshape(int(np.prod(x.shape[: axis % 3])), -1)
        want = onnx_result(op, [rows], {"axis": 1}, 13)[0].reshape(x.shape)
    else:
        want = onnx_result(op, [x], {"axis": axis}, opset)[0]
    found = evaluate(imported(op, [x], {"axis": axis}, opset), [x])
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


def test_default_axes():
    x = normal((2, 3, 4))
    assert imported("Softmax", [x], opset=11).spec.axes == (1, 2)
    assert imported("Softmax", [x], opset=13).spec.axes == (2,)


def test_bad_inputs_name_the_values():
    with pytest.raises(ShapeError, match=r"\(2, 3\)"):
        Softmax((2,)).infer([TensorType((2, 3))])
    with pytest.raises(DTypeError, match="int32"):
        Softmax((1,)).infer([TensorType((2, 3), I32)])
    with pytest.raises(ShapeError, match="axis 3"):
        imported("Softmax", [normal((2, 3))], {"axis": 3})


@pytest.mark.exhaustive
@pytest.mark.parametrize("rows,length", list(itertools.product((1, 2, 15, 16, 33), repeat=2)))
def test_every_small_shape(device, rows, length):
    for middle, log in itertools.product((1, 3, 17), (False, True)):
        for axes in ((0,), (1,), (2,), (1, 2)):
            check_op(device, Softmax(axes, log), [normal((rows, middle, length))])


@pytest.mark.parametrize("log", [False, True])
def test_members_of_groups_fold_by_subgroups(device, monkeypatch, log):
    x = normal((3, 1003)) * 3
    x[1, 700], x[2] = np.nan, -np.inf
    check_subgroups(device, monkeypatch, Softmax((1,), log), [x])

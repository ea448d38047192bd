from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from harness import check_op, normal, of_cpus, rng
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference_engines import onnxruntime_result
from together import chain, evaluate, imported

from clnn.errors import DTypeError, ShapeError
from clnn.layout import TensorLayout
from clnn.ops.onnx_registry import Unsupported
from clnn.ops.pool.spec import Pool
from clnn.ops.problem import Operand, Problem
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.target import Target
from clnn.types import F16, F32, I32, TensorType

SHAPE = (2, 24, 9, 13)
NCHW = {"i0": (0, 1, 2, 3), "o0": (0, 1, 2, 3)}


def window(kernel, strides=(1, 1), dilations=(1, 1), before=(0, 0), after=(0, 0), ceil=False):
    return Window(kernel, strides, dilations, before, after, ceil)


WINDOWS = {
    "halves": window((2, 2), (2, 2), ceil=True),
    "padded": window((3, 3), (2, 2), before=(1, 1), after=(1, 1)),
    "uneven": window((3, 2), (1, 3), (2, 3), (2, 0), (1, 4), True),
    "same": window((5, 5), before=(2, 2), after=(2, 2)),
    "behind": window((4, 7), (3, 3), before=(3, 0), after=(3, 6), ceil=True),
}
# Two rows and four columns are more than SHAPE and its pads have; of columns the last window ends outside.
PARTIAL = Window((11, 19), (3, 5), (1, 1), (0, 1), (0, 1))
MAX, AVERAGE = Pool(WINDOWS["padded"], "max"), Pool(WINDOWS["padded"], "average")


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("mode", ["max", "average"])
def test_windows(device, name, mode):
    spec = Pool(WINDOWS[name], mode, count_pad=name in ("uneven", "same"))
    ran = check_op(device, spec, [normal(SHAPE)], border=1, only="nhwc" if mode == "max" else None)
    assert "nhwc" in ran[0] or not of_cpus(device)
    assert mode == "max" or "any" in ran[-1]


@pytest.mark.parametrize("name", ["uneven", "same"])
def test_padding_that_does_not_count(device, name):
    check_op(device, Pool(WINDOWS[name], "average"), [normal(SHAPE)], only="nhwc")


def test_padding_that_counts_before_a_window_cut_short(device):
    spec = Pool(WINDOWS["behind"], "average", count_pad=True)
    check_op(device, spec, [normal(SHAPE)])


@pytest.mark.parametrize("mode", ["max", "average"])
@pytest.mark.parametrize("partial", ["cut", "whole"])
def test_one_window_that_exceeds_the_image(device, mode, partial):
    spec = Pool(dataclasses.replace(PARTIAL, partial=partial), mode, count_pad=True)
    check_op(device, spec, [normal(SHAPE)])


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("kernel,stride", [(3, 2), (4, 2), (4, 3), (5, 3), (5, 4)])
@pytest.mark.parametrize("ceil,counts", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("opset", [17, 21])
def test_windows_that_exceed_the_image_are_onnxruntimes(op, kernel, stride, ceil, counts, opset):
    attrs = {"kernel_shape": [kernel, kernel], "strides": [stride, stride]}
    attrs |= {} if op == "LpPool" else {"ceil_mode": ceil}
    attrs |= {"count_include_pad": counts} if op == "AveragePool" else {}
    for extents, pads in itertools.product([(2, 3), (3, 2), (1, 4), (2, 2)], [(0, 0), (1, 0)]):
        x, given = normal((1, 2, *extents)), attrs | {"pads": [*pads, *pads]}
        padded = [extent + 2 * pad for extent, pad in zip(extents, pads, strict=True)]
        if min(padded) <= kernel - stride:
            with pytest.raises(ShapeError, match="does not fit"):
                evaluate(imported(op, [x], given, opset), [x])
        else:
            (want,) = onnxruntime_result(op, [x], given, opset)
            found = evaluate(imported(op, [x], given, opset), [x])
            np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("power", [1, 2, 3, 2.5])
def test_norms_of_windows(device, power):
    spec = Pool(WINDOWS["padded"], "lp", power=power)
    check_op(device, spec, [normal(SHAPE)], only="nhwc" if power == 3 else None)


@pytest.mark.parametrize("channels", [1, 3, 18, 35])
def test_channel_tails(device, channels):
    check_op(device, AVERAGE, [normal((2, channels, 6, 7))], border=1, only="nhwc")


def test_row_major_images(device):
    ran = check_op(device, MAX, [normal(SHAPE)], orders=NCHW)
    assert len(ran) == 1 and "any" in ran[0]


def test_columns_innermost_in_the_result_only(device):
    check_op(device, AVERAGE, [normal(SHAPE)], orders={"o0": (0, 1, 2, 3)}, only="nhwc")


def test_one_spatial_axis(device):
    win = Window((3,), (2,), (1,), (1,), (1,))
    check_op(device, Pool(win, "max"), [normal((2, 20, 11))])


def test_three_spatial_axes(device):
    win = Window((2, 3, 2), (1, 2, 1), (2, 1, 1), (1, 1, 0), (0, 1, 1))
    check_op(device, Pool(win, "average"), [normal((2, 20, 4, 5, 6))])


def test_wide_windows(device, monkeypatch):
    """More columns of a window, or more edges, than are worth writing out."""
    monkeypatch.setenv("CLNN_CPU_VECTOR", "16")
    x = normal((1, 20, 5, 40))
    wide = Pool(window((3, 24), (1, 2), before=(1, 3), after=(1, 3)), "average")
    assert any("v16" in name and "nhwc" not in name for name in check_op(device, wide, [x]))
    edges = Pool(window((3, 19), before=(1, 9), after=(1, 9)), "max")
    assert any("v16" in name and "nhwc" not in name for name in check_op(device, edges, [x]))


def test_windows_without_any_element(device):
    win = window((2, 2), before=(3, 3), after=(2, 4))
    x = normal((1, 18, 3, 4))
    check_op(device, Pool(win, "max"), [x])
    check_op(device, Pool(win, "average", count_pad=True), [x])


def test_nan_and_infinity(device):
    x = normal(SHAPE)
    x[0, :, 2, 3], x[1, :16, 4, 4] = np.nan, -np.inf
    x[0, 20, :3, :3], x[1, 3, :4, :4] = -np.inf, np.inf
    x[1, 17, 8, 12] = np.nan
    check_op(device, MAX, [x])
    check_op(device, AVERAGE, [x])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32])
def test_whole_numbers(device, dtype):
    info = np.iinfo(dtype)
    x = rng(1).integers(info.min, info.max, SHAPE, dtype, endpoint=True)
    check_op(device, MAX, [x])


def test_double_precision(device):
    check_op(device, AVERAGE, [rng(2).standard_normal(SHAPE)], tolerance=1e-14)


@pytest.mark.parametrize("order", ["row", "column"])
def test_indices_of_maxima(device, order):
    x = np.round(normal((2, 5, 6, 7)))  # many equal elements: the first one counts
    x[1, 2, 3, 3:5] = np.nan
    x[0, 1] = -np.inf
    check_op(device, Pool(WINDOWS["padded"], "max", indices=order), [x])


def test_indices_of_images_of_three_axes(device):
    win = Window((2, 2, 2), (1, 2, 1), (1, 1, 2), (0, 0, 1), (1, 0, 0))
    spec = Pool(win, "max", indices="column")
    check_op(device, spec, [rng(3).integers(0, 99, (1, 2, 4, 5, 6)).astype(np.uint8)])


STEPS = {
    "relu": (PostOp("relu"),),
    "operand": (PostOp("mul", operand=1), PostOp("add", operand=2)),
}


@pytest.mark.parametrize("post_ops", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("operands", [[(2, 18, 3, 4), (18, 1, 1)], [(1, 1, 3, 1), (1,)]])
def test_fused_steps(device, post_ops, operands):
    spec = Pool(WINDOWS["padded"], "max", post_ops=post_ops)
    inputs = [normal(shape, k) for k, shape in enumerate(operands, 1)]
    used = max((s.operand or 0 for s in post_ops), default=0)
    check_op(device, spec, [normal((2, 18, 5, 7)), *inputs[:used]])


@pytest.mark.parametrize("channels", [1, 3, 18])
def test_code_for_gpus(device, as_gpu, channels):
    ran = check_op(device, Pool(WINDOWS["uneven"], "average"), [normal((2, channels, 9, 13))])
    assert not any("nhwc" in name for name in ran)


def test_fast_kernels_ask_for_no_border():
    x = TensorType(SHAPE)
    assert not MAX.padding_needs([x])
    layout = TensorLayout.make(SHAPE, (0, 2, 3, 1))
    out = TensorLayout.make(MAX.infer([x])[0].shape, (0, 2, 3, 1))
    problem = Problem((Operand(x, layout),), (Operand(MAX.infer([x])[0], out),), Target())
    assert "nhwc" in MAX.variants(problem)[0].name


ATTRIBUTES = st.fixed_dictionaries(
    {
        "kernel_shape": st.tuples(st.integers(1, 4), st.integers(1, 4)),
        "strides": st.tuples(st.integers(1, 3), st.integers(1, 3)),
        "ceil_mode": st.integers(0, 1),
        "auto_pad": st.sampled_from(["NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]),
    }
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), ATTRIBUTES, st.sampled_from(["MaxPool", "AveragePool", "LpPool"]))
def test_importer_agrees_with_onnxruntime(data, attrs, op):
    attrs = {k: list(v) if isinstance(v, tuple) else v for k, v in attrs.items()}
    if attrs["auto_pad"] == "NOTSET":
        low = [data.draw(st.integers(0, k - 1)) for k in attrs["kernel_shape"]]
        high = [data.draw(st.integers(0, k - 1)) for k in attrs["kernel_shape"]]
        attrs["pads"] = low + high
    else:
        attrs["ceil_mode"] = 0  # and onnxruntime refuses SAME where windows leave gaps
        attrs["strides"] = np.minimum(attrs["strides"], attrs["kernel_shape"]).tolist()
    if op == "LpPool":
        attrs["p"], opset = data.draw(st.integers(1, 3)), 11
        del attrs["ceil_mode"]
    else:
        opset = 12
    if op == "AveragePool":
        attrs["count_include_pad"] = data.draw(st.integers(0, 1))
    x = normal((1, 2, data.draw(st.integers(4, 9)), data.draw(st.integers(4, 9))))
    count = 2 if op == "MaxPool" and data.draw(st.booleans()) else 1
    want = onnxruntime_result(op, [x], attrs, opset, n_outputs=count)
    made = imported(op, [x], attrs, opset, n_outputs=count)
    found = [evaluate(m, [x]) for m in (made if isinstance(made, list) else [made])]
    for got, expected in zip(found, want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_importer_knows_dilations_and_column_order():
    x = np.round(normal((1, 2, 8, 9)))
    attrs = {"kernel_shape": [2, 3], "dilations": [2, 3], "pads": [1, 0, 1, 2], "storage_order": 1}
    want = onnxruntime_result("MaxPool", [x], attrs, 12, n_outputs=2)
    made = imported("MaxPool", [x], attrs, 12, n_outputs=2)
    for source, expected in zip(made, want, strict=True):
        np.testing.assert_array_equal(evaluate(source, [x]), expected)


@pytest.mark.parametrize("op,fn", [("MaxPool", "max"), ("AveragePool", "mean"), ("LpPool", "l2")])
def test_one_window_over_everything_is_a_reduction(op, fn):
    x = normal((1, 3, 5, 6))
    made = imported(op, [x], {"kernel_shape": [5, 6], "strides": [2, 2]})
    assert chain(made) == ["reduce"] and made.spec.fn == fn
    padded = imported(op, [x], {"kernel_shape": [5, 6], "pads": [1, 0, 0, 0]})
    assert chain(padded) == ["pool"]


def test_images_are_needed():
    with pytest.raises(Unsupported, match="2 axes"):
        imported("MaxPool", [normal((3, 4))], {"kernel_shape": []})


@pytest.mark.parametrize(
    "shape,dtype,mode,error,words",
    [
        ((2, 3, 9), F32, "max", ShapeError, "(2, 3, 9)"),
        ((1, 3, 2, 9), F32, "max", ShapeError, "does not fit"),
        ((1, 3, 9, 9), F16, "max", DTypeError, "float16"),
        ((1, 3, 9, 9), I32, "average", DTypeError, "int32"),
    ],
)
def test_bad_inputs_name_the_values(shape, dtype, mode, error, words):
    with pytest.raises(error) as caught:
        Pool(window((5, 5)), mode).infer([TensorType(shape, dtype)])
    assert words in str(caught.value)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kernel,stride", list(itertools.product((1, 2, 3, 5), (1, 2, 3))))
@pytest.mark.parametrize("dilation", [1, 2])
def test_every_small_shape(device, kernel, stride, dilation):
    for pad, ceil, mode in itertools.product((0, 1, 3), (False, True), ("max", "average", "lp")):
        reach = dilation * (kernel - 1) + 1
        win = window((kernel,) * 2, (stride,) * 2, (dilation,) * 2, (pad,) * 2, (pad,) * 2, ceil)
        for size, channels in itertools.product((reach, reach + 3, 10), (1, 5, 17)):
            x = normal((1, channels, size, size))
            check_op(device, Pool(win, mode, count_pad=ceil), [x])

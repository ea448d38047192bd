from __future__ import annotations

import itertools

import numpy as np
import pytest
from harness import check_op, normal, rng
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from reference_engines import onnx_result
from together import check_together, evaluate, imported

import clnn
from clnn.errors import DTypeError, ShapeError
from clnn.ops.rows.arg import ArgExtreme, Hardmax
from clnn.types import BOOL, F16, TensorType

NHWC = {"i0": (0, 2, 3, 1)}
GEOMETRIES = {  # shape, axis, memory orders
    "classes": ((2, 1000), 1, {}),
    "channels": ((1, 21, 5, 7), 1, NHWC),
    "planes": ((2, 5, 6, 11), 1, {}),
    "lines": ((2, 18, 4, 5), 2, NHWC),
    "one row": ((9,), 0, {}),
}


def tied(shape, seed=0):
    """Small whole numbers, so that many elements are equal."""
    return np.round(normal(shape, seed) * 1.5)


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("largest,latest", [(True, False), (False, True)])
def test_geometries(device, name, largest, latest):
    shape, axis, orders = GEOMETRIES[name]
    spec = ArgExtreme(largest, axis, keepdims=latest, latest=latest)
    check_op(device, spec, [tied(shape)], orders=orders)


def every(axis):
    flags = itertools.product((False, True), repeat=2)
    return {f"{big}{late}": ArgExtreme(big, axis, True, late) for big, late in flags}


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, np.float64])
def test_element_types(device, dtype):
    x = rng(1).integers(0, 9, (20, 21)).astype(dtype)
    check_together(device, every(0), [x])
    check_together(device, every(1), [x])


def test_nan_is_beyond_all_numbers(device):
    x = tied((20, 21))
    x[3, 4], x[3, 9], x[5], x[6, :20] = np.nan, np.nan, -np.inf, np.inf
    x[7, 8], x[8, 20] = np.inf, np.nan
    check_together(device, every(0), [x])
    check_together(device, every(1), [x])


@pytest.mark.parametrize("length", [64, 71, 4100])
def test_lanes_of_a_long_row(device, length):
    """Ties, NaN and infinities in all lanes of vectors, and in what is left of a row."""
    x = tied((3, length))
    x[1], x[1, -2:] = -np.inf, np.nan
    x[2, 5], x[2, -1] = np.nan, np.nan
    check_together(device, every(1), [x])
    check_together(device, every(1), [rng(2).integers(0, 9, (3, length)).astype(np.int32)])
    spread = tied((2, 8, length))
    check_op(device, Hardmax((1, 2)), [spread], orders={"i0": (0, 2, 1)})
    check_op(device, Hardmax((2,)), [spread], border=1)


@pytest.mark.parametrize("axes,orders", [((1,), {}), ((0,), {}), ((1, 2), {"i0": (0, 2, 1)})])
def test_hardmax(device, axes, orders):
    check_op(device, Hardmax(axes), [tied((19, 3, 7))], orders=orders)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_code_for_gpus(device, as_gpu, name):
    shape, axis, orders = GEOMETRIES[name]
    x = tied(shape)
    x.flat[5], x.flat[7] = np.nan, np.nan
    check_op(device, ArgExtreme(True, axis), [x], orders=orders)
    check_op(device, ArgExtreme(False, axis, latest=True), [x], orders=orders)


@pytest.mark.parametrize("axes", [(1,), (1, 2), (0,)])
def test_hardmax_for_gpus(device, as_gpu, axes):
    check_op(device, Hardmax(axes), [tied((3, 19, 9))], orders={"i0": (0, 2, 1)})


@settings(max_examples=40, deadline=None)
@given(
    st.integers(-3, 2), st.integers(0, 1), st.integers(0, 1), st.sampled_from(["ArgMax", "ArgMin"])
)
def test_importer_agrees_with_the_definition(axis, keepdims, latest, op):
    x = tied((2, 3, 4))
    attrs = {"axis": axis, "keepdims": keepdims, "select_last_index": latest}
    want = onnx_result(op, [x], attrs, 13)[0]
    np.testing.assert_array_equal(evaluate(imported(op, [x], attrs, 13), [x]), want)


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_hardmax_importer(axis):
    x = tied((3, 4, 5))
    want = onnx_result("Hardmax", [x], {"axis": axis}, 13)[0]
    np.testing.assert_array_equal(evaluate(imported("Hardmax", [x], {"axis": axis}, 13), [x]), want)
    old = imported("Hardmax", [x], {"axis": 1}, 11)
    flat = onnx_result("Hardmax", [x.reshape(3, 20)], {"axis": 1}, 13)[0]
    np.testing.assert_array_equal(evaluate(old, [x]), flat.reshape(x.shape))


@pytest.mark.parametrize(
    "spec,given,error,words",
    [
        (ArgExtreme(True, 1), TensorType((3, 0)), ShapeError, "(3, 0)"),
        (ArgExtreme(True, 2), TensorType((3, 4)), ShapeError, "axis 2"),
        (ArgExtreme(True, 0), TensorType((3, 4), F16), DTypeError, "float16"),
        (ArgExtreme(True, 0), TensorType((3, 4), BOOL), DTypeError, "bool"),
        (Hardmax((2,)), TensorType((3, 4)), ShapeError, "(3, 4)"),
    ],
)
def test_bad_inputs_name_the_values(spec, given, error, words):
    with pytest.raises(error) as caught:
        spec.infer([given])
    assert words in str(caught.value)


def test_nothing_to_point_at(device):
    empty = np.zeros((0, 3), np.float32)
    check_together(device, {"y": ArgExtreme(True, 1), "h": Hardmax((1,))}, [empty])


def test_an_empty_axis_of_which_nothing_is_asked(device):
    """No rows, each of no elements: there is no row whose largest is wanted."""
    assert ArgExtreme(True, 1).infer([TensorType((0, 0))])[0].shape == (0, 1)
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("ArgMin", ["x"], ["y"], axis=0, keepdims=0)],
            "g",
            [helper.make_tensor_value_info("x", 1, ["n", "n", 3])],
            [helper.make_tensor_value_info("y", 7, None)],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    with clnn.compile_model(model, device) as session:
        for extent in (2, 0, 1):
            y = session({"x": np.zeros((extent, extent, 3), np.float32)})["y"]
            assert y.shape == (extent, 3) and not y.any()


@pytest.mark.exhaustive
@pytest.mark.parametrize("rows,length", list(itertools.product((1, 2, 15, 16, 33), repeat=2)))
def test_every_small_shape(device, rows, length):
    for middle, latest in itertools.product((1, 3, 17), (False, True)):
        x = tied((rows, middle, length))
        for axis in range(3):
            check_op(device, ArgExtreme(True, axis, True, latest), [x])
        check_op(device, Hardmax((0, 2)), [x])


@pytest.mark.parametrize("shape", [(0, 0, 4), (0, 2, 4), (3, 0, 0)])
@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize("latest", [True, False])
def test_no_rows_without_elements_have_no_indices(shape, keepdims, latest):
    """As constants, too, which the reference computes."""
    nothing = np.zeros(shape, np.float32)
    expected = np.sum(nothing, 1, keepdims=keepdims).shape
    for largest in (True, False):
        spec = ArgExtreme(largest, 1, keepdims, latest)
        (found,) = spec.reference(nothing)
        assert (found.shape, found.dtype) == (expected, np.int64)
        (told,) = spec.infer([TensorType(shape)])
        assert told.shape == expected
    (hot,) = Hardmax((1,)).reference(nothing)
    assert hot.shape == shape

"""ReverseSequence, of lengths that are known and computed."""

from __future__ import annotations

import numpy as np
import pytest
from harness import rng
from onnx import TensorProto, helper
from onnx_models import model, value
from reference_engines import one_node, onnxruntime_result
from together import evaluate, imported

import clnn
from clnn.errors import ShapeError

AXES = [{}, {"batch_axis": 0, "time_axis": 1}]


def wanted(x, lengths, batch_axis=1, time_axis=0):
    y = x.copy()
    for k, n in enumerate(lengths):
        row = [slice(None)] * 2
        row[batch_axis] = k
        row[time_axis] = slice(0, n)
        y[tuple(row)] = np.flip(x[tuple(row)], 0)
    return y


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int8", "int64", "bool"])
@pytest.mark.parametrize("shape", [(5, 3), (3, 5, 2), (4, 4, 2, 3)])
@pytest.mark.parametrize("attrs", AXES)
def test_sequences_agree_with_onnxruntime(attrs, shape, dtype):
    batch, steps = shape[attrs.get("batch_axis", 1)], shape[attrs.get("time_axis", 0)]
    lengths = rng(3).integers(1, steps + 1, batch)
    x = rng().integers(0, 2 if dtype == "bool" else 90, shape).astype(dtype)
    (want,) = onnxruntime_result("ReverseSequence", [x, lengths], attrs, 10)
    np.testing.assert_array_equal(want, wanted(x, lengths, **attrs))
    for consts in ((), (1,)):
        got = evaluate(imported("ReverseSequence", [x, lengths], attrs, 10, consts), [x, lengths])
        assert got.dtype == x.dtype
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("attrs", AXES)
@pytest.mark.parametrize("consts", [(), (1,)], ids=["computed", "constant"])
def test_sequences_on_devices(device, attrs, consts):
    x = rng().standard_normal((4, 4, 3)).astype(np.float32)
    lengths = np.array([4, 1, 3, 2])
    proto = one_node("ReverseSequence", [x, lengths], attrs, 10, consts)
    feeds = {"i0": x} if consts else {"i0": x, "i1": lengths}
    with clnn.compile_model(proto, device) as session:
        (got,) = session(feeds).values()
    np.testing.assert_array_equal(got, wanted(x, lengths, **attrs))


def test_a_session_of_any_shape(any_device):
    inputs = [value("x", ("t", "b", 3)), value("n", ("b",), TensorProto.INT64)]
    proto = model([helper.make_node("ReverseSequence", ["x", "n"], ["y"])], inputs)
    with clnn.compile_model(proto, any_device) as session:
        for steps, batch in [(5, 2), (1, 3), (9, 1), (1, 1), (4, 8)]:
            x = rng(steps).standard_normal((steps, batch, 3)).astype(np.float32)
            lengths = rng(batch).integers(1, steps + 1, batch)
            (got,) = session({"x": x, "n": lengths}).values()
            np.testing.assert_array_equal(got, wanted(x, lengths))


def test_lengths_of_zero_move_nothing_and_computed_ones_end_with_the_sequence():
    x = np.arange(6.0, dtype=np.float32).reshape(3, 2)
    got = evaluate(
        imported("ReverseSequence", [x, np.array([0, 9])], {}, 10), [x, np.array([0, 9])]
    )
    np.testing.assert_array_equal(got, wanted(x, [0, 3]))


@pytest.mark.parametrize("shape,lengths,attrs,why", [
    ((3, 2), [1, 4], {}, "must be 0 to 3"),
    ((3, 2), [1, -1], {}, "must be 0 to 3"),
    ((3, 2), [1], {}, r"must be \(2,\)"),
    ((3, 2), [1, 1], {"batch_axis": 0}, "must be 0 and 1"),
    ((3,), [1, 1, 1], {}, "must be 0 and 1"),
])  # fmt: skip
def test_what_does_not_fit_is_named(shape, lengths, attrs, why):
    inputs = [np.zeros(shape, np.float32), np.array(lengths)]
    with pytest.raises(ShapeError, match=why):
        imported("ReverseSequence", inputs, attrs, 10, (1,))

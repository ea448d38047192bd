"""Values that only the device reads stay there, between stages and in loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
import test_staged_session as staged

import clnn
from clnn.errors import DeviceLostError
from clnn.options import Options
from clnn.runtime.doctor.selection import select_device
from clnn.runtime.drivers.loader import load
from clnn.runtime.run.handed import DeviceArray

# `wide` is made by the first stage and read by the second, and `count` decides that one's shape.
TWO_STAGES = """
<ir_version: 8, opset_import: ["" : 17]>
two (float[64, 64] x, float[64, 64] w) => (float[?, 64] y) {
  wide = MatMul(x, w)
  top = ReduceMax<keepdims = 0>(wide)
  number = Cast<to = 7>(top)
  axis = Constant <value_ints = [0]> ()
  count = Unsqueeze(number, axis)
  line = ReduceSum(wide, axis)
  width = Constant <value_ints = [64]> ()
  shape = Concat<axis = 0>(count, width)
  many = Expand(line, shape)
  y = MatMul(many, wide)
}"""

LOOP = """
<ir_version: 8, opset_import: ["" : 17]>
turns (float[64, 64] x, int64 n, float[64, 64] c) => (float[64, 64] y, float[?, 64] rows, float z) {
  first = Relu(x)
  state, kept = Loop (n, , first) <body = b (int64 i, bool go, float[64, 64] s)
      => (bool went, float[64, 64] s2, float[64] row) {
    t = Add(s, c)
    s2 = Tanh(t)
    low = Constant <value_float = -9.0> ()
    top = ReduceMax<keepdims = 0>(s2)
    went = Greater(top, low)
    axis = Constant <value_ints = [0]> ()
    row = ReduceSum<keepdims = 0>(s2, axis)
  }>
  y = Neg(state)
  rows = Relu(kept)
  z = ReduceSum<keepdims = 0>(state)
}"""

WIDE = 64 * 64 * 4  # bytes


@pytest.fixture
def own_memory(monkeypatch):
    """Take devices for ones that do not share the host's memory."""

    def selected(device):
        info = select_device(device)
        return replace(info, caps=replace(info.caps, host_memory=False))

    monkeypatch.setattr("clnn.compile.select_device", selected)


@pytest.fixture
def copied(monkeypatch):
    """Bytes that were copied: "in" to the device, "out" of it, and on it."""
    cl, counts = load(), {"in": 0, "out": 0, "on": 0}
    plain_copy = cl.enqueue_copy

    def copy(queue, target, source, **how):
        where = "out" if isinstance(target, np.ndarray) else "in"
        where = "on" if "byte_count" in how else where
        array = target if where == "out" else source
        counts[where] += how["byte_count"] if where == "on" else array.nbytes
        return plain_copy(queue, target, source, **how)

    monkeypatch.setattr(cl, "enqueue_copy", copy)
    return counts


def x_of(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def results_of(text, feed):
    proto = onnx.parser.parse_model(text)
    return onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feed)


def test_what_a_later_stage_reads_is_not_read_back(own_memory, copied, any_device):
    feed = {"x": np.abs(x_of(64, 64)) * 0.04, "w": np.abs(x_of(64, 64, seed=1))}
    with clnn.compile_model(onnx.parser.parse_model(TWO_STAGES), any_device) as session:
        (first, second) = (stage.name for stage in session.stages)
        want = results_of(TWO_STAGES, feed)
        for _ in range(2):
            copied.update({"in": 0, "out": 0, "on": 0})
            np.testing.assert_allclose(session.run(None, feed)[0], want[0], rtol=1e-4)
        stages = {stage.name: stage for stage in session.stages}
        count = want[0].shape[0]
        assert count > 0
        assert stages[first].read_back <= 16
        assert stages[first].crossed == WIDE + 64 * 4
        assert stages[second].read_back == count * 64 * 4
        assert copied["in"] == 2 * WIDE
        assert copied["out"] == stages[first].read_back + stages[second].read_back
        assert copied["on"] == 2 * stages[first].crossed
        with session.profile() as profile:
            np.testing.assert_allclose(session.run(None, feed)[0], want[0], rtol=1e-4)
        assert set(profile.stages) == set(stages)


@pytest.mark.parametrize("turns", [0, 7])
def test_the_state_of_a_loop_stays_on_the_device(own_memory, copied, any_device, turns):
    feed = {"x": x_of(64, 64), "n": np.array(turns), "c": x_of(64, 64, seed=2)}
    with clnn.compile_model(onnx.parser.parse_model(LOOP), any_device) as session:
        session(feed)
        sent = session._exchange.sent
        copied.update({"in": 0, "out": 0, "on": 0})
        got = session.run(None, feed)
        sent = session._exchange.sent - sent
    for a, b in zip(got, results_of(LOOP, feed), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5, strict=True)
    conditions, (state, rows, _) = turns, got
    assert copied["out"] == conditions + state.nbytes + rows.nbytes  # once, behind the loop
    assert copied["in"] + sent == WIDE + (WIDE if turns else 0)  # x, and c once for all turns


@pytest.mark.usefixtures("no_unrolling")
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("backwards", [0, 1])
def test_scan(own_memory, any_device, axis, backwards):
    proto, shape = staged.scan(axis, backwards)
    proto.graph.node.insert(0, onnx.helper.make_node("Abs", ["x"], ["x1"]))
    proto.graph.node[1].input[1] = "x1"
    staged.compared(any_device, proto, {"h0": x_of(2, 4), "x": x_of(*shape)})


def test_branches_boxes_and_rows(own_memory, any_device):
    x = x_of(1, 3, 8, 8)
    staged.compared(any_device, staged.picked_rows(), {"x": x}, {"x": x * 0}, {"x": -x})
    staged.compared(any_device, staged.detector(), {"x": x_of(1, 3, 16, 16)})
    feeds = [{"x": x_of(1, 3, 5, 5) + k, "bias": x_of(4)} for k in (1, -1)]
    staged.compared(any_device, staged.branches(), *feeds)


def test_open_dimensions(own_memory, any_device):
    text = TWO_STAGES.replace("float[64, 64] x", "float[rows, 64] x")
    text = text.replace("axis)\n  width", "axis)\n  wide2 = MatMul(w, w)\n  width")
    text = text.replace("MatMul(many, wide)", "MatMul(many, wide2)")
    with clnn.compile_model(onnx.parser.parse_model(text), any_device) as session:
        for rows in (5, 9, 5):
            feed = {"x": np.abs(x_of(rows, 64)) * 0.04, "w": np.abs(x_of(64, 64, seed=1))}
            want = results_of(text, feed)
            np.testing.assert_allclose(session.run(None, feed)[0], want[0], rtol=1e-4)


def test_a_deadline_and_a_closed_session(own_memory, any_device):
    feed = {"x": x_of(64, 64), "n": np.array(2), "c": x_of(64, 64, seed=2)}
    session = clnn.compile_model(
        onnx.parser.parse_model(LOOP), any_device, Options(timeout=60.0, merge=False)
    )
    for a, b in zip(session.run(None, feed), results_of(LOOP, feed), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    session.close()
    with pytest.raises(DeviceLostError, match="closed"):
        session(feed)


def test_rows_and_copies_of_a_tensor(own_memory, any_device):
    with clnn.compile_model(onnx.parser.parse_model(LOOP), any_device) as session:
        exchange, array = session._exchange, x_of(3, 4, 5)
        shared = exchange.shared(array)
        assert shared.fetch() is array
        assert exchange.sent == 0
        rows = [shared.row(place) for place in (2, 0)]
        both = exchange.stacked(rows)
        assert isinstance(both, DeviceArray)
        assert exchange.sent == array.nbytes
        np.testing.assert_array_equal(both.fetch(), array[[2, 0]])
        np.testing.assert_array_equal(both.row(1).row(3).fetch(), array[0, 3])
        assert exchange.read_back == both.nbytes

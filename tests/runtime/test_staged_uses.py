"""What a StagedSession shares with other sessions: prepare, profile, verify, names, streams; branches."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import clnn
from clnn.errors import InputNameError, SettingError, ShapeError
from clnn.runtime.stages.session import StagedSession
from clnn.verification.verify import verify

PICKED = """
<ir_version: 8, opset_import: ["" : 17]>
picked (float[rows, 4] x, float[4, 4] w) => (float[?, ?] y) {
  made = MatMul(x, w)
  zero = Constant <value_float = 0.0> ()
  high = Greater(made, zero)
  places = NonZero(high)
  which = Constant <value_int = 0> ()
  at = Gather(places, which)
  found = Gather(made, at)
  y = MatMul(found, w)
}"""

# `a` has two or three axes, which decides what reads it; where `second` is false, nothing does.
RANKS = """
<ir_version: 8, opset_import: ["" : 17]>
ranks (float[4, 4] x, bool first, bool second) => (float[?, ?] y) {
  a = If (first) <then_branch = g1 () => (a1) {
      m1 = MatMul(x, x)
      axis1 = Constant <value_ints = [0]> ()
      a1 = Unsqueeze(m1, axis1)
    }, else_branch = g2 () => (a2) { a2 = MatMul(x, x) }>
  b = If (second) <then_branch = g3 () => (b3) {
      shape3 = Shape(a)
      rank3 = Size(shape3)
      two3 = Constant <value_int = 2> ()
      flat3 = Equal(rank3, two3)
      b3 = If (flat3) <then_branch = g4 () => (b4) { b4 = Neg(a) }, else_branch = g5 () => (b5) {
          axis5 = Constant <value_ints = [0]> ()
          b5 = Squeeze(a, axis5)
        }>
    }, else_branch = g6 () => (b6) { b6 = Identity(x) }>
  y = Add(b, x)
}"""


def parsed(text):
    return onnx.parser.parse_model(text)


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def picked_feed(rows, seed=0):
    return {"x": values(rows, 4, seed=seed), "w": values(4, 4, seed=9)}


@pytest.mark.parametrize("shapes", [None, {"x": (5, 4)}], ids=["open", "known"])
def test_prepare_makes_what_no_value_decides(device, shapes):
    with clnn.compile_model(parsed(PICKED), device, shapes=shapes) as session:
        assert isinstance(session, StagedSession)
        session.prepare({"x": (5, 4), "w": (4, 4)})
        (first, second) = session._plans.values()
        assert [len(first), len(second)] == [1, 0]
        (plan,) = first.values()
        if shapes is None:
            assert plan.shapes == [{"w": (4, 4), "x": (5, 4)}] or plan.shapes
        built = session.build_counts
        session(picked_feed(5))
        assert plan.build_counts == built
        with pytest.raises(ShapeError, match="'x' is"):
            session.prepare({"x": (5, 3), "w": (4, 4)})
        with pytest.raises(InputNameError, match="'w' is missing"):
            session.prepare({"x": (5, 4)})


def test_profile_has_the_launches_of_every_stage(device):
    with clnn.compile_model(parsed(PICKED), device) as session:
        want = session(picked_feed(6))["y"]
        with session.profile() as profile:
            np.testing.assert_array_equal(session(picked_feed(6))["y"], want)
            session(picked_feed(6))
        session(picked_feed(6))
        assert profile.runs == 2
        assert set(profile.stages) == {info.name for info in session.stages}
        assert [len(found) for found in profile.stages.values()] == [1, 1]
        assert all(len(one.runs) == 2 for found in profile.stages.values() for one in found)
        assert 0 < profile.device_s < profile.seconds
        assert profile.host_s == pytest.approx(profile.seconds - profile.device_s)
        assert "MatMul" in profile.table() and "2 runs" in profile.table()
        assert profile.slowest == sorted(profile.slowest, key=lambda one: -one.seconds)
        assert {one.name for one in profile.slowest} >= set(profile.stages)
        assert sum(one.seconds for one in profile.slowest) <= profile.host_s
        assert all(one.calls == 2 for one in profile.slowest)


def test_a_run_that_fails_is_no_run_of_a_profile(any_device, monkeypatch):
    with clnn.compile_model(parsed(PICKED), any_device) as session:
        session(picked_feed(6))
        with session.profile() as profile:
            with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
                broken.setattr(session, "_note", interrupted)
                session(picked_feed(6))
            assert profile.runs == 0 and profile.seconds == 0
            session(picked_feed(6))
        assert profile.runs == 1 and profile.seconds > 0


def interrupted(*_):
    raise KeyboardInterrupt


def test_verify_compares_a_staged_model(any_device):
    model = parsed(PICKED).SerializeToString()
    report = verify(model, shapes={"x": (7, 4)}, device=any_device)
    assert report and report.outputs[0].name == "y"
    with pytest.raises(SettingError, match="it has stages"):
        verify(model, "reference", any_device, shapes={"x": (7, 4)})
    with pytest.raises(ShapeError, match="leaves dimensions open"):
        verify(model, device=any_device)


def test_names_and_streams_are_checked_as_elsewhere(any_device):
    with clnn.compile_model(parsed(PICKED), any_device) as session:
        feeds = [picked_feed(3, seed) for seed in range(2)]
        got = [outs["y"] for outs in session.stream(feeds)]
        for feed, array in zip(feeds, got, strict=True):
            np.testing.assert_array_equal(session.run(["y"], feed)[0], array)
        with pytest.raises(SettingError, match="at least 1"):
            session.stream(feeds, depth=0)
        with pytest.raises(InputNameError, match="iterable of feeds"):
            session.stream(feeds[0])
        with pytest.raises(InputNameError, match="no output is named 'z'"):
            session.run(["z"], feeds[0])
        with pytest.raises(InputNameError, match="not list"):
            session(feeds)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False])
def test_an_if_of_which_another_one_reads_the_rank(any_device, first, second):
    model = parsed(RANKS)
    feed = {"x": values(4, 4), "first": np.array(first), "second": np.array(second)}
    want = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)[0]
    with clnn.compile_model(model, any_device) as session:
        np.testing.assert_allclose(session(feed)["y"], want, rtol=1e-5, atol=1e-5, strict=True)

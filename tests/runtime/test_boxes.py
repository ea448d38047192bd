"""Boxes that a kernel chooses: those that numpy and onnxruntime choose, to the bit."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnxruntime
import pytest
from onnx import helper
from onnx_models import FLOAT, INT64, ints, model, tensor, value
from overlapping import boxes, rows_of, special_boxes

import clnn
from clnn.errors import DeviceLostError
from clnn.ops.host.boxes import stay_by_numpy
from clnn.runtime.build.program import Device
from clnn.runtime.device.device import select
from clnn.runtime.stages import boxes as on_device
from clnn.runtime.stages.on_device import functions_on

MOST = 2**63 - 1


@pytest.fixture
def stay(device):
    return on_device.StayOnDevice(Device.open(select(device)), None)


@pytest.mark.parametrize("make", [boxes, special_boxes])
@pytest.mark.parametrize("limit", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("sizes", [(700,), (1, 300, 2, 257, 8, 132)])
def test_boxes_that_stay_are_those_of_numpy(stay, sizes, limit, make, monkeypatch):
    begins = np.concatenate([[0], np.cumsum(sizes)])
    with np.errstate(all="ignore"):
        rows = rows_of(make(sum(sizes), 9, 3)[0][0])
        want = stay_by_numpy(rows, begins, np.float32(limit), MOST)
        monkeypatch.setattr(on_device, "stay_by_numpy", None)  # it is none of these that are few
        got = stay(rows, begins, np.float32(limit), MOST)
        few = stay(rows, begins, np.float32(limit), 5)
    np.testing.assert_array_equal(got, want, strict=True)
    for begin, end in pairwise(begins):
        first = np.flatnonzero(want[begin:end])[:5]
        np.testing.assert_array_equal(np.flatnonzero(few[begin:end]), first)


@pytest.mark.parametrize("scale", [1e-19, 1e-21, 1e19])
def test_areas_that_are_subnormal_or_infinite(stay, scale):
    begins = np.array([0, 500])
    with np.errstate(all="ignore"):
        rows = rows_of(boxes(500, 9, 3)[0][0] * np.float32(scale))
        want = stay_by_numpy(rows, begins, np.float32(0.3), MOST)
        got = stay(rows, begins, np.float32(0.3), MOST)
    np.testing.assert_array_equal(got, want, strict=True)


def test_few_boxes_are_left_to_numpy(stay, monkeypatch):
    rows, begins = rows_of(boxes(60, 3, 1)[0][0]), np.array([0, 1, 60])
    monkeypatch.setattr(stay, "_run", None)
    with np.errstate(all="ignore"):
        want, got = (f(rows, begins, np.float32(0.2), MOST) for f in (stay_by_numpy, stay))
    np.testing.assert_array_equal(got, want, strict=True)


def detector(center=0, overlap=0.4, most=400):
    nodes = [
        helper.make_node(
            "NonMaxSuppression",
            ["boxes", "scores", "most", "overlap", "lowest"],
            ["kept"],
            center_point_box=center,
        )
    ]
    limits = {"overlap": overlap, "lowest": 0.1}
    inits = [ints("most", most), *(tensor(k, np.float32([v])) for k, v in limits.items())]
    inputs = [value("boxes", (2, None, 4), FLOAT), value("scores", (2, 3, None), FLOAT)]
    proto = model(nodes, inputs, initializers=inits, opset=18)
    del proto.graph.output[:]
    proto.graph.output.append(value("kept", (None, 3), INT64))
    return proto


@pytest.mark.parametrize("make", [boxes, special_boxes])
@pytest.mark.parametrize("center", [0, 1])
@pytest.mark.parametrize("whole", [0, 4096], ids=["clusters", "whole"])
def test_a_model_keeps_what_onnxruntime_keeps(device, whole, center, make, monkeypatch):
    monkeypatch.setattr("clnn.runtime.stages.on_device.WHOLE", whole)
    proto = detector(center)
    engine = onnxruntime.InferenceSession(proto.SerializeToString())
    with clnn.compile_model(proto, device) as session:
        if functions_on(Device.open(select(device)), None):
            monkeypatch.setattr(on_device, "stay_by_numpy", None)
        for spread in (6, 40):
            found, scores = make(900, spread, spread)
            feed = {"boxes": found, "scores": scores}
            (want,), (got,) = engine.run(None, feed), session.run(None, feed)
            np.testing.assert_array_equal(got, want, strict=True)


def test_what_fails_on_the_device_is_told(device, monkeypatch):
    opened = Device.open(select(device))
    if not functions_on(opened, None):
        pytest.skip("numpy chooses boxes there")

    def lost(*_):
        raise DeviceLostError("it is gone")

    found, scores = boxes(900, 6, 1)
    with clnn.compile_model(detector(), device) as session:
        monkeypatch.setattr(on_device.StayOnDevice, "_run", lost)
        for _ in range(2):
            with pytest.raises(DeviceLostError, match="it is gone"):
                session({"boxes": found, "scores": scores})
        assert session.lost == "it is gone"

"""clnn as a backend in ONNX's own terms."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper as make
from onnx.backend.base import BackendRep
from onnx_models import INT64, model, relu, value

from clnn.apis.onnx_backend import Backend, device_name
from clnn.errors import InputNameError, ModelError, UnsupportedOpError

X = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)


@pytest.fixture(autouse=True)
def _on_device(device, monkeypatch):
    monkeypatch.setenv("CLNN_DEVICE", device)


def test_prepared_model_runs_for_every_form_of_inputs():
    nodes = [make.make_node("Sub", ["a", "b"], ["y"]), make.make_node("Relu", ["y"], ["1"])]
    prepared = Backend.prepare(model(nodes, [value("a", (3, 4)), value("b", (3, 4))], ["y", "1"]))
    assert isinstance(prepared, BackendRep)
    for inputs in ([X, 2 * X], (X, 2 * X), {"a": X, "b": 2 * X}, {"b": 2 * X, "a": X}):
        made = prepared.run(inputs)
        np.testing.assert_array_equal(made[0], -X)
        np.testing.assert_array_equal(made["y"], -X)
        np.testing.assert_array_equal(made["1"], np.maximum(-X, 0))
        assert len(made) == 2


def test_single_array_serves_for_a_single_input():
    np.testing.assert_array_equal(Backend.run_model(relu((3, 4)), X)[0], np.maximum(X, 0))


def test_open_dimensions_take_the_shape_of_what_is_passed():
    prepared = Backend.prepare(relu(("batch", 4)))
    for rows in (1, 3, 2, 3):
        np.testing.assert_array_equal(prepared.run([X[:rows]]).y, np.maximum(X[:rows], 0))


def test_shapes_passed_at_run_are_constants_of_that_run():
    node = [make.make_node("Reshape", ["x", "s"], ["t"]), make.make_node("Relu", ["t"], ["y"])]
    prepared = Backend.prepare(model(node, [value("x", (3, 4)), value("s", ("n",), INT64)]))
    for shape in ((2, 6), (12,), (3, 2, 2), (2, 6)):
        (made,) = prepared.run([X, np.array(shape)])
        np.testing.assert_array_equal(made, np.maximum(X.reshape(shape), 0))


def test_run_node():
    node = make.make_node("Clip", ["x", "", "h"], ["y"])
    (made,) = Backend.run_node(node, [X, np.float32(2)])
    np.testing.assert_array_equal(made, np.minimum(X, 2))
    old = make.make_node("Clip", ["x"], ["y"], min=-1.0, max=1.0)
    (made,) = Backend.run_node(old, [X], opset_version=7)
    np.testing.assert_array_equal(made, np.clip(X, -1, 1))


def test_refusals_are_clnn_s():
    with pytest.raises(UnsupportedOpError, match="Bogus"):
        Backend.run_model(model([make.make_node("Bogus", ["x"], ["y"])], [value("x", (3, 4))]), [X])
    with pytest.raises(ModelError, match="holds no graph"):
        Backend.prepare(onnx.ModelProto())
    with pytest.raises(InputNameError, match="2 inputs were given, the model has 1"):
        Backend.run_model(relu((3, 4)), [X, X])


def test_devices_by_onnx_s_names(device):
    assert Backend.supports_device("CPU")
    assert device_name("CPU") == device
    from clnn.runtime.device.device import discover

    gpus = [d for d in discover() if d.type == "gpu" and d.usable]
    assert Backend.supports_device("CUDA") == bool(gpus)
    assert Backend.supports_device(f"CUDA:{len(gpus)}") is False
    assert Backend.supports_device("TPU") is False


def test_cpu_is_a_cpu_unless_a_device_is_named(monkeypatch):
    monkeypatch.delenv("CLNN_DEVICE")
    assert device_name("CPU") == "cpu"

from __future__ import annotations

import numpy as np
import onnx
import pytest
from harness import normal, rng
from onnx import helper, numpy_helper
from reference_engines import onnx_result
from together import evaluate, imported

import clnn
from clnn.api import load_graph
from clnn.errors import ShapeError
from clnn.graph.passes import optimise
from clnn.ops.onnx_registry import Unsupported
from clnn.ops.shared.functions import PostOp

STEPS = (PostOp("mul", operand=1), PostOp("add", operand=2))


def parameters(channels, seed=0):
    scale, shift, mean = (normal((channels,), seed + k) for k in range(3))
    variance = rng(seed + 3).uniform(0.1, 3.0, channels).astype(np.float32)
    return [scale, shift, mean, variance]


@pytest.mark.parametrize("shape", [(2, 5, 4, 3), (2, 5, 7), (4, 5), (2, 5, 2, 3, 4)])
def test_constant_parameters_become_two_steps(shape):
    inputs = [normal(shape), *parameters(5)]
    made = imported("BatchNormalization", inputs, {"epsilon": 1e-3}, 15, (1, 2, 3, 4))
    assert made.spec.post_ops == STEPS
    assert [a.shape for a in made.inputs[1:]] == [(1, 5, *(1,) * (len(shape) - 2))] * 2
    want = onnx_result("BatchNormalization", inputs, {"epsilon": 1e-3}, 15)[0]
    np.testing.assert_allclose(evaluate(made, inputs), want, rtol=1e-4, atol=1e-5)


def test_constant_parameters_are_rounded_as_onnxruntime_does():
    ort = pytest.importorskip("onnxruntime")
    inputs = [normal((1, 997, 2, 3)), *parameters(997)]
    names = ["x", "scale", "shift", "mean", "variance"]
    consts = [numpy_helper.from_array(a, n) for n, a in zip(names[1:], inputs[1:], strict=True)]
    real = onnx.TensorProto.FLOAT
    ports = [helper.make_tensor_value_info(n, real, inputs[0].shape) for n in ("x", "y")]
    node = helper.make_node("BatchNormalization", names, ["y"])
    graph = helper.make_graph([node], "norm", ports[:1], ports[1:], consts)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)
    (want,) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": inputs[0]})
    made = imported("BatchNormalization", inputs, {}, 15, (1, 2, 3, 4))
    np.testing.assert_array_equal(evaluate(made, inputs), want)


@pytest.mark.parametrize("consts", [(), (1, 2), (3, 4)])
def test_parameters_that_are_inputs(consts):
    inputs = [normal((2, 5, 4, 3)), *parameters(5)]
    made = imported("BatchNormalization", inputs, {}, 15, consts)
    want = onnx_result("BatchNormalization", inputs, {}, 15)[0]
    np.testing.assert_allclose(evaluate(made, inputs), want, rtol=1e-4, atol=1e-5)


def test_statistics_of_each_element_before_opset_9():
    x = normal((3, 2, 2, 3))
    inputs = [x, *(a.reshape(2, 2, 3) for a in parameters(12))]
    scale, shift, mean, variance = inputs[1:]
    want = (x - mean) / np.sqrt(variance + 1e-5) * scale + shift
    for consts in ((), (1, 2, 3, 4)):
        made = imported("BatchNormalization", inputs, {"spatial": 0}, 7, consts)
        np.testing.assert_allclose(evaluate(made, inputs), want, rtol=1e-4, atol=1e-5)


def test_training_is_refused():
    inputs = [normal((2, 3, 4, 4)), *parameters(3)]
    with pytest.raises(Unsupported, match="training_mode"):
        imported("BatchNormalization", inputs, {"training_mode": 1}, 15)
    with pytest.raises(Unsupported, match="training_mode"):
        imported("BatchNormalization", inputs, {}, 15, n_outputs=3)


def test_bad_shapes_name_the_values():
    inputs = [normal((2, 3, 4, 4)), *parameters(4)]
    with pytest.raises(ShapeError, match=r"input 1 is \(4,\), must hold 3 values"):
        imported("BatchNormalization", inputs, {}, 15)


def network(constant):
    """Return a convolution and its BatchNormalization, and the parameters by name."""
    names = ("scale", "shift", "mean", "variance")
    known = dict(zip(names, parameters(6), strict=True))
    weights = normal((6, 3, 3, 3), 9)
    values = {"weights": weights, **(known if constant else {})}
    fed = {"x": normal((1, 3, 5, 6), 8), **({} if constant else known)}
    kind = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "weights"], ["c"], pads=[1, 1, 1, 1]),
            helper.make_node("BatchNormalization", ["c", *names], ["y"]),
        ],
        "net",
        [helper.make_tensor_value_info(n, kind, a.shape) for n, a in fed.items()],
        [helper.make_tensor_value_info("y", kind, (1, 6, 5, 6))],
        [numpy_helper.from_array(a, n) for n, a in values.items()],
    )
    opset = [helper.make_opsetid("", 15)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    conv = onnx_result("Conv", [fed["x"], weights], {"pads": [1, 1, 1, 1]}, 15)[0]
    want = onnx_result("BatchNormalization", [conv, *known.values()], {}, 15)[0]
    return model, fed, want


def test_constant_parameters_fold_into_the_convolution():
    graph = optimise(load_graph(network(True)[0]))
    (conv,) = graph.nodes
    assert conv.spec.kind == "conv2d"
    assert not conv.spec.post_ops  # the weights hold it, it is no step behind them


@pytest.mark.parametrize("constant", [True, False])
def test_networks(device, constant):
    model, fed, want = network(constant)
    with clnn.compile_model(model, device=device) as session:
        np.testing.assert_allclose(session(fed)["y"], want, rtol=1e-3, atol=1e-4)

"""Functions of networks that round values by ranges found in the run."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import helper
from onnx_models import FLOAT, model, tensor, value

import clnn
from clnn.graph.passes.rational import rational_functions
from clnn.importers.onnx.importer import import_onnx

UNITS = 24


def network(dynamic=True):
    """Functions of rows behind a product, rounded by their own range or a given one, as bytes."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["sums"]),
        helper.make_node("Sigmoid", ["sums"], ["gate"]),
        helper.make_node("Mul", ["sums", "gate"], ["swish"]),
        helper.make_node("Tanh", ["swish"], ["made"]),
    ]
    outs = ["made"]
    if dynamic:
        nodes.append(helper.make_node("DynamicQuantizeLinear", ["made"], ["q", "scale", "zero"]))
        outs += ["q", "scale", "zero"]
    weights = tensor("w", np.eye(UNITS, dtype=np.float32) * rng.uniform(0.5, 2, UNITS).astype("f"))
    return model(nodes, [value("x", (64, UNITS), FLOAT)], outs, [weights], opset=17)


@pytest.mark.parametrize("spread", [1.0, 8.0])
def test_results_are_onnxruntimes_to_the_bit(device, spread):
    made = network().SerializeToString()
    x = (spread * np.random.default_rng(1).standard_normal((64, UNITS))).astype(np.float32)
    other = onnxruntime.InferenceSession(made, providers=["CPUExecutionProvider"])
    want = other.run(None, {"x": x})
    with clnn.compile_model(made, device) as session:
        got = session.run(None, {"x": x})
    for one, two in zip(got, want, strict=True):
        np.testing.assert_array_equal(one, two)


def test_only_networks_that_round_so_are_changed():
    graph = import_onnx(network(dynamic=False))
    assert rational_functions(graph) is graph
    changed = rational_functions(import_onnx(network()))
    steps = {s.fn for n in changed.nodes for s in getattr(n.spec, "post_ops", ())}
    assert {"rational_sigmoid", "rational_tanh"} <= steps and not steps & {"sigmoid", "tanh"}

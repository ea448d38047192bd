"""Shares: what counts as right of a quantised model."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from clnn.verification.quantised import compare, is_quantised, shares

ort = pytest.importorskip("onnxruntime")


def test_agreed_elements_must_be_met():
    fused, unfused = np.array([1, 2, 3, 4]), np.array([1, 2, 3, 5])
    assert compare(np.array([1, 2, 3, 9]), fused, unfused).passed
    row = compare(np.array([1, 2, 4, 5]), fused, unfused)
    assert row.missed == 1 and row.equal == 0.5 and row.agreed == 0.75
    assert row.passed and row.error == row.own == 1  # as far as the unfused run is
    assert not compare(np.array([1, 2, 3, 4]) + 2, fused, unfused).passed
    assert not compare(np.array([5, 2, 3, 4]), fused, unfused).passed


def test_real_results_may_be_rounded_otherwise():
    fused = np.array([1.0, 0.5], np.float32)
    assert compare(np.nextafter(fused, np.float32(2)), fused, fused).passed
    assert not compare(fused + np.float32(1e-3), fused, fused).passed
    assert not compare(fused[:1], fused, fused).passed


def test_a_model_on_both_runs(tmp_path):
    steps = {"s": np.array(0.1, np.float32), "z": np.array(3, np.uint8)}
    graph = helper.make_graph(
        [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, [4])],
        [numpy_helper.from_array(a, n) for n, a in steps.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "q.onnx"
    path.write_bytes(made.SerializeToString())
    assert is_quantised(path)
    feeds = {"x": np.array([0, 1, 2, 99], np.float32)}
    row = shares(path, feeds, {"y": np.array([3, 13, 23, 255], np.uint8)})["y"]
    assert row.passed and row.equal == 1 and "100.00% equal" in row.line()

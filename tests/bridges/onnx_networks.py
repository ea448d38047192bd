"""Small ONNX networks whose quantisation is easy to tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int]],
    outputs: Mapping[str, Sequence[int]],
    weights: Mapping[str, np.ndarray],
    opset: int = 17,
) -> onnx.ModelProto:
    """Return a float32 model."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        list(nodes),
        "net",
        [info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)])


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def feeds(count: int, *shape: int, name: str = "x", shift: float = 0.0) -> list[dict]:
    return [{name: normal(*shape, seed=100 + k) + np.float32(shift)} for k in range(count)]


def sqnr(wanted: np.ndarray, made: np.ndarray) -> float:
    """Signal to noise in dB, of float64."""
    real = wanted.astype(np.float64)
    return float(10 * np.log10((real**2).sum() / ((made - real) ** 2).sum()))


def scaled_badly(seed: int = 0) -> onnx.ModelProto:
    """Three convolutions, one depthwise, whose channels differ by factors up to 64, with rectifiers between."""
    rng = np.random.default_rng(seed)
    one, two = (np.exp2(rng.integers(-3, 4, 8)).astype(np.float32) for _ in range(2))
    weights = {
        "w0": normal(8, 3, 3, 3, seed=1) * one.reshape(-1, 1, 1, 1) / 3,
        "b0": normal(8, seed=2) * one / 5,
        "w1": normal(8, 1, 3, 3, seed=3) * (two / one).reshape(-1, 1, 1, 1) / 3,
        "b1": normal(8, seed=4) * two / 5,
        "w2": normal(5, 8, 1, 1, seed=5) / two.reshape(1, -1, 1, 1),
    }
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["a"], "front", pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["ra"], "rectify"),
        node("Conv", ["ra", "w1", "b1"], ["b"], "depthwise", pads=[1, 1, 1, 1], group=8),
        node("Relu", ["b"], ["rb"], "rectify too"),
        node("Conv", ["rb", "w2"], ["y"], "back"),
    ]
    return model_of(nodes, {"x": [1, 3, 8, 8]}, {"y": [1, 5, 8, 8]}, weights)

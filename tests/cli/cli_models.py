"""Small ONNX files whose right answers are plain."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def save(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[int | str]],
    outputs: dict[str, list[int | str]],
    weights: dict[str, np.ndarray] | None = None,
    metadata: dict[str, str] | None = None,
    opset: int = 17,
) -> Path:
    """Write a float32 model and return its path."""
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
        [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()],
    )
    model = helper.make_model(
        graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)], producer_name="test"
    )
    helper.set_model_props(model, metadata or {})
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def network(path: Path) -> Path:
    """x [1, 3, 6, 7] -> Conv 3x3 "first" -> Relu -> Conv 1x1 "second" -> + skip -> y."""
    node = helper.make_node
    return save(
        path,
        [
            node("Conv", ["x", "w1", "b1"], ["c1"], "first", pads=[1, 1, 1, 1]),
            node("Relu", ["c1"], ["r1"], "rectify"),
            node("Conv", ["r1", "w2"], ["c2"], "second"),
            node("Add", ["c2", "x"], ["y"], "skip"),
        ],
        {"x": [1, 3, 6, 7]},
        {"y": [1, 3, 6, 7]},
        {"w1": normal(8, 3, 3, 3) / 3, "b1": normal(8, seed=1), "w2": normal(3, 8, 1, 1, seed=2)},
    )


def doubler(path: Path, metadata: dict[str, str] | None = None) -> Path:
    """image [batch, 3, height, width] -> each pixel four times: nearest enlargement by two."""
    weights = np.repeat(np.eye(3, dtype=np.float32), 4, axis=0).reshape(12, 3, 1, 1)
    node = helper.make_node
    return save(
        path,
        [
            node("Conv", ["image", "w"], ["many"], "spread"),
            node("DepthToSpace", ["many"], ["upscaled"], "shuffle", blocksize=2, mode="CRD"),
        ],
        {"image": ["batch", 3, "height", "width"]},
        {"upscaled": ["batch", 3, "2*height", "2*width"]},
        {"w": weights},
        metadata,
    )


def classifier(path: Path, metadata: dict[str, str] | None = None) -> Path:
    """image [1, 3, 4, 4] -> scores [1, 4]: sum of red, of green, of blue, and minus all."""
    weights = np.zeros((4, 3, 4, 4), np.float32)
    for channel in range(3):
        weights[channel, channel] = 1
    weights[3] = -1
    return save(
        path,
        [
            helper.make_node("Conv", ["image", "w"], ["maps"], "sums"),
            helper.make_node("Reshape", ["maps", "shape"], ["scores"], "flat"),
        ],
        {"image": [1, 3, 4, 4]},
        {"scores": [1, 4]},
        {"w": weights, "shape": np.array([1, 4], np.int64)},
        metadata,
    )


def channels_last(path: Path) -> Path:
    """picture [1, h, w, 3] -> inverse [1, h, w, 3]: 1 - value."""
    return save(
        path,
        [helper.make_node("Sub", ["one", "picture"], ["inverse"], "invert")],
        {"picture": [1, "h", "w", 3]},
        {"inverse": [1, "h", "w", 3]},
        {"one": np.ones(1, np.float32)},
    )


def two_inputs(path: Path) -> Path:
    """left [2, 3] + right [2, 3] -> sum."""
    return save(
        path,
        [helper.make_node("Add", ["left", "right"], ["sum"], "add")],
        {"left": [2, 3], "right": [2, 3]},
        {"sum": [2, 3]},
    )


def unsupported(path: Path) -> Path:
    """Two kinds of operators that clnn does not have, three nodes, behind one that it has."""
    node = helper.make_node
    return save(
        path,
        [
            node("Relu", ["x"], ["r"], "fine"),
            node("ImageDecoder", ["r"], ["a"], "text_1"),
            node("ImageDecoder", ["x"], ["b"], "text_2"),
            node("Frobnicate", ["r"], ["c"], "frob", domain="org.example"),
        ],
        {"x": [1, 4]},
        {"a": [1, 4], "b": [1, 4], "c": [1, 4]},
        opset=20,
    )


def staged(path: Path) -> Path:
    """Values above 0 of a convolution, found and doubled, where a branch on their count says so."""
    node = helper.make_node
    value = helper.make_tensor_value_info
    branches = {
        f"{name}_branch": helper.make_graph(
            [node(op, ["found", "found"], [name])], name, [], [value(name, 1, None)]
        )
        for name, op in (("then", "Add"), ("else", "Sub"))
    }
    return save(
        path,
        [
            node("Conv", ["x", "w"], ["c"], "convolve"),
            node("Relu", ["c"], ["r"], "rectify"),
            node("NonZero", ["r"], ["places"], "find"),
            node("Transpose", ["places"], ["rows"], "turn", perm=[1, 0]),
            node("GatherND", ["r", "rows"], ["found"], "pick"),
            node("ReduceMax", ["found"], ["top"], "largest", keepdims=0),
            node("Greater", ["top", "limit"], ["high"], "compare"),
            node("If", ["high"], ["y"], "branch", **branches),
        ],
        {"x": [1, 1, 4, 4]},
        {"y": [None]},
        {"w": normal(2, 1, 3, 3), "limit": np.array(1, np.float32)},
    )

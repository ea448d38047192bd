"""Networks that the universal set computes alone."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def network(channels: int, size: int, inputs: int = 1) -> bytes:
    """A stem, a block with a filter per channel and a residual, pooling, and a product."""
    random = np.random.default_rng(channels)
    weights: list[onnx.TensorProto] = []

    def weight(*shape: int) -> str:
        weights.append(
            numpy_helper.from_array(
                random.standard_normal(shape).astype(np.float32) / 3, f"w{len(weights)}"
            )
        )
        return weights[-1].name

    c, node = channels, helper.make_node
    names = [f"x{k}" for k in range(inputs)]
    nodes = [node("Sum", names, ["x"])] if inputs > 1 else [node("Identity", names, ["x"])]
    nodes += [
        node(
            "Conv", ["x", weight(c, 3, 3, 3), weight(c)], ["a"], strides=[2, 2], pads=[1, 1, 1, 1]
        ),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", weight(c, 1, 3, 3)], ["d"], group=c, pads=[1, 1, 1, 1]),
        node("Sigmoid", ["d"], ["e"]),
        node("Conv", ["e", weight(c, c, 1, 1)], ["f"]),
        node("Add", ["f", "b"], ["g"]),
        node("MaxPool", ["g"], ["h"], kernel_shape=[3, 3], strides=[2, 2]),
        node("GlobalAveragePool", ["h"], ["i"]),
        node("Flatten", ["i"], ["j"]),
        node("Gemm", ["j", weight(10, c), weight(10)], ["y"], transB=1),
    ]
    value = helper.make_tensor_value_info
    images = [value(name, TensorProto.FLOAT, (1, 3, size, size)) for name in names]
    graph = helper.make_graph(
        nodes, "net", images, [value("y", TensorProto.FLOAT, (1, 10))], weights
    )
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8).SerializeToString()

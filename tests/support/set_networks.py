"""Networks that the universal set computes alone, of floats and quantised ones."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class _Net:
    """Nodes of a graph, and its constants."""

    def __init__(self) -> None:
        self.consts: list[onnx.TensorProto] = []
        self.nodes: list[onnx.NodeProto] = []

    def const(self, array: np.ndarray) -> str:
        """Add a constant; return its name."""
        self.consts.append(numpy_helper.from_array(array, f"c{len(self.consts)}"))
        return self.consts[-1].name

    def add(self, op: str, *inputs: str, **about: object) -> str:
        """Add a node; return the name of its output."""
        self.nodes.append(helper.make_node(op, inputs, [f"v{len(self.nodes)}"], **about))
        return self.nodes[-1].output[0]


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


def quantised_network(channels: int, size: int) -> bytes:
    """The same in QDQ form, but for a filter per channel of the block; the result is float32."""
    random = np.random.default_rng(channels)
    net = _Net()
    add, const, nodes, consts = net.add, net.const, net.nodes, net.consts

    def bytes_of(x: str, scale: float, zero: int) -> str:
        numbers = const(np.float32(scale)), const(np.uint8(zero))
        return add("DequantizeLinear", add("QuantizeLinear", x, *numbers), *numbers)

    def weight(*shape: int) -> str:
        values = const(random.integers(-127, 128, shape).astype(np.int8))
        scales = (0.01 * random.uniform(0.5, 1.5, shape[0])).astype(np.float32)
        zeros = np.zeros(shape[0], np.int8)
        return add("DequantizeLinear", values, const(scales), const(zeros), axis=0)

    c = channels
    x = bytes_of("x0", 0.03, 120)
    b = add("Conv", x, weight(c, 3, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1])
    b = bytes_of(add("Relu", b), 0.02, 0)
    d = bytes_of(add("Conv", b, weight(c, 1, 3, 3), group=c, pads=[1, 1, 1, 1]), 0.05, 128)
    e = bytes_of(add("Sigmoid", d), 1 / 256, 0)
    f = bytes_of(add("Conv", e, weight(c, c, 1, 1)), 0.05, 110)
    g = bytes_of(add("Add", f, b), 0.06, 90)
    h = add("MaxPool", g, kernel_shape=[3, 3], strides=[2, 2])
    i = bytes_of(add("GlobalAveragePool", bytes_of(h, 0.06, 90)), 0.05, 80)
    j = bytes_of(add("Flatten", i), 0.05, 80)
    bytes_of(add("Gemm", j, weight(10, c), transB=1), 0.1, 128)
    nodes[-1].output[0] = "y"
    value = helper.make_tensor_value_info
    image = value("x0", TensorProto.FLOAT, (1, 3, size, size))
    made = value("y", TensorProto.FLOAT, (1, 10))
    graph = helper.make_graph(nodes, "net", [image], [made], consts)
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8).SerializeToString()


def attention_network(tokens: int, heads: int) -> bytes:
    """Attention over embeddings of tokens, with a mask, between products with constant matrices."""
    random, size = np.random.default_rng(tokens), 8
    width = heads * size
    net = _Net()
    add, const, nodes, consts = net.add, net.const, net.nodes, net.consts

    def weight(*shape: int) -> str:
        return const(random.standard_normal(shape).astype(np.float32) / 3)

    def split(x: str, perm: list[int]) -> str:
        parts = add("Reshape", x, const(np.array([1, tokens, heads, size])))
        return add("Transpose", parts, perm=perm)

    x = add("Gather", weight(50, width), "ids", axis=0)
    q, k, v = (add("MatMul", x, weight(width, width)) for _ in range(3))
    scores = add("MatMul", split(q, [0, 2, 1, 3]), split(k, [0, 2, 3, 1]))
    scores = add("Mul", scores, const(np.float32(size**-0.5)))
    shown = add("Cast", "mask", to=TensorProto.BOOL)
    scores = add("Where", shown, scores, const(np.float32(-1e9)))
    parts = add("MatMul", add("Softmax", scores, axis=-1), split(v, [0, 2, 1, 3]))
    joined = add("Transpose", parts, perm=[0, 2, 1, 3])
    flat = add("Reshape", joined, const(np.array([1, tokens, width])))
    nodes.append(helper.make_node("MatMul", [flat, weight(width, width)], ["y"]))
    value = helper.make_tensor_value_info
    ids = value("ids", TensorProto.INT64, (1, tokens))
    mask = value("mask", TensorProto.INT64, (1, 1, 1, tokens))
    made = value("y", TensorProto.FLOAT, (1, tokens, width))
    graph = helper.make_graph(nodes, "net", [ids, mask], [made], consts)
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8).SerializeToString()

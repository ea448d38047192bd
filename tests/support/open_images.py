"""Networks of images of any size: convolutions, pooling and resizing of every family that CPUs have."""

from __future__ import annotations

from functools import cache

import numpy as np
from onnx import TensorProto, helper, numpy_helper

DIMS = ("batch", 3, "height", "width")


class Net:
    """An ONNX network in the making: each method adds a node and returns its output."""

    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)
        self.nodes, self.weights = [], []

    def weight(self, *shape):
        scale = np.sqrt(2 / max(np.prod(shape[1:]), 1))
        name = f"w{len(self.weights)}"
        array = (scale * self.rng.standard_normal(shape)).astype(np.float32)
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def add(self, op, *inputs, **attributes):
        out = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [out], name=out, **attributes))
        return out

    def conv(self, x, ic, oc, kernel=3, stride=1, group=1, relu=True):
        weights = self.weight(oc, ic // group, kernel, kernel), self.weight(oc)
        pads = [kernel // 2] * 4
        y = self.add("Conv", x, *weights, pads=pads, strides=[stride] * 2, group=group)
        return self.add("Relu", y) if relu else y

    def scales(self, *values):
        return self.const(np.array(values, np.float32))

    def const(self, array):
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def model(self, *outputs, dims=DIMS):
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            self.weights,
        )
        opset = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()


@cache
def segmentation():
    """Convolutions of every CPU family, pooling, and back up to the image's size."""
    net = Net()
    x = net.conv("x", 3, 16, stride=2)
    y = net.conv(net.conv(x, 16, 16, group=16), 16, 32, kernel=1)
    y = net.add("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])
    z = net.conv(y, 32, 32, relu=False)
    y = net.add("Relu", net.add("Add", y, z))
    mean = net.add("AveragePool", y, kernel_shape=[3, 3], pads=[1] * 4)
    y = net.add("Concat", y, mean, axis=1)
    y = net.add("ConvTranspose", y, net.weight(64, 16, 2, 2), strides=[2, 2])
    y = net.add("Concat", y, x, axis=1)
    return net.model(net.conv(y, 32, 5, kernel=1, relu=False))


@cache
def resizing():
    """Windows of other kinds: padded pooling, transposed windows that overlap, interpolation."""
    net = Net()
    y = net.conv("x", 3, 8)
    pools = [
        net.add("AveragePool", y, kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1),
        net.add("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
        net.add("LpPool", y, kernel_shape=[2, 2], strides=[2, 2], p=2),
    ]
    filtered = net.conv(y, 8, 8, group=8)
    wide = net.add("ConvTranspose", pools[1], net.weight(8, 6, 3, 3), strides=[2, 2], pads=[1] * 4)
    scales = net.scales(1, 1, 2, 2)
    near = net.add("Resize", pools[2], "", scales, mode="nearest")
    between = net.add("Resize", pools[2], "", scales, mode="linear")
    return net.model(filtered, pools[0], wide, near, between)


@cache
def separable():
    """A depthwise and a 1x1 convolution, which are one kernel on CPUs, for images of any size."""
    net = Net()
    y = net.conv(net.conv("x", 16, 16, group=16), 16, 32, kernel=1)
    return net.model(y, dims=("batch", 16, "height", "width"))


@cache
def tokens():
    """Functions and a normalisation of rows behind views of convolutions and products, as transformers have them."""
    net = Net()
    y = net.conv("x", 3, 16, stride=2, relu=False)
    rows = net.add("Reshape", y, net.const(np.array([0, 16, -1])))
    rows = net.add("Sigmoid", net.add("Transpose", rows, perm=[0, 2, 1]))
    flat = net.add("MatMul", rows, net.weight(16, 8))
    flat = net.add("Reshape", flat, net.const(np.array([-1, 8])))
    scale, shift = net.weight(8), net.weight(8)
    mean, spread = net.weight(8), net.const(np.linspace(0.5, 2, 8, dtype=np.float32))
    flat = net.add("BatchNormalization", flat, scale, shift, mean, spread)
    back = net.add("Reshape", flat, net.add("Shape", net.add("MatMul", rows, net.weight(16, 8))))
    return net.model(net.add("Tanh", back))

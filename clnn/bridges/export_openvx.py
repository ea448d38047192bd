"""A simulation in Q7.8 as an OpenVX graph, written by vxExportBinary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from clnn.apis import openvx as vx
from clnn.bridges.layers import Layer
from clnn.errors import UnsupportedOpError
from clnn.ops.movement.views import Reshape
from clnn.types import Array

FRACTION, BITS = 8, 32
RELUS = {
    "relu": vx.VX_CONVOLUTIONAL_NETWORK_ACTIVATION_RELU,
    "relu6": vx.VX_CONVOLUTIONAL_NETWORK_ACTIVATION_BRELU,
    "sigmoid": vx.VX_CONVOLUTIONAL_NETWORK_ACTIVATION_LOGISTIC,
    "tanh": vx.VX_CONVOLUTIONAL_NETWORK_ACTIVATION_HYPERBOLIC_TAN,
}
POOLS = {
    "max_pool": vx.VX_CONVOLUTIONAL_NETWORK_POOLING_MAX,
    "average_pool": vx.VX_CONVOLUTIONAL_NETWORK_POOLING_AVG,
}
SATURATE, EVEN = vx.VX_CONVERT_POLICY_SATURATE, vx.VX_ROUND_POLICY_TO_NEAREST_EVEN
FLOOR = vx.VX_CONVOLUTIONAL_NETWORK_DS_SIZE_ROUNDING_FLOOR
CEILING = vx.VX_CONVOLUTIONAL_NETWORK_DS_SIZE_ROUNDING_CEILING
OPS = {"conv", "depthwise", "fully_connected", "softmax", "add", "sub", "mul", *RELUS, *POOLS}


class GraphWriter:
    """An OpenVX graph of one image at a time; integers of the simulation by their names."""

    def __init__(self, context: Any, network: Any) -> None:
        self.context, self.graph = context, vx.vxCreateGraph(context)
        self.types = network.graph.types
        self.tensors: dict[str, Any] = {}
        self.inputs: dict[str, Any] = {}
        self._sources = {
            node.outputs[0]: str(node.inputs[0])
            for node in network.graph.nodes
            if isinstance(node.spec, Reshape)
        }
        self._last = [layer.integers for layer in network.layers][-1:]

    def add(self, layer: Layer) -> None:
        """Add a layer's nodes."""
        out = self.result(layer.integers)
        if layer.op in ("conv", "depthwise", "fully_connected"):
            self._products(layer, out)
        elif layer.op in POOLS:
            self._pool(layer, out)
        elif layer.op in RELUS:
            self._activate(self.tensor(layer.inputs[0]), layer.op, out)
        elif layer.op == "softmax":
            vx.vxSoftmaxLayer(self.graph, self.tensor(layer.inputs[0]), out)
        elif layer.op == "mul":
            one, two = (self.tensor(name) for name in layer.inputs)
            scale = vx.vxCreateScalar(self.context, vx.VX_TYPE_FLOAT32, 1.0)
            vx.vxTensorMultiplyNode(self.graph, one, two, scale, SATURATE, EVEN, out)
        else:
            one, two = (self.tensor(name) for name in layer.inputs)
            node = vx.vxTensorAddNode if layer.op == "add" else vx.vxTensorSubtractNode
            node(self.graph, one, two, SATURATE, out)

    def tensor(self, name: str) -> Any:
        """Return the tensor of integers that are computed before, or given from outside."""
        while name not in self.tensors and name in self._sources:
            name = self._sources[name]
        if name not in self.tensors:
            dims = self._dims(name)
            self.tensors[name] = vx.vxCreateTensor(
                self.context, len(dims), dims, vx.VX_TYPE_INT16, FRACTION
            )
            self.inputs[f"input{len(self.inputs)}"] = self.tensors[name]
        return self.tensors[name]

    def result(self, name: str) -> Any:
        """Return the tensor that a layer writes: virtual, but for the last one."""
        kept = name in self._last
        self.tensors[name] = self._new(self._dims(name), kept)
        source = name  # a layer whose result is reshaped writes the plain shape
        while source in self._sources:
            source = self._sources[source]
            self.tensors[source] = self.tensors[name]
        return self.tensors[name]

    def _new(self, dims: tuple[int, ...], kept: bool = False) -> Any:
        given = len(dims), dims, vx.VX_TYPE_INT16, FRACTION
        if kept:
            return vx.vxCreateTensor(self.context, *given)
        return vx.vxCreateVirtualTensor(self.graph, *given)

    def _dims(self, name: str) -> tuple[int, ...]:
        shape = self.types[name].shape
        return tuple(shape[:0:-1]) or (1,)

    def _const(self, values: Array) -> Any:
        dims = values.shape[::-1]
        made = vx.vxCreateTensor(self.context, len(dims), dims, vx.VX_TYPE_INT16, FRACTION)
        data = np.ascontiguousarray(values, np.int16)
        vx.vxCopyTensorPatch(made, None, None, data, vx.VX_WRITE_ONLY)
        return made

    def _activate(self, x: Any, activation: str, out: Any) -> None:
        a, b = (6, 0) if activation == "relu6" else (1, 1)
        vx.vxActivationLayer(self.graph, x, RELUS[activation], a, b, out)

    def _products(self, layer: Layer, out: Any) -> None:
        data, x = layer.data, self.tensor(layer.inputs[0])
        made = self._new(self._dims(layer.integers)) if data["activation"] else out
        weights, bias = data["weights"], data["bias"]
        if layer.op == "fully_connected":
            flat = self._const(weights.reshape(len(weights), -1))
            parts = x, flat, self._const(bias)
            vx.vxFullyConnectedLayer(self.graph, *parts, 0, BITS, SATURATE, EVEN, FLOOR, made)
        else:
            self._convolutions(layer, x, made)
        if data["activation"]:
            self._activate(made, data["activation"], out)

    def _convolutions(self, layer: Layer, x: Any, out: Any) -> None:
        """Add one node for each group, on views of its maps."""
        data, group = layer.data, layer.data["group"]
        weights, bias = data["weights"], data["bias"]
        window, filters = data["window"], len(weights) // group
        rounding = FLOOR if window.before == window.after else CEILING
        (top, left), (down, right) = window.before, window.dilations
        for k in range(group):
            part = slice(k * filters, (k + 1) * filters)
            given = self._maps(x, self._dims(layer.inputs[0]), k, weights.shape[1], group)
            made = self._maps(out, self._dims(layer.integers), k, filters, group)
            parts = given, self._const(weights[part]), self._const(bias[part])
            how = left, top, BITS, SATURATE, EVEN, rounding, made, right - 1, down - 1
            vx.vxConvolutionLayer(self.graph, *parts, *how)

    def _maps(self, tensor: Any, dims: tuple[int, ...], number: int, count: int, group: int) -> Any:
        """Return the view of the maps of one group."""
        if group == 1:
            return tensor
        begin, end = (0, 0, number * count), (*dims[:2], (number + 1) * count)
        view = vx.vxCreateTensorView(self.context, begin, end, 3)
        return vx.vxCreateTensorFromView(tensor, view)

    def _pool(self, layer: Layer, out: Any) -> None:
        window, x = layer.data["window"], self.tensor(layer.inputs[0])
        rounding = FLOOR if window.before == window.after else CEILING
        sizes = window.kernel[1], window.kernel[0], window.before[1], window.before[0]
        vx.vxPoolingLayer(self.graph, x, POOLS[layer.op], *sizes, rounding, out)


def write_graph(network: Any, path: Path) -> Path:
    """Write a network of one image as an exported graph with "input0", ... and "output".

    Raises UnsupportedOpError for layers that are computed in float32, or are not OpenVX's.
    """
    strange = [la.name for la in network.layers if not la.integers or la.op not in OPS]
    if strange:
        raise UnsupportedOpError(
            f"layers {', '.join(strange)} are none of OpenVX: the graph cannot be exported. Export the part"
            " of the model without them."
        )
    with vx.vxCreateContext() as context:
        writer = GraphWriter(context, network)
        for layer in network.layers:
            writer.add(layer)
        vx.vxVerifyGraph(writer.graph)
        last = writer.tensors[network.layers[-1].integers]
        vx.vxExportBinary(writer.graph, path, {**writer.inputs, "output": last})
    return path

"""Batch normalisations taken into the weights of the convolutions that they follow."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from clnn.importers.onnx.order import reads
from clnn.types import Array


def without_batchnorm(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose batch normalisations of convolutions' results alone are folded away."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    consts = {t.name: t for t in graph.initializer}
    uses: dict[str, int] = {v.name: 1 for v in graph.output}
    for node in graph.node:
        for name in reads(node):
            uses[name] = uses.get(name, 0) + 1
    makers = {name: node for node in graph.node for name in node.output}
    for node in list(graph.node):
        conv = makers.get(node.input[0]) if node.op_type == "BatchNormalization" else None
        if conv is None or conv.op_type != "Conv" or uses[node.input[0]] != 1:
            continue
        needed = [*node.input[1:5], conv.input[1], *conv.input[2:3]]
        if len([n for n in node.output if n]) == 1 and all(n in consts for n in needed):
            _fold(graph, consts, conv, node)
    return made


def _fold(
    graph: onnx.GraphProto,
    consts: dict[str, onnx.TensorProto],
    conv: onnx.NodeProto,
    node: onnx.NodeProto,
) -> None:
    """Scale a convolution's weights and move its bias as the node behind it does."""

    def array(name: str) -> Array:
        return np.asarray(numpy_helper.to_array(consts[name])).astype(np.float64)

    epsilon = next((a.f for a in node.attribute if a.name == "epsilon"), 1e-5)
    gamma, beta, mean, variance = (array(name) for name in node.input[1:5])
    factor, weights = gamma / np.sqrt(variance + epsilon), array(conv.input[1])
    bias = array(conv.input[2]) if len(conv.input) > 2 else np.zeros(len(weights))
    wide = factor.reshape(-1, *(1,) * (weights.ndim - 1))
    names = [f"{node.output[0]}:folded_weights", f"{node.output[0]}:folded_bias"]
    for name, values in zip(names, (weights * wide, (bias - mean) * factor + beta), strict=True):
        consts[name] = numpy_helper.from_array(values.astype(np.float32), name)
        graph.initializer.append(consts[name])
    folded = helper.make_node("Conv", [conv.input[0], *names], [node.output[0]], conv.name)
    folded.attribute.extend(conv.attribute)
    place = list(graph.node).index(node)
    graph.node.insert(place, folded)
    graph.node.remove(conv)
    graph.node.remove(node)

"""A float32 model that also gives what calibration looks at: values, and average errors of rounded weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from clnn.importers.onnx.qdq.model import QdqModel
from clnn.types import Array

NO_BIAS = float(2**60)  # a step of the input so large that no bias asks for larger scales


def observed(
    model: QdqModel, more: Sequence[str] = (), errors: bool = False
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return the float32 model whose outputs are the values that are wanted, and more: outputs or float32 values.

    errors: also what rounding of a product's weights adds to each output channel, averaged over the places
    of each row: (rows, channels). The dictionary says which output holds it, by the product's result.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model.model)
    graph = made.graph
    del graph.output[:]
    own = {v.name: v for v in model.model.graph.output}
    for name in dict.fromkeys([*model.wanted(), *more]):
        real = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        graph.output.append(own.get(name, real))
    found = {}
    for node in model.products() if errors else ():
        name = _average_error(model, graph, node) if model.biased(node) else ""
        if name:
            found[node.output[0]] = name
            info = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
            graph.output.append(info)
    return made, found


def scales_as_observed(model: QdqModel, node: onnx.NodeProto, step: float) -> Array:
    """Return for each output channel whether its weights are rounded as `observed` takes them to be."""
    scale = model.rounded(node, step).scale
    return np.asarray(scale == model.rounded(node, NO_BIAS).scale)


def _average_error(model: QdqModel, graph: onnx.GraphProto, node: onnx.NodeProto) -> str:
    """Add a product with the errors of the weights, and its averages; returns their name."""
    key = node.output[0]
    places = _places(model, node)
    if places is None:
        return ""
    weights = model.weights(node)
    error = model.rounded(node, NO_BIAS).weights.astype(np.float64) - weights
    copied = onnx.NodeProto()
    copied.CopyFrom(node)
    copied.name, copied.output[0] = f"{node.name}:error", f"{key}:error"
    copied.input[1] = f"{key}:weight_error"
    del copied.input[2:]
    graph.initializer.append(numpy_helper.from_array(error.astype(np.float32), copied.input[1]))
    graph.node.append(copied)
    if not places:
        return f"{key}:error"
    name = f"{key}:mean_error"
    if model.opset < 18:
        mean = helper.make_node("ReduceMean", [f"{key}:error"], [name], axes=places, keepdims=0)
    else:
        axes = numpy_helper.from_array(np.array(places, np.int64), f"{name}:axes")
        graph.initializer.append(axes)
        inputs = [f"{key}:error", axes.name]
        mean = helper.make_node("ReduceMean", inputs, [name], keepdims=0)
    graph.node.append(mean)
    return name


def _places(model: QdqModel, node: onnx.NodeProto) -> list[int] | None:
    """Return the axes of a product's result that are neither rows nor channels; None: its rank is not known."""
    if node.op_type in ("Conv", "ConvTranspose"):
        return list(range(2, model.weights(node).ndim))
    if node.op_type == "Gemm":
        return []
    kind = model.types.get(node.input[0])
    if kind is None or not kind.HasField("shape") or len(kind.shape.dim) < 2:
        return None
    return list(range(1, len(kind.shape.dim) - 1))

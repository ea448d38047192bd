"""Small ONNX models for the importer's tests, and how to run an imported one without a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx import helper as make

from clnn.graph.ir import Graph
from clnn.verification.reference import reference_values

FLOAT, INT32, INT64, BOOL = (
    TensorProto.FLOAT,
    TensorProto.INT32,
    TensorProto.INT64,
    TensorProto.BOOL,
)
Dims = Sequence["int | str | None"]


def value(name: str, dims: Dims | None, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return make.make_tensor_value_info(name, kind, dims)


def tensor(name: str, array: Any) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(array), name)


def ints(name: str, *values: int) -> onnx.TensorProto:
    return tensor(name, np.array(values, np.int64))


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto] = (),
    outputs: Sequence[str] = ("y",),
    initializers: Sequence[onnx.TensorProto] = (),
    opset: int = 21,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """A model of these parts; outputs are given without types."""
    graph = make.make_graph(
        list(nodes),
        "graph",
        list(inputs),
        [onnx.ValueInfoProto(name=n) for n in outputs],
        list(initializers),
    )
    opsets = [make.make_opsetid("", opset)]
    opsets += [make.make_opsetid(domain, version) for domain, version in (domains or {}).items()]
    return make.make_model(
        graph, opset_imports=opsets, functions=list(functions), ir_version=10, producer_name="test"
    )


def relu(dims: Dims = (1, 3, 4, 4)) -> onnx.ModelProto:
    return model([make.make_node("Relu", ["x"], ["y"], name="relu")], [value("x", dims)])


def conv(**attrs: Any) -> onnx.ModelProto:
    """One convolution of (1, 3, 8, 8) with four 3x3 filters."""
    weights = np.arange(108, dtype=np.float32).reshape(4, 3, 3, 3) / 100
    node = make.make_node("Conv", ["x", "w"], ["y"], name="conv", **attrs)
    return model([node], [value("x", (1, 3, 8, 8))], initializers=[tensor("w", weights)])


def run(graph: Graph, **feeds: np.ndarray) -> dict[str, np.ndarray]:
    """Return the outputs of a graph by the numpy references of its ops."""
    found = reference_values(graph, feeds)
    return {public: found[name] for public, name in graph.outputs.items()}

"""What an ONNX file says of itself, without importing its nodes: for listings and messages."""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import prod

import onnx

from clnn.importers.onnx.dims import symbol
from clnn.importers.onnx.load import Loaded, load_model
from clnn.records import dataclass

Dims = tuple["int | str", ...]


@dataclass(frozen=True)
class ValueInfo:
    """An input or output: name, numpy name of its element type ("" where it is not a tensor), and
    dimensions: numbers, names of symbolic ones, "" for unnamed ones. None: no shape is given."""

    name: str
    dtype: str
    dims: Dims | None


@dataclass(frozen=True)
class NodeInfo:
    """A node: its name (made up from op and place where it has none) and domain::op."""

    name: str
    op: str


@dataclass(frozen=True)
class ModelInfo:
    """Head data of a model. opsets: domain -> version. weights: elements of all initializers."""

    producer: str
    ir_version: int
    opsets: Mapping[str, int]
    inputs: tuple[ValueInfo, ...]
    outputs: tuple[ValueInfo, ...]
    nodes: tuple[NodeInfo, ...]
    metadata: Mapping[str, str]
    weights: int

    @property
    def dimensions(self) -> tuple[str, ...]:
        """Names of the symbolic dimensions of the inputs."""
        named = [d for v in self.inputs for d in v.dims or () if isinstance(d, str) and d]
        return tuple(dict.fromkeys(named))


def read_info(model: str | os.PathLike[str] | bytes | onnx.ModelProto | Loaded) -> ModelInfo:
    """Return the head data of an ONNX model. Raises ModelError."""
    proto, _ = load_model(model)
    graph = proto.graph
    fixed = {tensor.name for tensor in graph.initializer}
    return ModelInfo(
        f"{proto.producer_name} {proto.producer_version}".strip(),
        proto.ir_version,
        {o.domain or "ai.onnx": o.version for o in proto.opset_import},
        tuple(_value(v) for v in graph.input if v.name not in fixed),
        tuple(_value(v) for v in graph.output),
        tuple(NodeInfo(n.name or f"{n.op_type}_{i}", _op(n)) for i, n in enumerate(graph.node)),
        {entry.key: entry.value for entry in proto.metadata_props},
        sum(prod(tensor.dims) for tensor in graph.initializer),
    )


def _op(node: onnx.NodeProto) -> str:
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"


def _value(value: onnx.ValueInfoProto) -> ValueInfo:
    tensor = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not tensor.elem_type:
        return ValueInfo(value.name, "", None)
    try:
        dtype = str(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    except KeyError:
        dtype = ""
    if not tensor.HasField("shape"):
        return ValueInfo(value.name, dtype, None)
    dims = tuple(
        d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else symbol(d)
        for d in tensor.shape.dim
    )
    return ValueInfo(value.name, dtype, dims)

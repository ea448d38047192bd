"""An ONNX model with the results of all its nodes as outputs, to compare engines node by node."""

from __future__ import annotations

import os
from collections.abc import Mapping

import onnx
from onnx import numpy_helper

from clnn.errors import ModelError
from clnn.importers.onnx.limits import Budget
from clnn.importers.onnx.load import load_model
from clnn.importers.onnx.tensors import TensorReader
from clnn.records import dataclass

LARGEST_MODEL = 2**31 - 1


@dataclass(frozen=True)
class OpenModel:
    """A model file's bytes with every value as an output, weights inside.

    makers: name of a value -> name and op of the node that makes it, in the model's order.
    """

    data: bytes
    makers: Mapping[str, str]


def with_all_outputs(model: str | os.PathLike[str] | bytes) -> OpenModel:
    """Return `model` with every node's results as outputs. Raises ModelError."""
    source, folder = load_model(model)
    proto = onnx.ModelProto()
    proto.CopyFrom(source)
    reader = TensorReader(folder, Budget())
    for tensor in proto.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            tensor.CopyFrom(numpy_helper.from_array(reader.array(tensor), tensor.name))
    public = {value.name for value in proto.graph.output}
    makers = {}
    for number, node in enumerate(proto.graph.node):
        label = f"{node.name or f'{node.op_type}_{number}'} ({node.op_type})"
        makers.update({name: label for name in node.output if name})
    proto.graph.output.extend(onnx.ValueInfoProto(name=n) for n in makers if n not in public)
    if proto.ByteSize() > LARGEST_MODEL:
        raise ModelError(
            f"the model has {proto.ByteSize()} bytes with its weights inside, over protobuf's limit"
            f" of {LARGEST_MODEL}. Compare it against 'reference', or without layers."
        )
    return OpenModel(proto.SerializeToString(), makers)

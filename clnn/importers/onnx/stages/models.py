"""The ONNX model of one device stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
from onnx import numpy_helper

from clnn.importers.onnx.order import reads
from clnn.importers.onnx.stages.program import StageInput
from clnn.importers.onnx.stages.values import Constants
from clnn.records import dataclass
from clnn.types import Array


@dataclass(frozen=True)
class StageModel:
    """Makes the model of a stage from its nodes, once the types of what it reads are known."""

    name: str
    nodes: tuple[onnx.NodeProto, ...]
    outputs: tuple[str, ...]
    consts: Constants
    opsets: tuple[Any, ...]
    ir_version: int

    def __call__(
        self, types: Mapping[str, StageInput], fixed: Mapping[str, Array]
    ) -> onnx.ModelProto:
        """Return the model. types: of the inputs. fixed: values that are constants of it."""
        made = {n for node in self.nodes for n in node.output}
        names = sorted({n for node in self.nodes for n in reads(node) if n} - made)
        graph = onnx.GraphProto(name=self.name)
        for name in names:
            if name in fixed:
                graph.initializer.append(numpy_helper.from_array(fixed[name], name))
            elif name not in types:
                tensor = graph.initializer.add()
                tensor.CopyFrom(self.consts.tensor(name))
                tensor.name = name
        graph.input.extend(_value(info) for info in types.values())
        graph.output.extend(onnx.ValueInfoProto(name=n) for n in self.outputs)
        graph.node.extend(self.nodes)
        return onnx.helper.make_model(
            graph, opset_imports=list(self.opsets), ir_version=self.ir_version
        )


def _value(info: StageInput) -> onnx.ValueInfoProto:
    kind = onnx.helper.np_dtype_to_tensor_dtype(info.dtype)
    dims = None if info.shape is None else [d if isinstance(d, int) else None for d in info.shape]
    return onnx.helper.make_tensor_value_info(info.name, kind, dims)

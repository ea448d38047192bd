"""Operators computed by the numpy reference of their op, for sizes that are new in each run."""

from __future__ import annotations

import numpy as np

from clnn.ops.host.registry import HostNode, host_op
from clnn.ops.onnx_registry import Emit, EmitOutput, OnnxNode, Source, Unsupported, onnx_importers
from clnn.types import Array, TensorType


@host_op("Resize", "Upsample")
def _by_reference(node: HostNode, *inputs: Array | None) -> Array:
    kinds = tuple(None if a is None else TensorType.of(a) for a in inputs)
    consts = {k: a for k, a in enumerate(inputs) if a is not None and k}
    onnx_node = OnnxNode(node.op_type, node.opset, node.attrs, kinds, consts, node.n_outputs)
    try:
        source = onnx_importers()[node.op_type](onnx_node)
    except Unsupported as err:
        raise ValueError(str(err)) from err
    first = source[0] if isinstance(source, (list, tuple)) else source
    value = _evaluate(first, inputs)  # type: ignore[arg-type]
    assert value is not None
    return value


def _evaluate(source: Source, inputs: tuple[Array | None, ...]) -> Array | None:
    """Return the value of what an importer function asks for."""
    if source is None or isinstance(source, np.ndarray):
        return source
    if isinstance(source, int):
        return inputs[source] if source < len(inputs) else None
    emit = source.emit if isinstance(source, EmitOutput) else source
    index = source.index if isinstance(source, EmitOutput) else 0
    assert isinstance(emit, Emit)
    return emit.spec.reference(*(_evaluate(s, inputs) for s in emit.inputs))[index]

"""One ONNX node run by other engines: onnxruntime, and onnx's own reference evaluator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from clnn.runtime.device.processor import lists


def one_node(
    op: str,
    inputs: Sequence[np.ndarray | None],
    attrs: Mapping[str, Any] | None = None,
    opset: int = 21,
    consts: Sequence[int] = (),
    n_outputs: int = 1,
    out_types: Sequence[int] = (),
) -> onnx.ModelProto:
    """Return a model of one node; inputs i0, i1, ... of which `consts` are initializers."""
    names = ["" if a is None else f"i{k}" for k, a in enumerate(inputs)]
    outs = [f"o{k}" for k in range(n_outputs)]
    fed = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for k, (n, a) in enumerate(zip(names, inputs, strict=True))
        if a is not None and k not in consts
    ]
    fixed = [
        numpy_helper.from_array(a, f"i{k}")
        for k, a in enumerate(inputs)
        if a is not None and k in consts
    ]
    made = [onnx.ValueInfoProto(name=o) for o in outs]
    if out_types:
        made = [
            helper.make_tensor_value_info(o, t, None) for o, t in zip(outs, out_types, strict=True)
        ]
    node = helper.make_node(op, names, outs, **(attrs or {}))
    graph = helper.make_graph([node], "one", fed, made, fixed)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8 if opset < 21 else 10
    )


def exact_session(model: bytes, threads: int = 0) -> Any:
    """Return onnxruntime's session of a model, on the CPU, whose products of bytes do not saturate.

    On processors without VNNI those of uint8 and int8 do, unless they are asked not to; then it refuses
    some models, whose products do not saturate anyhow.
    """
    import onnxruntime

    def session(exact: bool) -> Any:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        if exact:
            options.add_session_config_entry("session.x64quantprecision", "1")
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    if lists("avx512_vnni") or lists("avx_vnni"):
        return session(exact=False)
    try:
        return session(exact=True)
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:
        return session(exact=False)


def onnxruntime_result(
    op: str, inputs: Sequence[np.ndarray | None], *args: Any, **named: Any
) -> list[np.ndarray]:
    """Return the outputs of onnxruntime on the CPU."""
    session = exact_session(one_node(op, inputs, *args, **named).SerializeToString())
    wanted = {i.name for i in session.get_inputs()}
    feeds = {f"i{k}": a for k, a in enumerate(inputs) if a is not None and f"i{k}" in wanted}
    return session.run(None, feeds)


def onnx_result(
    op: str, inputs: Sequence[np.ndarray | None], *args: Any, **named: Any
) -> list[np.ndarray]:
    """Return the outputs of onnx's reference evaluator."""
    from onnx.reference import ReferenceEvaluator

    model = one_node(op, inputs, *args, **named)
    wanted = {i.name for i in model.graph.input}
    feeds = {f"i{k}": a for k, a in enumerate(inputs) if a is not None and f"i{k}" in wanted}
    return ReferenceEvaluator(model).run(None, feeds)

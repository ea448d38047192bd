"""Structure of an ONNX model that nobody vouches for: versions, names, attributes; not its data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Any

import onnx

from clnn.budget import MAX_NODES
from clnn.errors import ModelError
from clnn.importers.onnx.limits import (
    MAX_DEPTH,
    MAX_EXTENT,
    MAX_RANK,
    default_domain,
    show,
)
from clnn.importers.onnx.order import subgraphs

_WINDOW_OPS = (
    "AveragePool",
    "Conv",
    "ConvInteger",
    "ConvTranspose",
    "DeformConv",
    "LpPool",
    "MaxPool",
    "MaxUnpool",
    "QLinearConv",
)
# Engines do not agree about other numbers.
_FLAGS = {
    "ceil_mode",
    "count_include_pad",
    "exclusive",
    "keepdims",
    "largest",
    "reverse",
    "select_last_index",
}
_LOWEST = {"strides": 1, "dilations": 1, "kernel_shape": 1, "pads": 0, "output_padding": 0}


def check_model(proto: onnx.ModelProto) -> None:
    """Check versions, limits, names and attributes of a parsed model. Raises ModelError."""
    _check_versions(proto)
    keys = [(f.domain, f.name, f.overload) for f in proto.functions]
    _check_text(text for key in keys for text in key)
    if len(set(keys)) != len(keys):
        raise ModelError("the model defines a function twice. The file is not valid.")
    count = sum(
        _count(nodes, 0) for nodes in (proto.graph.node, *(f.node for f in proto.functions))
    )
    if count > MAX_NODES:
        raise ModelError(f"the model has {count} nodes. clnn takes at most {MAX_NODES}.")
    _check_graph(proto.graph)
    for function in proto.functions:
        _check_text([*function.input, *function.output, *function.attribute])
        _check_text(attr.name for attr in function.attribute_proto)
        _check_text(entry.domain for entry in function.opset_import)
        own = {*function.attribute, *(attr.name for attr in function.attribute_proto)}
        _check_nodes(function.node, own)
        _check_made_once(function.node, list(function.input), f"function {show(function.name)}")


def _check_versions(proto: onnx.ModelProto) -> None:
    if not 1 <= proto.ir_version <= onnx.IR_VERSION:
        raise ModelError(
            f"the model is of IR version {proto.ir_version}; onnx {onnx.__version__} knows 1 to "
            f"{onnx.IR_VERSION}. Update the onnx package, or export with an older IR version."
        )
    if not proto.opset_import:
        raise ModelError("the model names no operator set (opset_import). The file is not valid.")
    seen: dict[str, int] = {}
    _check_text(entry.domain for entry in proto.opset_import)
    for entry in proto.opset_import:
        domain = default_domain(entry.domain)
        if seen.setdefault(domain, entry.version) != entry.version:
            raise ModelError(
                f"the model names domain {show(domain)} with opsets {seen[domain]} and "
                f"{entry.version}. The file is not valid."
            )
    version = seen.get("ai.onnx", 0)
    if version > onnx.defs.onnx_opset_version():
        raise ModelError(
            f"the model uses opset {version}; onnx {onnx.__version__} knows up to "
            f"{onnx.defs.onnx_opset_version()}. Update the onnx package."
        )


def _count(nodes: Sequence[onnx.NodeProto], depth: int) -> int:
    """Return the number of nodes, those of graphs inside included. Raises ModelError."""
    if depth > MAX_DEPTH:
        raise ModelError(f"graphs are nested deeper than {MAX_DEPTH}. Such files are refused.")
    inside = (_count(graph.node, depth + 1) for node in nodes for graph in subgraphs(node))
    return len(nodes) + sum(inside)


def _check_text(texts: Iterable[str | bytes]) -> None:
    """Refuse names that are not UTF-8, which protobuf hands over as bytes."""
    for text in texts:
        if isinstance(text, bytes):
            raise ModelError(f"the name {text[:40]!r} is not UTF-8. The file is not valid.")


def _check_graph(graph: onnx.GraphProto, named: Set[str] = frozenset()) -> None:
    """Check one graph and those inside of it. named: attributes of the function around it."""
    for value in (*graph.input, *graph.output):
        dims = value.type.tensor_type.shape.dim
        _check_text([value.name, *(d.dim_param for d in dims)])
    _check_text([graph.name, *(t.name for t in graph.initializer)])
    _check_text(t.values.name for t in graph.sparse_initializer)
    inputs = [v.name for v in graph.input]
    stored = [t.name for t in graph.initializer] + [t.values.name for t in graph.sparse_initializer]
    for kind, names in (("input", inputs), ("initializer", stored)):
        _check_names(kind, names)
    outputs = [v.name for v in graph.output]
    if len(set(outputs)) != len(outputs):
        raise ModelError(f"the graph lists an output twice: {outputs[:8]}. The file is not valid.")
    _check_nodes(graph.node, named)
    _check_made_once(graph.node, [*inputs, *stored], f"graph {show(graph.name)}")


def _check_names(kind: str, names: Sequence[str]) -> None:
    if "" in names:
        raise ModelError(f"an {kind} of the model has no name. The file is not valid.")
    if len(set(names)) != len(names):
        twice = next(n for place, n in enumerate(names) if n in names[:place])
        raise ModelError(f"the model has two {kind}s named {show(twice)}. The file is not valid.")


def _check_made_once(nodes: Sequence[onnx.NodeProto], known: Sequence[str], where: str) -> None:
    seen = set(known)
    for node in nodes:
        for name in node.output:
            if name and name in seen:
                raise ModelError(
                    f"value {show(name)} in {where} is made twice, the second time by node "
                    f"{show(node.name)} ({node.op_type[:80]}). The file is not valid."
                )
            seen.add(name)


def _check_nodes(nodes: Sequence[onnx.NodeProto], named: Set[str]) -> None:
    for node in nodes:
        _check_text([node.name, node.op_type, node.domain, node.overload])
        _check_text([*node.input, *node.output])
        _check_text(text for a in node.attribute for text in (a.name, a.ref_attr_name))
        _check_attributes(node, named)
        for inner in subgraphs(node):
            _check_graph(inner, named)


def _check_attributes(node: onnx.NodeProto, named: Set[str]) -> None:
    """Check what window ops and splits may ask for, whatever their importer does with it."""
    names = [a.name for a in node.attribute]
    if len(set(names)) != len(names):
        raise _wrong(node, f"an attribute is given twice among {names[:8]}")
    for attr in node.attribute:
        if attr.ref_attr_name and attr.ref_attr_name not in named:
            what = f"{show(attr.name)} refers to an attribute {show(attr.ref_attr_name)}"
            raise _wrong(node, f"{what}, which no function around it has")
    values = {a.name: a for a in node.attribute if not a.ref_attr_name}
    for name, attr in values.items():
        _check_attribute(node, name, attr)
    if node.op_type in _WINDOW_OPS:
        _check_window(node, values)


def _check_attribute(node: onnx.NodeProto, name: str, attr: Any) -> None:
    if name in ("group", "blocksize", "num_outputs") and attr.i < 1:
        raise _wrong(node, f"{name} is {attr.i}, must be at least 1")
    if name in _FLAGS and attr.i not in (0, 1) and default_domain(node.domain) == "ai.onnx":
        raise _wrong(node, f"{name} is {attr.i}, must be 0 or 1")
    if name == "num_outputs" and attr.i != len(node.output):
        raise _wrong(node, f"num_outputs is {attr.i} but the node has {len(node.output)} outputs")
    lowest = _LOWEST.get(name)
    if lowest is None or node.op_type not in _WINDOW_OPS:
        return
    if any(not lowest <= v <= MAX_EXTENT for v in attr.ints):
        listed = list(attr.ints)[: 2 * MAX_RANK]
        raise _wrong(node, f"{name} are {listed}: each must be from {lowest} to {MAX_EXTENT}")


def _check_window(node: onnx.NodeProto, values: dict[str, Any]) -> None:
    rank = 0
    for name, factor in (("kernel_shape", 1), ("strides", 1), ("dilations", 1), ("pads", 2)):
        count = len(values[name].ints) if name in values else 0
        if not count:
            continue
        rank = rank or count // factor
        if count != rank * factor or rank > MAX_RANK - 2:
            raise _wrong(
                node, f"{name} has {count} numbers, which does not fit a window of {rank} axes"
            )


def _wrong(node: onnx.NodeProto, what: str) -> ModelError:
    return ModelError(
        f"node {show(node.name)} ({node.op_type[:80]}): {what}. The file is not valid."
    )

"""Operators that ONNX defines by other operators: the body of their definition for one node."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from clnn.errors import ModelError
from clnn.importers.onnx.limits import NEWEST_OPSET, default_domain
from clnn.importers.onnx.scope import Call
from clnn.records import dataclass
from clnn.types import TensorType


@dataclass(frozen=True)
class Body:
    """Nodes that compute an operator, with the operator sets and attribute values they stand in."""

    function: onnx.FunctionProto
    opsets: Mapping[str, int]
    bindings: Mapping[str, onnx.AttributeProto]


def model_functions(
    proto: onnx.ModelProto,
) -> dict[tuple[str, str, str], onnx.FunctionProto]:
    """Return the functions that a model brings along, by (domain, name, overload)."""
    return {(default_domain(f.domain), f.name, f.overload): f for f in proto.functions}


def model_body(function: onnx.FunctionProto, call: Call) -> Body:
    """Return the body of a model's own function for one call of it."""
    bindings = {a.name: a for a in function.attribute_proto}
    bindings.update({a.name: a for a in call.attributes})
    opsets = dict(call.scope.opsets)
    opsets.update({default_domain(o.domain): o.version for o in function.opset_import})
    if len(call.inputs) > len(function.input) or len(call.node.output) > len(function.output):
        raise ModelError(
            f"function {call.op_type!r} takes {len(function.input)} inputs and makes "
            f"{len(function.output)} outputs; the call has {len(call.inputs)} and "
            f"{len(call.node.output)}."
        )
    return Body(function, opsets, bindings)


def standard_body(call: Call, kinds: tuple[TensorType | None, ...]) -> Body | None:
    """Return the body by which ONNX defines one of its operators, None where it has none."""
    if call.opset is None:
        return None
    schema = _schema(call.op_type, call.opset, call.domain)
    if schema is None or not _accepts(schema, call):
        return None
    function = _definition(schema, call, kinds)
    if function is None:
        return None
    bindings = {n: a.default_value for n, a in schema.attributes.items() if a.default_value.type}
    bindings.update({a.name: a for a in call.attributes})
    opsets = {"ai.onnx": min(NEWEST_OPSET, onnx.defs.onnx_opset_version())}
    opsets.update({default_domain(o.domain): o.version for o in function.opset_import})
    return Body(function, opsets, bindings)


def has_definition(call: Call) -> bool:
    """Whether ONNX defines an operator by others, for some of its forms at least."""
    schema = None if call.opset is None else _schema(call.op_type, call.opset, call.domain)
    return schema is not None and bool(schema.has_function or schema.has_context_dependent_function)


@lru_cache(maxsize=1024)
def _schema(op_type: str, opset: int, domain: str) -> onnx.defs.OpSchema | None:
    try:
        schema = onnx.defs.get_schema(op_type, opset, "" if domain == "ai.onnx" else domain)
    except onnx.defs.SchemaError:
        return None
    return schema if schema.since_version <= NEWEST_OPSET else None


def _accepts(schema: onnx.defs.OpSchema, call: Call) -> bool:
    """Whether the node has the inputs, outputs and attributes that the definition reads."""
    names = {a.name for a in call.attributes}
    required = {n for n, a in schema.attributes.items() if a.required}
    return (
        schema.min_input <= len(call.inputs) <= schema.max_input
        and schema.min_output <= len(call.node.output) <= schema.max_output
        and required <= names <= set(schema.attributes)
        and all(a.type == schema.attributes[a.name].type.value for a in call.attributes)
    )


def _definition(
    schema: onnx.defs.OpSchema, call: Call, kinds: tuple[TensorType | None, ...]
) -> onnx.FunctionProto | None:
    """Return the operator's definition, for the call's own operator set where there is one.

    A definition written for another set serves as well: the operator is the same in both, and the
    definition names the set that its own nodes are of.
    """
    plain, context = (
        schema.function_opset_versions,
        schema.context_dependent_function_opset_versions,
    )
    node, types = _context(call, kinds) if context else (b"", [])
    for version in (call.opset, *sorted(plain, reverse=True)):
        function = _parsed(schema.get_function_with_opset_version(version) if plain else b"")
        if function is not None:
            return function
    for version in (call.opset, *sorted(context, reverse=True)):
        try:
            data = schema.get_context_dependent_function_with_opset_version(version, node, types)
        except (RuntimeError, ValueError):  # what onnx says of a node that its definition rejects
            continue
        function = _parsed(data)
        if function is not None:
            return function
    return None


def _context(call: Call, kinds: tuple[TensorType | None, ...]) -> tuple[bytes, list[bytes]]:
    """Return the node and its input types, as definitions that depend on them take them."""
    node = onnx.NodeProto()
    node.CopyFrom(call.node)
    del node.attribute[:]
    node.attribute.extend(call.attributes)
    types = []
    for kind in kinds:
        proto = onnx.TypeProto()
        if kind is not None:
            element = onnx.helper.np_dtype_to_tensor_dtype(kind.dtype.numpy)
            proto = onnx.helper.make_tensor_type_proto(element, kind.shape)
        types.append(proto.SerializeToString())
    return node.SerializeToString(), types


def _parsed(data: bytes) -> onnx.FunctionProto | None:
    function = onnx.FunctionProto()
    try:
        function.ParseFromString(data)
    except DecodeError:
        return None
    return function if function.node else None

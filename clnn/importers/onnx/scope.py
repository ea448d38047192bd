"""Names, operator sets and attribute values that hold for a list of nodes, and what a node says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cached_property
from typing import Any

import onnx

from clnn.errors import ModelError
from clnn.importers.onnx.limits import default_domain, show
from clnn.importers.onnx.tensors import TensorReader
from clnn.ops.onnx_registry import Attributes
from clnn.records import dataclass

Kind = onnx.AttributeProto


@dataclass
class Scope:
    """Where nodes stand: the main graph, a branch of an If (with a parent), or a function's body.

    names: ONNX name -> value name, None for an optional value that is left out. bindings: values of
    the attributes that a function's nodes refer to.
    """

    names: dict[str, str | None]
    opsets: Mapping[str, int]
    bindings: Mapping[str, onnx.AttributeProto] = field(default_factory=dict)
    prefix: str = ""
    parent: Scope | None = None
    depth: int = 0

    def knows(self, name: str) -> bool:
        """Whether a name is visible here."""
        return name in self.names or (self.parent is not None and self.parent.knows(name))

    def find(self, name: str) -> str | None:
        """Return the value that `name` stands for. Raises ModelError where nothing does."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        raise ModelError(f"value {show(name)} is made by nothing. The file is not valid.")


@dataclass(frozen=True)
class Call:
    """One node in its scope, with its inputs as values and its attributes as Python values.

    opset: version of its domain, None where the model does not import the domain. attributes: with
    references to a function's attributes replaced. number: its position in its graph.
    """

    node: onnx.NodeProto
    name: str
    domain: str
    opset: int | None
    inputs: tuple[str | None, ...]
    attributes: tuple[onnx.AttributeProto, ...]
    attrs: Mapping[str, Any]
    scope: Scope
    number: int = -1

    @cached_property
    def op_type(self) -> str:
        """The operator's name."""
        return str(self.node.op_type)

    @property
    def is_standard(self) -> bool:
        """Whether the operator is one of ONNX's own domain, of a known version."""
        return self.domain == "ai.onnx" and self.opset is not None


def read_call(node: onnx.NodeProto, number: int, scope: Scope, tensors: TensorReader) -> Call:
    """Return what a node says. Raises ModelError for inputs or attributes that are not valid."""
    domain = default_domain(node.domain)
    name = scope.prefix + (node.name or f"{node.op_type}_{number}")
    inputs = read_inputs(node, scope)
    attributes = tuple(a for a in map(_binder(scope), node.attribute) if a is not None)
    attrs = Attributes((a.name, attribute_value(a, tensors)) for a in attributes)
    opset = scope.opsets.get(domain)
    return Call(node, name, domain, opset, inputs, attributes, attrs, scope, number)


def read_inputs(node: onnx.NodeProto, scope: Scope) -> tuple[str | None, ...]:
    """Return the values that a node reads. Raises ModelError for one that nothing makes."""
    return tuple(scope.find(n) if n else None for n in node.input)


def _binder(scope: Scope) -> Callable[[onnx.AttributeProto], onnx.AttributeProto | None]:
    def bound(attr: onnx.AttributeProto) -> onnx.AttributeProto | None:
        if not attr.ref_attr_name:
            return attr
        value = scope.bindings.get(attr.ref_attr_name)
        if value is None:
            return None
        copy = onnx.AttributeProto()
        copy.CopyFrom(value)
        copy.name = attr.name
        return copy

    return bound


def attribute_value(attr: onnx.AttributeProto, tensors: TensorReader) -> Any:
    """Return an attribute as Python values: numbers, text, lists, arrays, graphs."""
    plain = _PLAIN.get(attr.type)
    if plain is not None:
        return plain(attr)
    if attr.type == Kind.TENSOR:
        return tensors.array(attr.t)
    if attr.type == Kind.SPARSE_TENSOR:
        return tensors.dense(attr.sparse_tensor)
    if attr.type == Kind.TENSORS:
        return [tensors.array(t) for t in attr.tensors]
    if attr.type in (Kind.TYPE_PROTO, Kind.TYPE_PROTOS, Kind.SPARSE_TENSORS):
        return attr
    raise ModelError(f"attribute {show(attr.name)} has type {attr.type}, which ONNX does not have.")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


_PLAIN: dict[int, Callable[[onnx.AttributeProto], Any]] = {
    Kind.FLOAT: lambda a: a.f,
    Kind.INT: lambda a: a.i,
    Kind.STRING: lambda a: _text(a.s),
    Kind.GRAPH: lambda a: a.g,
    Kind.FLOATS: lambda a: list(a.floats),
    Kind.INTS: lambda a: list(a.ints),
    Kind.STRINGS: lambda a: [_text(s) for s in a.strings],
    Kind.GRAPHS: lambda a: list(a.graphs),
}

"""ONNX -> Graph: every node becomes op specs, or folds away when all its inputs are constant."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from clnn.errors import ClnnError, DTypeError, ModelError, ShapeError, UnsupportedOpError
from clnn.graph.ir import Graph, Node, check
from clnn.importers.onnx_fold import fold, foldable
from clnn.importers.onnx_load import load_model
from clnn.ops._base import Array
from clnn.ops._registry import (
    Emit,
    EmitOutput,
    OnnxNode,
    Source,
    Unsupported,
    onnx_importers,
)
from clnn.types import TensorType, dtype_of

Shapes = Mapping[str, "Sequence[int] | int"]


def import_onnx(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto, shapes: Shapes | None = None
) -> Graph:
    """Return the Graph of an ONNX model.

    shapes: input name -> shape, or name of a symbolic dimension -> extent.
    Raises ModelError for a file that is not a safe and valid model, ShapeError for dimensions that
    stay open, UnsupportedOpError with every node that clnn cannot run.
    """
    proto, folder = load_model(model)
    return _Importer(proto, folder, dict(shapes or {})).run()


@dataclass
class _Importer:
    proto: onnx.ModelProto
    folder: str | None
    shapes: dict[str, Sequence[int] | int]
    types: dict[str, TensorType] = field(default_factory=dict)
    consts: dict[str, Array] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)

    def run(self) -> Graph:
        graph = self.proto.graph
        self.opsets = {o.domain or "ai.onnx": o.version for o in self.proto.opset_import}
        for tensor in graph.initializer:
            self._constant(tensor.name, self._array(tensor))
        inputs = [v for v in graph.input if v.name not in self.consts]
        for value in inputs:
            self.types[value.name] = self._input_type(value)
        for number, node in enumerate(graph.node):
            self._node(node, node.name or f"{node.op_type}_{number}")
        self._refuse()
        outputs = {v.name: self.renamed.get(v.name, v.name) for v in graph.output}
        missing = [name for name, value in outputs.items() if value not in self.types]
        if missing:
            raise ModelError(f"model outputs {missing} are made by no node. The file is not valid.")
        for value in outputs.values():
            self._materialise(value)
        names = tuple(v.name for v in inputs)
        return check(Graph(tuple(self.nodes), self.types, self.consts, names, outputs, graph.name))

    def _materialise(self, name: str) -> None:
        """Constants of element types that devices do not have cannot be outputs; others can."""
        if name in self.consts:
            dtype_of(self.consts[name].dtype)

    def _array(self, tensor: onnx.TensorProto) -> Array:
        try:
            return np.asarray(numpy_helper.to_array(tensor, base_dir=self.folder or ""))
        except Exception as err:
            raise ModelError(f"initializer {tensor.name!r} cannot be read: {err}.") from err

    def _constant(self, name: str, array: Array) -> None:
        self.consts[name] = array
        self.types[name] = TensorType(tuple(int(d) for d in array.shape), dtype_of(array.dtype))

    def _input_type(self, value: onnx.ValueInfoProto) -> TensorType:
        tensor = value.type.tensor_type
        if not value.type.HasField("tensor_type") or not tensor.elem_type:
            raise ModelError(f"input {value.name!r} is not a tensor; clnn runs tensors only.")
        dtype = dtype_of(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        given = self.shapes.get(value.name)
        if given is not None and not isinstance(given, int):
            return TensorType(self._agree(value, [int(d) for d in given]), dtype)
        if not tensor.HasField("shape"):
            raise ShapeError(
                f"input {value.name!r} has no shape in the model. "
                f"Pass shapes={{{value.name!r}: (...)}}."
            )
        dims, open_dims = [], []
        for axis, dim in enumerate(tensor.shape.dim):
            extent = self._extent(dim)
            if extent is None:
                open_dims.append(f"axis {axis} ({dim.dim_param or 'unnamed'})")
            dims.append(extent or 0)
        if open_dims:
            shown = [d.dim_param or d.dim_value for d in tensor.shape.dim]
            raise ShapeError(
                f"input {value.name!r} has open dimensions: {', '.join(open_dims)} of {shown}. "
                f"Pass shapes={{{value.name!r}: (...)}} or shapes={{'NAME': extent}}."
            )
        return TensorType(tuple(dims), dtype)

    def _extent(self, dim: Any) -> int | None:
        if dim.HasField("dim_value") and dim.dim_value > 0:
            return int(dim.dim_value)
        given = self.shapes.get(dim.dim_param) if dim.dim_param else None
        return given if isinstance(given, int) else None

    def _agree(self, value: onnx.ValueInfoProto, given: list[int]) -> tuple[int, ...]:
        """Check a given shape against what the model fixes."""
        dims = value.type.tensor_type.shape.dim
        declared = value.type.tensor_type.HasField("shape")
        wrong = declared and (
            len(dims) != len(given)
            or any(d.dim_value > 0 and d.dim_value != g for d, g in zip(dims, given, strict=True))
        )
        if wrong:
            shown = [d.dim_param or d.dim_value for d in dims]
            raise ShapeError(f"shape {given} for input {value.name!r} does not fit {shown}.")
        return tuple(given)

    def _node(self, node: onnx.NodeProto, name: str) -> None:
        inputs = [self.renamed.get(n, n) if n else None for n in node.input]
        if any(n in self.unknown for n in inputs if n is not None):
            self.unknown |= set(node.output)
            return
        absent = [n for n in inputs if n is not None and n not in self.types]
        if absent:
            raise ModelError(f"node {name!r} reads {absent[0]!r}, which nothing before it makes.")
        domain = node.domain or "ai.onnx"
        try:
            self._convert(node, name, domain, inputs)
        except Unsupported as err:
            self._problem(node, name, domain, inputs, str(err))
        except (ShapeError, DTypeError) as err:
            if isinstance(err, DTypeError):
                self._problem(node, name, domain, inputs, str(err))
            else:
                raise ShapeError(f"node {name!r} ({node.op_type}): {err}") from err
        except ClnnError:
            raise
        except (KeyError, IndexError, ValueError, TypeError, OverflowError) as err:
            raise ModelError(
                f"node {name!r} ({node.op_type}, opset {self.opsets.get(domain)}) is not valid: "
                f"{type(err).__name__}: {err}. Inputs are {[repr(self._type(n)) for n in inputs]}."
            ) from err

    def _type(self, name: str | None) -> TensorType | None:
        return None if name is None else self.types[name]

    def _problem(
        self, node: onnx.NodeProto, name: str, domain: str, inputs: Sequence[str | None], why: str
    ) -> None:
        kinds = ", ".join("-" if n is None else repr(self.types[n]) for n in inputs)
        opset = self.opsets.get(domain, "?")
        self.problems.append(f"{name}: {domain}::{node.op_type} (opset {opset}) of {kinds}: {why}")
        self.unknown |= set(node.output)

    def _refuse(self) -> None:
        if self.problems:
            rows = "\n  ".join(self.problems)
            raise UnsupportedOpError(
                f"{len(self.problems)} node(s) cannot run on clnn:\n  {rows}\n"
                "Supported operators are listed in docs/operators.md."
            )

    def _convert(
        self, node: onnx.NodeProto, name: str, domain: str, inputs: list[str | None]
    ) -> None:
        attrs = {a.name: _attribute(a) for a in node.attribute}
        values = [None if n is None else self.consts.get(n) for n in inputs]
        known = all(n is None or v is not None for n, v in zip(inputs, values, strict=True))
        if domain == "ai.onnx":
            folded = fold(node, self.opsets.get(domain, 1), values, known,
                          [self._type(n) for n in inputs], attrs)  # fmt: skip
            if folded is not None:
                for out, array in zip(node.output, folded, strict=False):
                    if out:
                        self._constant(out, array)
                return
        key = node.op_type if domain == "ai.onnx" else f"{domain}::{node.op_type}"
        importer = onnx_importers().get(key)
        if importer is None:
            hint = " (its inputs are not constant)" if foldable(node.op_type) else ""
            raise Unsupported(f"no such operator in clnn{hint}")
        onnx_node = OnnxNode(
            node.op_type, self.opsets.get(domain, 1), attrs,
            tuple(self._type(n) for n in inputs),
            {i: v for i, v in enumerate(values) if v is not None}, len(node.output),
        )  # fmt: skip
        made = importer(onnx_node)
        sources = made if isinstance(made, (list, tuple)) else [made]
        emitted: dict[int, Node] = {}
        for number, out in enumerate(node.output):
            if out:
                if number >= len(sources) or sources[number] is None:
                    raise Unsupported(f"output {number} is not supported")
                self._place(out, sources[number], name, node.op_type, inputs, emitted)

    def _place(
        self, out: str, source: Source, name: str, op_type: str, inputs: Sequence[str | None],
        emitted: dict[int, Node],
    ) -> None:  # fmt: skip
        """Make `out` stand for a source: a renamed input, a constant, or an emitted node."""
        value = self._value(source, name, op_type, inputs, emitted)
        assert value is not None
        self.renamed[out] = value

    def _value(
        self, source: Source, name: str, op_type: str, inputs: Sequence[str | None],
        emitted: dict[int, Node],
    ) -> str | None:  # fmt: skip
        if source is None:
            return None
        if isinstance(source, int):
            return inputs[source] if source < len(inputs) else None
        if isinstance(source, np.ndarray):
            key = f"{name}:c{len(self.consts)}"
            self._constant(key, source)
            return key
        emit = source.emit if isinstance(source, EmitOutput) else source
        index = source.index if isinstance(source, EmitOutput) else 0
        if id(emit) not in emitted:
            emitted[id(emit)] = self._emit(emit, name, op_type, inputs, emitted)
        return emitted[id(emit)].outputs[index]

    def _emit(
        self, emit: Emit, name: str, op_type: str, inputs: Sequence[str | None],
        emitted: dict[int, Node],
    ) -> Node:  # fmt: skip
        feeds = tuple(self._value(s, name, op_type, inputs, emitted) for s in emit.inputs)
        made = emit.spec.infer([self._type(n) for n in feeds])
        suffix = f".{len(emitted)}" if emitted else ""
        unique = f"{name}{suffix}"
        if any(n.name == unique for n in self.nodes[-64:]):
            unique = f"{unique}#{len(self.nodes)}"
        outs = tuple(f"{unique}/{k}" for k in range(len(made)))
        self.types.update(zip(outs, made, strict=True))
        node = Node(unique, emit.spec, feeds, outs, f"{op_type} {name}")
        self.nodes.append(node)
        return node


def _attribute(attr: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(attr)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, onnx.TensorProto):
        return np.asarray(numpy_helper.to_array(value))
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, (onnx.GraphProto, onnx.SparseTensorProto)):
        return value
    return [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in value]

"""What a model says of its inputs, outputs and itself, in the terms of a runtime's Python interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from clnn.errors import ModelError, ModelNodeError
from clnn.importers.onnx.dims import is_fixed, symbol
from clnn.importers.onnx.limits import NEWEST_OPSET, default_domain, show
from clnn.importers.onnx.load import Loaded
from clnn.importers.onnx.port_info import Dims, Interface, PortInfo
from clnn.importers.onnx.type_names import NAMES

KEEP_BYTES = 4096  # of an initializer, up to which shape inference may read its data
MADE_UP = "unk__"  # what names begin with that shape inference makes up
OVERRIDABLE_IR = 4  # version since which an initializer that is an input, too, is its default


def read_interface(loaded: Loaded) -> Interface:
    """Return the interface of a model. Outputs have the shapes that can be inferred."""
    proto = loaded.proto
    stored = {t.name for t in proto.graph.initializer}
    stored |= {t.values.name for t in proto.graph.sparse_initializer}
    inputs = [_port(v) for v in proto.graph.input]
    free = proto.ir_version >= OVERRIDABLE_IR
    head = {
        "producer_name": proto.producer_name,
        "graph_name": proto.graph.name,
        "domain": proto.domain,
        "description": proto.doc_string,
        "graph_description": proto.graph.doc_string,
        # A model that names no version has the largest number.
        "version": proto.model_version if proto.HasField("model_version") else 2**63 - 1,
    }
    return Interface(
        tuple(p for p in inputs if p.name not in stored),
        tuple(_port(v) for v in proto.graph.output),
        tuple(p for p in inputs if p.name in stored) if free else (),
        {entry.key: entry.value for entry in proto.metadata_props},
        head,
    )


def inferred_outputs(loaded: Loaded, shapes: Mapping[str, Dims]) -> tuple[PortInfo, ...]:
    """Return the outputs of a model with shapes inferred from its nodes.

    shapes: dimensions of inputs that replace those of the file. Names that the file gives to
    dimensions stay where inference finds no number, and what it says of the shape of a value that
    has another is left aside. Raises ModelNodeError for a node whose inputs are of types, or of a
    number, that its operator does not take, and ModelError for an output of another type.
    """
    declared = [_port(v) for v in loaded.proto.graph.output]
    light = _without_data(loaded.proto, shapes)
    try:
        made = onnx.shape_inference.infer_shapes(light, check_type=True, data_prop=True)
    except Exception as err:  # whatever inference says of a model that may well run
        text = str(err).strip()
        if any(mark in text for mark in _INVALID):
            raise ModelNodeError(f"the model has a node that is not valid: {text}") from err
        return tuple(declared)
    found = [_port(v) for v in made.graph.output]
    return tuple(_merged(d, f) for d, f in zip(declared, found, strict=True))


# Parts of the texts by which inference says that a node is not valid.
_INVALID = ("has unsupported type", "not in range [min=")


def _without_data(source: onnx.ModelProto, shapes: Mapping[str, Dims]) -> onnx.ModelProto:
    """Return a model without large initializers, and without what it says of its outputs."""
    light = onnx.ModelProto(ir_version=source.ir_version)
    light.opset_import.extend(source.opset_import)
    light.functions.extend(source.functions)
    graph = light.graph
    graph.name = source.graph.name or "graph"
    graph.node.extend(source.graph.node)
    known = {v.name for v in source.graph.input}
    for value in source.graph.input:
        graph.input.add().CopyFrom(value)
        if value.name in shapes:
            _set_dims(graph.input[-1], shapes[value.name])
    for tensor in source.graph.initializer:
        if len(tensor.raw_data) <= KEEP_BYTES and not tensor.external_data:
            graph.initializer.add().CopyFrom(tensor)
        elif tensor.name not in known:
            info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            graph.input.append(info)
    graph.output.extend(onnx.ValueInfoProto(name=v.name) for v in source.graph.output)
    return light


def check_operators(loaded: Loaded) -> None:
    """Check that operators are there, and their attributes, and that outputs are made.

    Raises ModelNodeError for a node of a domain that the model does not import, or of an operator or
    an attribute that ONNX does not have, and ModelError for an output that nothing makes.
    """
    proto = loaded.proto
    opsets = {default_domain(o.domain): int(o.version) for o in proto.opset_import}
    own = {(default_domain(f.domain), f.name) for f in proto.functions}
    for node in proto.graph.node:
        domain = default_domain(node.domain)
        if (domain, node.op_type) not in own:
            _check_operator(node, domain, opsets.get(domain))
    made = {name for node in proto.graph.node for name in node.output}
    made |= {v.name for v in proto.graph.input} | {t.name for t in proto.graph.initializer}
    made |= {t.values.name for t in proto.graph.sparse_initializer}
    lost = [v.name for v in proto.graph.output if v.name not in made]
    if lost:
        raise ModelError(f"output {show(lost[0])} is made by no node. The file is not valid.")


def _check_operator(node: onnx.NodeProto, domain: str, opset: int | None) -> None:
    where = f"node {show(node.name)} ({show(domain)} {show(node.op_type)})"
    if opset is None:
        raise ModelNodeError(f"{where}: the model imports no operator set of this domain.")
    if domain != "ai.onnx" or opset > NEWEST_OPSET:
        return
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        raise ModelNodeError(f"{where}: opset {opset} of ONNX has no such operator.") from None
    unknown = [a.name for a in node.attribute if a.name not in schema.attributes]
    if unknown:
        raise ModelNodeError(
            f"{where}: it has attribute {show(unknown[0])}; the operator has {sorted(schema.attributes)}."
        )


def _merged(declared: PortInfo, found: PortInfo) -> PortInfo:
    """Return an output as file and inference give it together."""
    if not declared.type or not found.type:
        return found if not declared.type else declared
    if declared.type != found.type:
        raise ModelError(
            f"output {show(declared.name)} is {declared.type} for the model and {found.type} for its "
            "nodes. The file is not valid."
        )
    if found.dims is None or declared.dims is None or declared.kind != "tensor":
        dims = declared.dims if found.dims is None else tuple(_dim(None, f) for f in found.dims)
    elif len(found.dims) != len(declared.dims):
        dims = tuple(_dim(None, f) for f in found.dims)
    else:
        pairs = list(zip(declared.dims, found.dims, strict=True))
        differ = any(isinstance(d, int) and isinstance(f, int) and d != f for d, f in pairs)
        dims = tuple((d if d == f else None) if differ else _dim(d, f) for d, f in pairs)
    return PortInfo(
        declared.name, declared.kind, declared.type, dims, declared.dtype, declared.elem_type
    )


def _dim(declared: int | str | None, found: int | str | None) -> int | str | None:
    if isinstance(found, int):
        return found
    if declared is not None:
        return declared
    # Names that inference makes up itself say nothing.
    return None if found is None or found.startswith(MADE_UP) else found


def _set_dims(value: onnx.ValueInfoProto, dims: Sequence[int | str | None]) -> None:
    shape = value.type.tensor_type.shape
    del shape.dim[:]
    for extent in dims:
        dim = shape.dim.add()
        if isinstance(extent, int):
            dim.dim_value = extent
        elif extent:
            dim.dim_param = extent


def with_inputs(
    loaded: Loaded,
    shapes: Mapping[str, Sequence[int | str | None]],
    values: Mapping[str, np.ndarray[Any, Any]],
) -> Loaded:
    """Return a copy of a whole model with other inputs.

    shapes: of inputs, in place of what the file says. values: data of inputs that become constants,
    or of initializers in place of what the file has.
    """
    proto = onnx.ModelProto()
    proto.CopyFrom(loaded.proto)
    graph = proto.graph
    for value in graph.input:
        if value.name in shapes:
            _set_dims(value, tuple(shapes[value.name]))
    kept = [v for v in graph.input if v.name not in values]
    stored = [t for t in graph.initializer if t.name not in values]
    stored += [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in values.items()]
    del graph.input[:], graph.initializer[:]
    graph.input.extend(kept)
    graph.initializer.extend(stored)
    return Loaded(proto, loaded.folder)


def _port(value: onnx.ValueInfoProto) -> PortInfo:
    kind = (value.type.WhichOneof("value") or "").removesuffix("_type")
    tensor = _tensor_of(value.type)
    dims: Dims | None = None
    denoted: tuple[str, ...] = ()
    if kind == "tensor" and tensor.HasField("shape"):
        dims = tuple(_extent(d) for d in tensor.shape.dim)
        denoted = tuple(d.denotation for d in tensor.shape.dim)
    elem = 0 if tensor is None else tensor.elem_type
    return PortInfo(value.name, kind, _type(value.type), dims, _dtype(elem), elem, denoted)


def _extent(dim: Any) -> int | str | None:
    if is_fixed(dim):
        return int(dim.dim_value)
    return symbol(dim) or str(dim.dim_param) or None


def _tensor_of(kind: Any) -> Any:
    """Return the tensor type at the bottom of a type; None for maps."""
    which = kind.WhichOneof("value")
    if which in ("sequence_type", "optional_type"):
        return _tensor_of(getattr(kind, which).elem_type)
    if which == "sparse_tensor_type":
        return kind.sparse_tensor_type
    return kind.tensor_type if which == "tensor_type" else None


def _dtype(elem_type: int) -> np.dtype[Any] | None:
    try:
        dtype: np.dtype[Any] = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(elem_type))
    except (KeyError, TypeError):
        return None
    return dtype


def _type(kind: Any) -> str:
    """Return a type's text, such as "seq(tensor(float))"; "" where it is not given."""
    which = kind.WhichOneof("value")
    if which == "tensor_type":
        name = NAMES.get(kind.tensor_type.elem_type, "")
        return f"tensor({name})" if name else ""
    if which == "sparse_tensor_type":
        return f"sparse_tensor({NAMES.get(kind.sparse_tensor_type.elem_type, '')})"
    if which == "sequence_type":
        return f"seq({_type(kind.sequence_type.elem_type)})"
    if which == "optional_type":
        return f"optional({_type(kind.optional_type.elem_type)})"
    if which == "map_type":
        return f"map({NAMES.get(kind.map_type.key_type, '')},{_type(kind.map_type.value_type)})"
    return ""

"""From a model to its program."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import onnx.inliner

from clnn.errors import ClnnError, ModelError
from clnn.importers.onnx.dims import is_fixed, symbol
from clnn.importers.onnx.fold import foldable
from clnn.importers.onnx.importer import Survey, survey_onnx
from clnn.importers.onnx.limits import Budget, default_domain
from clnn.importers.onnx.load import Loaded, load_model
from clnn.importers.onnx.order import subgraphs
from clnn.importers.onnx.report import Problem, missing_reason, refuse
from clnn.importers.onnx.shapes import Shapes, input_shapes
from clnn.importers.onnx.stages.assemble import assemble
from clnn.importers.onnx.stages.branches import inline_known
from clnn.importers.onnx.stages.deciding import (
    CONTROL,
    deciding_inputs,
    has_device_form,
    has_host_form,
    is_standard,
)
from clnn.importers.onnx.stages.parting import Parting
from clnn.importers.onnx.stages.program import Program, StageInput
from clnn.importers.onnx.stages.unchanged import read_from_around
from clnn.importers.onnx.stages.values import Constants, Known
from clnn.importers.onnx.tensors import TensorReader, numpy_dtype


def read_program(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto | Loaded, shapes: Shapes | None = None
) -> Program:
    """Return the program of a model whose shapes, or what runs, depend on data.

    shapes: as import_onnx takes them; dimensions may stay open. Raises ModelError, ShapeError, and
    UnsupportedOpError with the nodes that neither the device nor the host computes.
    """
    source, folder = load_model(model)
    try:
        own = not isinstance(model, (onnx.ModelProto, Loaded))
        return _program(source, folder, shapes, own)
    except ClnnError:
        raise
    except Exception as err:  # whatever a node that makes no sense leads to
        raise ModelError(
            f"the model cannot be parted: {type(err).__name__}: {err}. The file is not valid."
        ) from err


def _program(
    source: onnx.ModelProto, folder: Path | None, shapes: Shapes | None, own: bool
) -> Program:
    proto = _prepared(source, own)
    reader = TensorReader(folder, Budget())
    graph = proto.graph
    consts = Constants(
        reader,
        {t.name: t for t in graph.initializer},
        {s.values.name: reader.dense(s) for s in graph.sparse_initializer},
    )
    inputs = [v for v in graph.input if not consts.knows(v.name)]
    survey = _survey(proto, folder, shapes, inputs)
    while survey and inline_known(graph, survey.consts):
        survey = _survey(proto, folder, shapes, inputs)
    consts.tensors.update({t.name: t for t in graph.initializer})
    known = {v.name: _known(v, survey) for v in inputs}
    opset = {default_domain(o.domain): o.version for o in proto.opset_import}.get("ai.onnx", 0)
    read_from_around(graph, opset)
    parting = Parting(graph, known, consts, opset, survey=survey)
    refuse(_problems(parting, survey))
    return assemble(parting, "", list(proto.opset_import), proto.ir_version)


def _prepared(source: onnx.ModelProto, own: bool) -> onnx.ModelProto:
    """Return the model with functions inlined and nodes named, each its own; a copy unless `own`."""
    proto = onnx.inliner.inline_local_functions(source) if source.functions else source
    if proto is source and not own:
        proto = onnx.ModelProto()
        proto.CopyFrom(source)
    _name_nodes(proto.graph, {})
    return proto


def _name_nodes(graph: onnx.GraphProto, uses: dict[str, int]) -> None:
    """Give each node a name of its own. uses: how often each name was asked for."""
    for number, node in enumerate(graph.node):
        base = name = node.name or f"{node.op_type}_{number}"
        while name in uses:
            uses[base] += 1
            name = f"{base}'{uses[base]}"
        uses[name] = 1
        node.name = name
        for inner in subgraphs(node):
            _name_nodes(inner, uses)


def _survey(
    proto: onnx.ModelProto,
    folder: Path | None,
    shapes: Shapes | None,
    inputs: list[onnx.ValueInfoProto],
) -> Survey | None:
    """Return what the plain import finds, None where dimensions stay open."""
    tensors = [v for v in inputs if v.type.HasField("tensor_type")]
    if any(not _is_closed(v, shapes or {}) for v in tensors):
        return None
    input_shapes(tensors, shapes or {})
    return survey_onnx(proto, folder, shapes)


def _is_closed(value: onnx.ValueInfoProto, shapes: Shapes) -> bool:
    tensor = value.type.tensor_type
    if value.name in shapes:
        return True
    dims = tensor.shape.dim
    known = (is_fixed(d) or symbol(d) in shapes for d in dims)
    return tensor.HasField("shape") and all(known)


def _known(value: onnx.ValueInfoProto, survey: Survey | None) -> Known:
    if not value.type.HasField("tensor_type"):
        return Known("host")  # sequences and optionals
    kind = survey.types.get(value.name) if survey else None
    if kind is not None:
        return Known("fed", type=StageInput(value.name, kind.dtype.numpy, kind.shape))
    tensor = value.type.tensor_type
    if not tensor.elem_type:
        raise ModelError(f"input {value.name!r} has no element type. The file is not valid.")
    dtype = numpy_dtype(tensor.elem_type, f"input {value.name!r}")
    if dtype.kind == "O":
        return Known("host")  # text
    return Known("fed", type=StageInput(value.name, dtype))


def _problems(parting: Parting, survey: Survey | None) -> list[Problem]:
    """Return the nodes that nothing computes, those of graphs inside included."""
    found: list[Problem] = []
    surveyed = {p.node: p for p in survey.problems} if survey else {}
    for row in parting.placed:
        node = row.node
        if row.place == "control":
            for graph in subgraphs(node):
                found += _missing(graph, parting.opset)
        if row.place != "device":
            continue
        if node.name in surveyed and not _waits(parting, node):
            found.append(surveyed[node.name])
        elif not has_device_form(node, parting.opset) and not _folds(parting, node):
            found.append(_problem(node, parting.opset))
    return found


def _folds(parting: Parting, node: onnx.NodeProto) -> bool:
    """Whether plans compute the node once, from constants and shapes."""
    places = {parting.values[n].place for n in node.input if n}
    return is_standard(node) and foldable(node.op_type) and places <= {"const", "shape"}


def _waits(parting: Parting, node: onnx.NodeProto) -> bool:
    """Whether values that only the run knows decide the node's shape."""
    names = deciding_inputs(node)
    return any(parting.values[n].place not in ("const", "shape") for n in names)


def _missing(graph: onnx.GraphProto, opset: int) -> list[Problem]:
    found: list[Problem] = []
    for node in graph.node:
        if node.op_type in CONTROL:
            for inner in subgraphs(node):
                found += _missing(inner, opset)
        elif not has_device_form(node, opset) and not has_host_form(node, opset):
            found.append(_problem(node, opset))
    return found


def _problem(node: onnx.NodeProto, opset: int) -> Problem:
    domain = default_domain(node.domain)
    reason = missing_reason(domain, node.op_type, opset)
    return Problem(node.name, domain, node.op_type, opset, "", reason)

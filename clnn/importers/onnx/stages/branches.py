"""If: which inputs decide it by their values, and branches put in its place once that is known."""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx

from clnn.importers.onnx.dims import is_fixed
from clnn.importers.onnx.order import reads, subgraphs
from clnn.importers.onnx.stages.deciding import is_standard
from clnn.types import Array

FEW = 64  # elements of an input that is small
# What a plan has no form for inside of a branch; import knows more where it stands in the graph itself.
NESTED = frozenset(("If", "Loop", "Scan", "SequenceMap", "RNN", "GRU", "LSTM"))
_WHOLE = frozenset(
    getattr(onnx.TensorProto, name)
    for name in ["BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"]
)


def deciding_values(graph: onnx.GraphProto) -> tuple[str, ...]:
    """Return small inputs of whole numbers that alone decide an If with further control inside."""
    stored = {t.name for t in graph.initializer}
    inputs = {v.name: v for v in graph.input if v.name not in stored}
    makers = {name: node for node in graph.node for name in node.output if name}
    found: dict[str, None] = {}
    for node in graph.node:
        if node.op_type != "If" or not is_standard(node) or not _has_control(node):
            continue
        leaves = _leaves(node.input[0], makers) & inputs.keys()
        if leaves and all(_is_small(inputs[name]) for name in leaves):
            found.update(dict.fromkeys(sorted(leaves)))
    return tuple(found)


def _has_control(node: onnx.NodeProto) -> bool:
    inside = (inner for graph in subgraphs(node) for inner in graph.node)
    return any(inner.op_type in NESTED for inner in inside)


def _leaves(name: str, makers: Mapping[str, onnx.NodeProto]) -> set[str]:
    """Return all names that a value is made from, over any number of nodes."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        one = waiting.pop()
        if one and one not in seen:
            seen.add(one)
            waiting += reads(makers[one]) if one in makers else ()
    return seen


def _is_small(value: onnx.ValueInfoProto) -> bool:
    tensor = value.type.tensor_type
    if tensor.elem_type not in _WHOLE or not tensor.HasField("shape"):
        return False
    dims = tensor.shape.dim
    return all(is_fixed(d) for d in dims) and math.prod(d.dim_value for d in dims) <= FEW


def inline_known(graph: onnx.GraphProto, consts: Mapping[str, Array]) -> bool:
    """Put the branch that is taken in the place of each If whose condition is known.

    Nodes have names, each its own. Returns whether there was any.
    """
    nodes, changed = list(graph.node), False
    made: list[onnx.NodeProto] = []
    for node in nodes:
        condition = (
            consts.get(node.input[0]) if node.op_type == "If" and is_standard(node) else None
        )
        if condition is None or condition.size != 1:
            made.append(node)
            continue
        which = "then_branch" if condition.item() else "else_branch"
        made += _spliced(graph, node, next(a.g for a in node.attribute if a.name == which))
        changed = True
    if changed:
        kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in made]
        del graph.node[:]
        graph.node.extend(kept)
    return changed


def _spliced(
    graph: onnx.GraphProto, node: onnx.NodeProto, branch: onnx.GraphProto
) -> list[onnx.NodeProto]:
    """Return the nodes of a branch under names of their own; its constants go to the graph."""
    own = {name for inner in branch.node for name in inner.output if name}
    own |= {t.name for t in branch.initializer} | {t.values.name for t in branch.sparse_initializer}
    names = {name: f"{node.name}/{name}" for name in own}
    for tensor in branch.initializer:
        graph.initializer.add().CopyFrom(tensor)
        graph.initializer[-1].name = names[tensor.name]
    for sparse in branch.sparse_initializer:
        graph.sparse_initializer.add().CopyFrom(sparse)
        graph.sparse_initializer[-1].values.name = names[sparse.values.name]
    made = []
    for inner in branch.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(inner)
        rename(copy, names)
        made.append(copy)
    for place, (value, name) in enumerate(zip(branch.output, node.output, strict=True)):
        if name:
            source = names.get(value.name, value.name)
            label = f"{node.name}/output{place}"
            made.append(onnx.helper.make_node("Identity", [source], [name], label))
    return made


def rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Give values other names, in a node and in graphs inside of it that do not hide them."""
    for row in (node.input, node.output):
        row[:] = [names.get(name, name) for name in row]
    for graph in subgraphs(node):
        hidden = {v.name for v in graph.input} | {t.name for t in graph.initializer}
        hidden |= {name for inner in graph.node for name in inner.output}
        seen = {old: new for old, new in names.items() if old not in hidden}
        for inner in graph.node:
            rename(inner, seen)
        for value in graph.output:
            value.name = seen.get(value.name, value.name)

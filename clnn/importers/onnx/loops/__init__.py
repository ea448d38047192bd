"""Loops that walk recurrent layers step by step, as layers.

Exporters of TensorFlow and Keras write most recurrent layers so. A loop's turn costs launches of its own, a
layer's step none. What is recognised is proven: the loop has a turn for each row of what it reads, its weights
are constants, and it hands nothing else from turn to turn.
"""

from __future__ import annotations

from contextlib import suppress

import onnx
from onnx import helper

from clnn.importers.onnx.limits import default_domain
from clnn.importers.onnx.loops.layers import Layers
from clnn.importers.onnx.loops.names import Names
from clnn.importers.onnx.loops.shapes import Shapes
from clnn.importers.onnx.loops.unrolled import MOST, unrolled
from clnn.importers.onnx.loops.walk import Walk, is_walk
from clnn.importers.onnx.order import is_ordered, reads

OLDEST = 8  # operator set
MALFORMED = (IndexError, ValueError, TypeError, ZeroDivisionError, RecursionError)
"""What a node raises that is not as its operator wants it; the import says later what is wrong with it."""


def with_layers(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose loops are RNN, GRU and LSTM nodes where they compute such; the model where none does."""
    opset = {default_domain(o.domain): o.version for o in model.opset_import}.get("ai.onnx", 0)
    if opset < OLDEST or not any(is_walk(n) for n in model.graph.node):
        return model
    if not is_ordered(model.graph):
        return model
    names = Names(model.graph)
    shapes = Shapes(names)
    wanted = frozenset(name for node in model.graph.node for name in reads(node))
    wanted |= {value.name for value in model.graph.output}
    nodes, tensors, domains, changes, room = [], [], set(), False, MOST
    for node in model.graph.node:
        walk, found = _layers(names, shapes, node, opset, wanted)
        if found is None or not found.made:
            with suppress(*MALFORMED):
                shapes.add(node)
            turns = unrolled(walk, opset, room) if walk else None
            nodes += [node] if turns is None else turns[0]
            if turns is not None:
                tensors += turns[1]
                room -= len(turns[0])
                changes = True
            continue
        changes = True
        nodes += found.nodes
        tensors += found.tensors
        domains |= found.domains
        for name, shape in found.shapes().items():
            shapes.set(name, shape)
    return _changed(model, nodes, tensors, domains) if changes else model


def _layers(
    names: Names, shapes: Shapes, node: onnx.NodeProto, opset: int, wanted: frozenset[str]
) -> tuple[Walk | None, Layers | None]:
    """Return a loop as its body shows it, and the layers that it may be; nothing of other nodes."""
    if not is_walk(node):
        return None, None
    try:
        walk = Walk(names, shapes, node)
        return walk, Layers(walk, opset, wanted)
    except MALFORMED:
        return None, None


def _changed(
    model: onnx.ModelProto,
    nodes: list[onnx.NodeProto],
    tensors: list[onnx.TensorProto],
    domains: set[str],
) -> onnx.ModelProto:
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    del changed.graph.node[:]
    changed.graph.node.extend(nodes)
    changed.graph.initializer.extend(tensors)
    known = {o.domain for o in model.opset_import}
    changed.opset_import.extend(helper.make_opsetid(d, 1) for d in sorted(domains - known))
    return changed

"""Loops that walk recurrent layers step by step, as layers.

Exporters of TensorFlow and Keras write most recurrent layers so. A loop's turn costs launches of its own, a
layer's step none. What is recognised is proven: the loop has a turn for each row of what it reads, its weights
are constants, and it hands nothing else from turn to turn.
"""

from __future__ import annotations

import onnx
from onnx import helper

from clnn.importers.onnx.limits import default_domain
from clnn.importers.onnx.loops.layers import Layers
from clnn.importers.onnx.loops.names import Names
from clnn.importers.onnx.loops.shapes import Shapes
from clnn.importers.onnx.loops.walk import Walk, is_walk
from clnn.importers.onnx.order import reads

OLDEST = 8  # operator set


def with_layers(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose loops are RNN, GRU and LSTM nodes where they compute such; the model where none does."""
    opset = {default_domain(o.domain): o.version for o in model.opset_import}.get("ai.onnx", 0)
    if opset < OLDEST or not any(is_walk(n) for n in model.graph.node):
        return model
    names = Names(model.graph)
    shapes = Shapes(names)
    wanted = frozenset(name for node in model.graph.node for name in reads(node))
    wanted |= {value.name for value in model.graph.output}
    nodes, tensors, domains, changes = [], [], set(), False
    for node in model.graph.node:
        found = Layers(Walk(names, shapes, node), opset, wanted) if is_walk(node) else None
        if found is None or not found.made:
            shapes.add(node)
            nodes.append(node)
            continue
        changes = True
        nodes += found.nodes
        tensors += found.tensors
        domains |= found.domains
        for name, shape in found.shapes().items():
            shapes.set(name, shape)
    return _changed(model, nodes, tensors, domains) if changes else model


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

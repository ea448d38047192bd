"""Loop and Scan that walk recurrent layers step by step, as layers, and others of few turns as these turns.

Exporters of TensorFlow and Keras write most recurrent layers so. A loop's turn costs launches of its own, a
layer's step none. What is recognised is proven: the loop has a turn for each row of what it reads, its weights
are constants, and it hands nothing else from turn to turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import onnx
from onnx import helper

from clnn.importers.onnx.limits import default_domain
from clnn.importers.onnx.loops.layers import Layers
from clnn.importers.onnx.loops.names import Names
from clnn.importers.onnx.loops.scans import as_loop
from clnn.importers.onnx.loops.shapes import Shapes
from clnn.importers.onnx.loops.unrolled import MOST, unrolled
from clnn.importers.onnx.loops.walk import Walk, is_walk
from clnn.importers.onnx.order import is_ordered, reads
from clnn.records import dataclass

OLDEST = 8  # operator set
MALFORMED = (IndexError, ValueError, TypeError, ZeroDivisionError, RecursionError)
"""What a node raises that is not as its operator wants it; the import says later what is wrong with it."""


def with_layers(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose loops are RNN, GRU and LSTM nodes, or their turns; the model where all stay loops."""
    opset = {default_domain(o.domain): o.version for o in model.opset_import}.get("ai.onnx", 0)
    if opset < OLDEST or not is_ordered(model.graph):
        return model
    names = Names(model.graph)
    shapes = Shapes(names)
    wanted = frozenset(name for node in model.graph.node for name in reads(node))
    wanted |= {value.name for value in model.graph.output}
    nodes: list[onnx.NodeProto] = []
    tensors: list[onnx.TensorProto] = []
    domains: set[str] = set()
    changes, room = False, MOST
    for node in model.graph.node:
        made = _other(names, shapes, node, opset, wanted, room)
        if made is None:
            with suppress(*MALFORMED):
                shapes.add(node)
            nodes.append(node)
            continue
        changes = True
        nodes += made.nodes
        tensors += made.tensors
        domains |= made.domains
        room -= made.cost
    return _changed(model, nodes, tensors, domains) if changes else model


@dataclass(frozen=True)
class Other:
    """What stands in the place of a loop. cost: nodes of turns that are unrolled."""

    nodes: Sequence[onnx.NodeProto]
    tensors: Sequence[onnx.TensorProto]
    domains: frozenset[str] = frozenset()
    cost: int = 0


def _other(
    names: Names,
    shapes: Shapes,
    node: onnx.NodeProto,
    opset: int,
    wanted: frozenset[str],
    room: int,
) -> Other | None:
    """Return what a Loop or Scan is made into; None of other nodes, and where it stays."""
    try:
        swept = as_loop(node, opset, shapes)
        loop = swept.loop if swept else node
        if not is_walk(loop):
            return None
        walk = Walk(names, shapes, loop)
        made = _of_walk(walk, opset, wanted | (set(loop.output) - set(node.output)), room)
    except MALFORMED:
        return None
    if made is None or swept is None:
        return made
    nodes = [*swept.before, *made.nodes, *swept.after]
    return Other(nodes, [*swept.tensors, *made.tensors], made.domains, made.cost)


def _of_walk(walk: Walk, opset: int, wanted: frozenset[str], room: int) -> Other | None:
    layers = Layers(walk, opset, wanted)
    if layers.made:
        for name, shape in layers.shapes().items():
            walk.shapes.set(name, shape)
        return Other(layers.nodes, layers.tensors, frozenset(layers.domains))
    turns = unrolled(walk, opset, room)
    return None if turns is None else Other(*turns, cost=len(turns[0]))


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

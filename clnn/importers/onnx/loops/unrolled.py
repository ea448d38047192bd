"""Short loops of a known number of turns as their turns, one behind another, in one plan."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from clnn.importers.onnx.limits import default_domain
from clnn.importers.onnx.loops.walk import Walk
from clnn.ops.onnx_registry import onnx_importers
from clnn.types import Array

MOST = 1600  # nodes of all turns of a model: about five seconds of planning where nothing is kept
ALWAYS = ("Constant", "ConstantOfShape", "Shape", "Size", "Range")  # of known shapes, constants


def unrolled(
    walk: Walk, opset: int, room: int = MOST
) -> tuple[list[onnx.NodeProto], list[TensorProto]] | None:
    """Return nodes and constants of all turns; None where there are many, none, or of operators on the host.

    room: the most nodes.
    """
    turns, nodes = walk.turns, walk.graph.node
    given = all(walk.node.input[2:])
    if not isinstance(turns, int) or not given or not 0 < turns * len(nodes) <= room:
        return None
    known = onnx_importers()
    plain = all(n.op_type in known or n.op_type in ALWAYS for n in nodes)
    own = all(default_domain(n.domain) == "ai.onnx" for n in nodes)
    if not plain or not own or any(n.op_type.startswith("Random") for n in nodes):
        return None
    return _Turns(walk, opset).all(turns)


class _Turns:
    def __init__(self, walk: Walk, opset: int) -> None:
        self.walk, self.opset = walk, opset
        node = walk.node
        self.base = f"{next((o for o in node.output if o), node.name)}/turns"
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[TensorProto] = []

    def all(self, turns: int) -> tuple[list[onnx.NodeProto], list[TensorProto]]:
        """Return the nodes and constants of all turns."""
        walk = self.walk
        shared = {}
        for tensor in walk.graph.initializer:
            shared[tensor.name] = f"{self.base}/{tensor.name}"
            copy = TensorProto()
            copy.CopyFrom(tensor)
            copy.name = shared[tensor.name]
            self.tensors.append(copy)
        # Whether there is a turn, and which one, are numbers, or rows of one where a body says so.
        going = self._tensor("going", np.full((1,) * walk.declared(1), True))
        taken, made = [v.name for v in walk.graph.input], [v.name for v in walk.graph.output]
        carried = list(walk.node.input[2:])
        scans: list[list[str]] = [[] for _ in made[1 + len(carried) :]]
        for turn in range(turns):
            number = np.full((1,) * walk.declared(0), turn, np.int64)
            given = [self._tensor(f"{turn}", number), going, *carried]
            names = self._turn(turn, {**shared, **dict(zip(taken, given, strict=True))})
            carried = [names.get(n, n) for n in made[1 : 1 + len(carried)]]
            for rows, name in zip(scans, made[1 + len(carried) :], strict=True):
                rows.append(names.get(name, name))
        for name, last in zip(walk.node.output, carried, strict=False):
            if name:
                self.nodes.append(helper.make_node("Identity", [last], [name], f"{name}/last"))
        for name, rows in zip(list(walk.node.output)[len(carried) :], scans, strict=False):
            if name:
                self._stacked(rows, name)
        return self.nodes, self.tensors

    def _turn(self, turn: int, known: Mapping[str, str]) -> dict[str, str]:
        """Add the nodes of a turn; return what the names of the body are there."""
        names = dict(known)
        for node in self.walk.graph.node:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copy.input[:] = [names.get(n, n) for n in node.input]
            names.update({n: f"{self.base}/{turn}/{n}" for n in node.output if n})
            copy.output[:] = [names[n] if n else "" for n in node.output]
            copy.name = f"{self.base}/{turn}/{node.name}"
            self.nodes.append(copy)
        return names

    def _stacked(self, rows: list[str], out: str) -> None:
        """Add what makes one value of those of all turns."""
        parts = [f"{out}/{k}" for k in range(len(rows))]
        attributes = {"axes": [0]} if self.opset < 13 else {}
        axes = [] if attributes else [self._tensor(f"{out}/axes", np.array([0]))]
        for row, part in zip(rows, parts, strict=True):
            self.nodes.append(
                helper.make_node("Unsqueeze", [row, *axes], [part], part, **attributes)
            )
        self.nodes.append(helper.make_node("Concat", parts, [out], f"{out}/all", axis=0))

    def _tensor(self, what: str, data: Array) -> str:
        self.tensors.append(numpy_helper.from_array(data, f"{self.base}/{what}"))
        return str(self.tensors[-1].name)

"""A model that computes in float32 what a quantised one does, with a switch for each rounding.

One input more, SWITCHES, says for each value and each product whether it is rounded. So one session tells
what any choice of quantised nodes costs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper

from clnn.graph.rounding import Range, bytes_of
from clnn.importers.onnx.qdq.model import QdqModel
from clnn.importers.onnx.qdq.write import Writer, emptied
from clnn.types import Array

SWITCHES = "clnn:switches"


class Switched:
    """The model `proto`, and the switches that quantise a choice of nodes."""

    def __init__(self, source: QdqModel, ranges: Mapping[str, Range]) -> None:
        self.proto = emptied(source.model)
        writer = _SwitchWriter(source, self.proto, source.steps(ranges))
        writer.write()
        self.places = {key: place for place, key in enumerate(writer.switched)}
        writer.add_switches()

    def of(self, chosen: QdqModel) -> Array:
        """Return the switches that stand for the quantised file of a model with other exclusions."""
        on = {("value", name) for name in chosen.wanted()}
        on |= {("node", n.output[0]) for n in chosen.model.graph.node if chosen.takes(n)}
        return np.array([key in on for key in self.places])


class _SwitchWriter(Writer):
    """Writes both ways of everything, and what chooses."""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self.switched: dict[tuple[str, str], str] = {}

    def add_switches(self) -> None:
        """Add the input of all switches, and what parts it; to be called behind `write`."""
        count, kind = len(self.switched), onnx.TensorProto.BOOL
        self.graph.input.append(helper.make_tensor_value_info(SWITCHES, kind, [count]))
        each = [f"{name}:row" for name in self.switched.values()]
        self.const(f"{SWITCHES}:sizes", np.ones(count, np.int64))
        self.const(f"{SWITCHES}:axis", np.zeros(1, np.int64))
        made = [helper.make_node("Split", [SWITCHES, f"{SWITCHES}:sizes"], each, axis=0)]
        for row, name in zip(each, self.switched.values(), strict=True):
            made.append(helper.make_node("Squeeze", [row, f"{SWITCHES}:axis"], [name]))
        nodes = [*made, *self.graph.node]
        del self.graph.node[:]
        self.graph.node.extend(nodes)

    def pair(self, given: str, value: str, made: str) -> None:
        """Add the rounding of `given` by the steps of a value as `made`, where its switch says so."""
        step, zero = self.steps[value]
        names = [
            self.const(f"{value}:{what}", np.array(number, np.float32))
            for what, number in (("step", step), ("least", -zero), ("most", 255 - zero))
        ]
        parts = [f"{value}:{what}" for what in ("steps", "whole", "kept", "rounded")]
        make = helper.make_node
        self.graph.node.extend(
            [
                make("Div", [given, names[0]], parts[:1]),
                make("Round", parts[:1], parts[1:2]),
                make("Clip", [parts[1], *names[1:]], parts[2:3]),
                make("Mul", [parts[2], names[0]], parts[3:]),
            ]
        )
        self._choose(("value", value), parts[3], given, made)

    def apart(self, value: str, name: str) -> str:
        """Return the value: nothing here is taken for an integer."""
        return name

    def product(self, node: onnx.NodeProto, made: onnx.NodeProto) -> None:
        """Add a product with its weights and with rounded ones."""
        stem, result = node.output[0], made.output[0]
        found = self.source.rounded(node, float(self.steps[node.input[0]][0]))
        rough = onnx.NodeProto()
        rough.CopyFrom(made)
        made.output[0], rough.output[0] = f"{stem}:exact", f"{stem}:rough"
        rough.name = f"{node.name}:rough"
        rough.input[1] = self.const(f"{stem}:weights", found.weights)
        if (bias := found.bias_values) is not None:
            name = self.const(f"{stem}:bias", bias)
            if len(rough.input) < 3:
                rough.input.append(name)
            rough.input[2] = name
        self.graph.node.extend([made, rough])
        self._choose(("node", stem), rough.output[0], made.output[0], result)

    def constant(self, node: onnx.NodeProto, name: str) -> str:
        """Return a constant operand of a node, rounded where the node's switch says so."""
        array = self.operand(node, name)[0]
        if array.dtype != np.float32:
            return name
        made = f"{node.output[0]}:{name}:operand"
        if (made, "") not in self.added:
            integers, step, zero = bytes_of(array)
            near = self.const(f"{made}:near", (integers.astype(np.float32) - zero) * step)
            self._choose(("node", node.output[0]), near, name, made)
            self.added[(made, "")] = made
        return made

    def _choose(self, key: tuple[str, str], rough: str, exact: str, made: str) -> None:
        """Add what takes `rough` where a switch is on, else `exact`."""
        switch = self.switched.setdefault(key, f"{SWITCHES}:{len(self.switched)}")
        self.graph.node.append(helper.make_node("Where", [switch, rough, exact], [made]))

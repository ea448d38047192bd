"""Scan as Loop: a turn for each part of what is swept, of which the body gathers its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from clnn.importers.onnx.limits import default_domain
from clnn.importers.onnx.loops.names import attribute
from clnn.importers.onnx.loops.shapes import Shapes
from clnn.records import dataclass

OLDEST = 10  # operator set whose Slice takes steps back


@dataclass
class Swept:
    """A Scan as a loop. before, after: nodes around the loop; tensors: what they read."""

    loop: onnx.NodeProto
    before: list[onnx.NodeProto] = field(default_factory=list)
    after: list[onnx.NodeProto] = field(default_factory=list)
    tensors: list[TensorProto] = field(default_factory=list)


def as_loop(scan: onnx.NodeProto, opset: int, shapes: Shapes) -> Swept | None:
    """Return a Scan as a Loop, and note the shapes of what that reads; None of other nodes and where it fits none."""
    if scan.op_type != "Scan" or default_domain(scan.domain) != "ai.onnx" or opset < OLDEST:
        return None
    body, count = attribute(scan, "body"), attribute(scan, "num_scan_inputs")
    if not isinstance(body, onnx.GraphProto) or not isinstance(count, int):
        return None
    states = len(scan.input) - count
    scans = len(body.output) - states
    fits = count > 0 and states >= 0 and scans >= 0 and len(body.input) == len(scan.input)
    if not fits or len(scan.output) != len(body.output) or any(_list(scan, "scan_output_axes", 1)):
        return None
    return _Scan(scan, body, states, shapes).swept()


def _list(scan: onnx.NodeProto, name: str, count: int) -> list[int]:
    found = attribute(scan, name)
    return [int(v) for v in found] if isinstance(found, list) else [0] * count


class _Scan:
    def __init__(
        self, scan: onnx.NodeProto, body: onnx.GraphProto, states: int, shapes: Shapes
    ) -> None:
        self.scan, self.body, self.states, self.shapes = scan, body, states, shapes
        self.base = f"{next((o for o in scan.output if o), scan.name)}/swept"
        self.made = Swept(onnx.NodeProto())

    def swept(self) -> Swept | None:
        swept = list(self.scan.input)[self.states :]
        axes = self._axes(swept)
        if axes is None:
            return None
        back = _list(self.scan, "scan_input_directions", len(swept))
        graph = onnx.GraphProto()
        graph.CopyFrom(self.body)
        rows = [v.name for v in self.body.input[self.states :]]
        del graph.input[:]
        turn, going = f"{self.base}/turn", f"{self.base}/going"
        graph.input.append(helper.make_tensor_value_info(turn, TensorProto.INT64, []))
        graph.input.append(helper.make_tensor_value_info(going, TensorProto.BOOL, []))
        graph.input.extend(self.body.input[: self.states])
        gathered = []
        for k, (name, row) in enumerate(zip(swept, rows, strict=True)):
            source = self._source(name, axes[k], bool(back[k]), k)
            gathered.append(helper.make_node("Gather", [source, turn], [row], row, axis=axes[k]))
        del graph.node[:]
        graph.node.extend([*gathered, *self.body.node])
        more = f"{self.base}/more"
        graph.node.append(helper.make_node("Identity", [going], [more], more))
        del graph.output[:]
        graph.output.append(helper.make_tensor_value_info(more, TensorProto.BOOL, []))
        graph.output.extend(self.body.output)
        turns = self._turns(f"{self.base}/0", axes[0])
        inputs = [turns, "", *list(self.scan.input)[: self.states]]
        outputs = self._outputs()
        self.made.loop = helper.make_node("Loop", inputs, outputs, self.scan.name, body=graph)
        return self.made

    def _axes(self, swept: Sequence[str]) -> list[int] | None:
        """Return the axes that are swept, None where these are not known to be of one extent."""
        given = _list(self.scan, "scan_input_axes", len(swept))
        known = [s for name in swept if (s := self.shapes.of(name)) is not None]
        if len(known) < len(swept) or len(given) != len(swept):
            return None
        axes = [axis % len(shape) for axis, shape in zip(given, known, strict=True)]
        extents = {shape[axis] for axis, shape in zip(axes, known, strict=True)}
        return axes if len(extents) == 1 else None

    def _source(self, name: str, axis: int, back: bool, k: int) -> str:
        """Return the name of a sequence in the order in which it is read, one that no body has."""
        out = f"{self.base}/{k}"
        node = (
            self._turned(name, axis, out)
            if back
            else helper.make_node("Identity", [name], [out], out)
        )
        self.made.before.append(node)
        shape = self.shapes.of(name)
        self.shapes.names.makers[out] = node
        if shape is not None:
            self.shapes.set(out, shape)
        return out

    def _turned(self, name: str, axis: int, out: str) -> onnx.NodeProto:
        """Return a node that turns an axis over."""
        values = {"first": -1, "end": -(2**63), "axis": axis, "step": -1}
        for what, value in values.items():
            tensor = numpy_helper.from_array(np.array([value], np.int64), f"{out}/{what}")
            self.made.tensors.append(tensor)
        given = [name, *(f"{out}/{what}" for what in values)]
        return helper.make_node("Slice", given, [out], out)

    def _turns(self, name: str, axis: int) -> str:
        shape, place, count = (f"{self.base}/{what}" for what in ("shape", "place", "count"))
        self.made.tensors.append(numpy_helper.from_array(np.array(axis, np.int64), place))
        nodes = [
            helper.make_node("Shape", [name], [shape], shape),
            helper.make_node("Gather", [shape, place], [count], count),
        ]
        self.made.before += nodes
        names = self.shapes.names
        names.makers.update({shape: nodes[0], count: nodes[1]})
        names.tensors[place] = self.made.tensors[-1]
        return count

    def _outputs(self) -> list[str]:
        scans = list(self.scan.output)[self.states :]
        back = _list(self.scan, "scan_output_directions", len(scans))
        outputs = list(self.scan.output)[: self.states]
        for k, (name, turned) in enumerate(zip(scans, back, strict=True)):
            if turned and name:
                outputs.append(f"{self.base}/out{k}")
                self.made.after.append(self._turned(outputs[-1], 0, name))
            else:
                outputs.append(name)
        return outputs

"""Where each node of a graph runs, and when: in a plan on the device, or on the host between plans.

Nodes of little arithmetic that read what the host made stay there, for their shapes are new in
each run: a plan would have to be made for them. What they read besides comes from the device, where
it is not large.

Level k of the device stands between levels k - 1 and k of the host. A node that decides shapes or
what runs stands on the host, behind the device level that makes what it reads; plans that need to
know what it says stand on the next level. Arithmetic on shapes belongs to no level: plans fold it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

import numpy as np
import onnx

from clnn.importers.onnx import fold as onnx_fold
from clnn.importers.onnx.fold import foldable
from clnn.importers.onnx.importer import Survey
from clnn.importers.onnx.order import ordered, reads, subgraphs
from clnn.importers.onnx.scope import attribute_value
from clnn.importers.onnx.stages.deciding import (
    CONTROL,
    LEARNED,
    SHAPE_OPS,
    deciding_inputs,
    has_device_form,
    has_host_form,
    is_standard,
    why_on_host,
)
from clnn.importers.onnx.stages.program import StageInput
from clnn.importers.onnx.stages.turns import Turns, between
from clnn.importers.onnx.stages.values import SMALL, Constants, Known, leaves_of
from clnn.ops.host.registry import HostNode, compute
from clnn.records import dataclass

ROUNDS = 4  # of placing nodes, each with what the one before reads back


@dataclass(frozen=True)
class Placed:
    """Where a node runs: "const" (nowhere), "shape", "host", "control" or "device"; and its level."""

    node: onnx.NodeProto
    place: str
    level: int


@dataclass
class Parting:
    """One graph: its nodes, what is known of its inputs, and the graph around it.

    survey: what the plain import found, of the main graph where all its shapes are known. turns: of a
    loop's body. lasting: values that are the same in all of its turns.
    """

    graph: onnx.GraphProto
    inputs: Mapping[str, Known]
    consts: Constants
    opset: int
    parent: Parting | None = None
    survey: Survey | None = None
    turns: Turns | None = None
    captures: list[str] = field(default_factory=list)
    lasting: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        nodes = ordered(self.graph.node, self.is_visible)
        self._constants(nodes)
        self.nodes = self._needed(nodes)
        self._doubles = self._may_be_doubles() if any(n.domain == LEARNED for n in nodes) else set()
        self.values: dict[str, Known] = {}
        self.placed: list[Placed] = []
        self._joined: set[str] = set()
        self.steady = self.turns.steady(self.nodes) if self.turns else set[str]()
        self.lasting = self.turns.lasting(self.nodes) if self.turns else set()
        back: set[str] = set()
        for _ in range(ROUNDS):
            self._place(back)
            more, joined = self._read_back(), self._between()
            if more <= back and joined <= self._joined:
                break
            back |= more
            self._joined |= joined

    def is_visible(self, name: str) -> bool:
        """Whether a name stands for a value before the first node."""
        if name in self.inputs or self.consts.knows(name):
            return True
        return self.parent is not None and self.parent.has(name)

    def has(self, name: str) -> bool:
        """Whether a name stands for a value somewhere in this graph or around it."""
        return name in getattr(self, "values", ()) or self.is_visible(name)

    def known(self, name: str) -> Known:
        """Return what is known of a value; one of the graph around it is captured."""
        if name not in self.values:
            if self.consts.knows(name):
                self.values[name] = Known("const")
            else:
                assert self.parent is not None, name
                outer = self.parent.known(name)
                self.captures.append(name)
                place = "fed" if outer.place in ("device", "fed") else "host"
                self.values[name] = Known(place, type=outer.type)
        return self.values[name]

    def _constants(self, nodes: Sequence[onnx.NodeProto]) -> None:
        for node in nodes:
            if node.op_type == "Constant" and is_standard(node):
                attrs = {a.name: attribute_value(a, self.consts.reader) for a in node.attribute}
                self.consts.arrays[node.output[0]] = onnx_fold.constant(attrs)
            elif node.op_type in SHAPE_OPS and is_standard(node) and self._is_stored(node.input):
                attrs = {a.name: attribute_value(a, self.consts.reader) for a in node.attribute}
                like = HostNode(node.op_type, self.opset, attrs, name=node.name)
                (found,) = compute(like, [self.consts.array(n) for n in node.input])
                self.consts.arrays[node.output[0]] = found
        if self.survey:
            made = {name for node in nodes for name in node.output}
            self.consts.arrays.update(
                {n: a for n, a in self.survey.consts.items() if n in made and n not in self.inputs}
            )

    def _is_stored(self, names: Iterable[str]) -> bool:
        """Whether these are constants of this graph, or of those around it."""
        return all(n not in self.inputs and self.consts.knows(n) for n in names)

    def _needed(self, nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
        """Return the nodes that outputs come from, constants apart."""
        wanted = {v.name for v in self.graph.output}
        kept = []
        for node in reversed(nodes):
            made = [n for n in node.output if n in wanted and not self.consts.knows(n)]
            if made:
                kept.append(node)
                wanted |= reads(node)
        return kept[::-1]

    def _place(self, back: set[str]) -> None:
        self.values, self.captures = dict(self.inputs), []
        self.placed = []
        for node in self.nodes:
            names = [n for n in reads(node) if n]
            known = {n: self.known(n) for n in sorted(names)}
            place = self._place_of(node, known, back)
            level = self._level(node, place, known)
            self.placed.append(Placed(node, place, level))
            leaves = leaves_of(known, self.values) if place == "shape" else frozenset()
            if place == "shape" and node.op_type in SHAPE_OPS and known[node.input[0]].has_shape:
                leaves = frozenset(known)
            where = "host" if place == "control" else place
            for name in node.output:
                if name:
                    self.values[name] = Known(where, level, leaves, self._type(name))

    def _type(self, name: str) -> StageInput | None:
        kind = self.survey.types.get(name) if self.survey else None
        return None if kind is None else StageInput(name, kind.dtype.numpy, kind.shape)

    def _place_of(self, node: onnx.NodeProto, known: Mapping[str, Known], back: set[str]) -> str:
        places = {k.place for k in known.values()}
        host, device = has_host_form(node, self.opset), has_device_form(node, self.opset)
        if self.survey and all(n in self.survey.types for n in node.output if n):
            return "device"
        if is_standard(node) and node.op_type in CONTROL:
            return "device" if self._is_plain(node, known) else "control"
        if is_standard(node) and node.op_type in SHAPE_OPS and places != {"const"}:
            return "shape"
        folds = is_standard(node) and foldable(node.op_type)
        if host and places <= {"const", "shape"} and (folds or not device):
            return "shape" if folds else "host"
        if host and (why_on_host(node) or not device or self._reads_text(node)):
            return "host"
        if node.domain == LEARNED and not self._doubles.isdisjoint(node.input):
            return "host"
        if node.name in self._joined:
            return "device"
        here = all(k.is_here or n in back or not k.is_large for n, k in known.items())
        return "host" if host and here and "host" in places else "device"

    def _may_be_doubles(self) -> set[str]:
        """Return inputs that are doubles, or of no known type, and what may be made of them."""
        found = {n for n, k in self.inputs.items() if k.type is None or k.type.dtype == np.float64}
        for node in self.nodes:
            to = next((a.i for a in node.attribute if a.name == "to"), None)
            if to == onnx.TensorProto.DOUBLE or (to is None and reads(node) & found):
                found.update(n for n in node.output if n)
        return found

    def _reads_text(self, node: onnx.NodeProto) -> bool:
        """Whether a constant of text is among what a node reads."""
        stored = (n for n in node.input if n and n not in self.inputs and self.consts.knows(n))
        return any(self.consts.is_text(n) for n in stored)

    def _is_plain(self, node: onnx.NodeProto, known: Mapping[str, Known]) -> bool:
        """Whether an If is decided by shapes, and its branches are nothing but plain nodes."""
        if node.op_type != "If" or known[node.input[0]].place not in ("const", "shape"):
            return False
        return all(self._all_plain(graph) for graph in subgraphs(node))

    def _all_plain(self, graph: onnx.GraphProto) -> bool:
        inside = {t.name for t in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant":
                inside.update(node.output)
            decided = all(n in inside or self.consts.knows(n) for n in deciding_inputs(node))
            if not decided or node.op_type in CONTROL or why_on_host(node):
                return False
            if not has_device_form(node, self.opset) and node.op_type not in SHAPE_OPS:
                return False
        return True

    def _level(self, node: onnx.NodeProto, place: str, known: Mapping[str, Known]) -> int:
        if place != "device":
            return max((k.level for k in known.values()), default=0)
        decides = set(deciding_inputs(node))
        level = 1
        for name, value in known.items():
            if value.place == "shape":
                level = max([level, *(self._ready(self.values[x]) for x in value.leaves)])
            elif value.place == "device" and name not in decides:
                level = max(level, value.level)
            elif value.place != "const":
                level = max(level, value.level + 1)
        return level

    @staticmethod
    def _ready(value: Known) -> int:
        """Return the first device level that may read a value."""
        return value.level if value.place == "device" else value.level + 1

    def _between(self) -> set[str]:
        """Return nodes on the host that would join stages of a loop's body before and behind them.

        A launch for each stage of a turn takes longer than most of what the host does in it.
        """
        places = [row.place for row in self.placed]
        names = between(self.nodes, places, self.steady)
        doubles = self._of_doubles() if names else set()
        return {n.name for n in self.nodes if n.name in names - doubles and self._may_join(n)}

    def _may_join(self, node: onnx.NodeProto) -> bool:
        """Whether a device may have a node's operator."""
        here = why_on_host(node) or self._reads_text(node)
        return not here and has_device_form(node, self.opset)

    def _of_doubles(self) -> set[str]:
        """Return the nodes that may read or make doubles, which not every device has."""
        doubles: set[str] = set()
        found: set[str] = set()
        for node in self.nodes:
            to = next((a.i for a in node.attribute if a.name == "to"), None)
            given = any(n in doubles or self._is_double(n) for n in reads(node) if n)
            if given or to == onnx.TensorProto.DOUBLE:
                found.add(node.name)
            if to == onnx.TensorProto.DOUBLE or (given and to is None):
                doubles.update(node.output)
        return found

    def _is_double(self, name: str) -> bool:
        known = self.values[name]
        if known.place == "const":
            return self.consts.array(name).dtype == np.float64
        return known.type is not None and known.type.dtype == np.float64

    def _read_back(self) -> set[str]:
        """Return the values that the device makes and the host reads."""
        found: set[str] = set()
        for row in self.placed:
            if row.place in ("host", "control"):
                found |= reads(row.node)
            elif row.place == "device":
                found |= set(deciding_inputs(row.node))
        return {n for n in found if n and self.values[n].place == "device"}

    def carried(self, name: str) -> Known:
        """Return what a loop's body may know of a value that it begins with."""
        value = self.known(name)
        small = value.place == "const" and self.consts.size(name) <= SMALL
        return Known("host" if small or value.place in ("shape", "host") else "fed")


def names_of(values: Iterable[onnx.ValueInfoProto]) -> tuple[str, ...]:
    """Return the names of inputs or outputs."""
    return tuple(v.name for v in values)

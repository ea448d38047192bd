"""What a loop walks over: how many turns it has, which sequences it reads row by row, and what it keeps."""

from __future__ import annotations

from dataclasses import field

import numpy as np
import onnx
from onnx import TensorProto

from clnn.importers.onnx.limits import default_domain
from clnn.importers.onnx.loops.names import NUMBER, Names, attribute
from clnn.importers.onnx.loops.shapes import Extent, Shape, Shapes
from clnn.importers.onnx.order import is_ordered, subgraphs
from clnn.records import dataclass

ENDLESS = 2**31 - 1  # turns that no sequence has
TRUTHS = (
    *("Not", "And", "Or", "Xor", "IsNaN", "IsInf"),
    *("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
)
MOVED = (
    *("Identity", "Cast", "Transpose", "Squeeze", "Unsqueeze", "Reshape", "Expand"),
    *("ReverseSequence", "Slice", "Gather"),
)


@dataclass(frozen=True)
class Rows:
    """A sequence that a loop reads a row of in each turn: its name outside, and the axis of its steps."""

    name: str
    axis: int


@dataclass(frozen=True)
class Truth:
    """Rows of truth values: of which sequence, whether turned over, and of how many axes a row is."""

    rows: Rows
    turned: bool
    rank: int


@dataclass(frozen=True)
class Chosen:
    """A value that is one of two, element by element: by what, where that holds, and elsewhere."""

    mask: Truth
    new: str
    old: str


def is_walk(node: onnx.NodeProto) -> bool:
    """Whether a node is a loop of which more can be known: its body has no graphs inside, and is in order."""
    bodies = [a.g for a in node.attribute if a.name == "body"]
    if node.op_type != "Loop" or default_domain(node.domain) != "ai.onnx" or len(bodies) != 1:
        return False
    body, count = bodies[0], len(node.input) - 2
    inside = [graph for inner in body.node for graph in subgraphs(inner)]
    fits = count >= 1 and len(body.input) == count + 2 and len(body.output) > count
    return fits and not inside and not body.sparse_initializer and is_ordered(body)


@dataclass
class Walk:
    """A loop as its body and the graph around it show it."""

    outer: Names
    shapes: Shapes
    node: onnx.NodeProto
    graph: onnx.GraphProto = field(init=False)
    body: Names = field(init=False)
    carried: list[str] = field(init=False)
    after: list[str] = field(init=False)
    scans: list[str] = field(init=False)
    kept: dict[str, str] = field(init=False)
    counters: frozenset[int] = field(init=False)
    turns: Extent | None = field(init=False)

    def __post_init__(self) -> None:
        self.graph = next(a.g for a in self.node.attribute if a.name == "body")
        self.body = Names(self.graph)
        self.carried = [v.name for v in self.graph.input[2:]]
        count = len(self.carried)
        self.after = [self.body.source(v.name) for v in self.graph.output[1 : count + 1]]
        self.scans = [self.body.source(v.name) for v in self.graph.output[count + 1 :]]
        pairs = zip(self.carried, self.after, self.node.input[2:], strict=True)
        self.kept = {name: given for name, made, given in pairs if name == made}
        self.counters = frozenset(k for k in range(count) if self._counts(k))
        self.turns = self._turns()

    def first(self, k: int) -> str:
        """Return what a carried value is before the first turn."""
        return str(self.node.input[2 + k])

    def outside(self, name: str) -> str:
        """Return the name outside of a value that the body reads from there, "" of others."""
        name = self.body.source(name)
        if name in self.kept:
            return self.kept[name]
        return "" if name in self.body.made else name

    def declared(self, place: int) -> int:
        """Return how many axes an input of the body is said to have, 0 where it is not said."""
        return len(self.graph.input[place].type.tensor_type.shape.dim)

    def is_row(self, name: str) -> bool:
        """Whether a value that the body is given has two axes, as states have, or fewer."""
        name = self.body.source(name)
        for value in self.graph.input:
            if value.name == name and value.type.tensor_type.HasField("shape"):
                return len(value.type.tensor_type.shape.dim) <= 2
        shape = self.shapes.of(self.outside(name))
        return shape is not None and len(shape) <= 2

    def rows(self, name: str) -> Rows | None:
        """Return the sequence of which a value is this turn's row."""
        node = self.body.made_by(name, "Gather")
        if node is None or not self._is_turn(node.input[1]):
            return None
        sequence = self.outside(node.input[0])
        return Rows(sequence, int(str(attribute(node, "axis", 0)))) if sequence else None

    def whole(self, rows: Rows, rank: int) -> Shape | None:
        """Return the shape of a sequence of this many axes, with its steps first, which may be more than turns.

        None where it is not known to have at least as many, unless both are numbers: then it is looked at later.
        """
        shape = self.shapes.of(rows.name)
        if shape is None or len(shape) != rank or not -rank <= rows.axis < rank:
            return None
        axis = rows.axis % rank
        same = shape[axis] == self.turns or isinstance(self.turns, int)
        return (shape[axis], *shape[:axis], *shape[axis + 1 :]) if same else None

    def chosen(self, name: str) -> Chosen | None:
        """Return a value as one of two where rows of truth values say of which: Where, or products by 1 and 0."""
        node = self.body.made_by(name, "Where")
        if node is not None:
            mask, new, old = self._truth(node.input[0]), node.input[1], node.input[2]
            return None if mask is None else _of(mask, new, old)
        for left, right in self.body.both(name, "Add"):
            for gate, new in self.body.both(left, "Mul"):
                mask = self._truth(gate)
                for other, old in self.body.both(right, "Mul") if mask else ():
                    rest = self._truth(other)
                    if mask and rest == Truth(mask.rows, not mask.turned, mask.rank):
                        return _of(mask, new, old)
        return None

    def _truth(self, name: str) -> Truth | None:
        """Return the sequence of truth values of which a value is this turn's row, as these or as 0 and 1."""
        turned, rank = False, 0
        while True:
            name = self.body.source(name, ("Identity", "Cast"))
            node = self.body.makers.get(name)
            if node is not None and node.op_type == "Not":
                turned, name = not turned, node.input[0]
            elif node is not None and node.op_type == "Sub" and self.is_one(node.input[0]):
                turned, name = not turned, node.input[1]
            elif node is not None and node.op_type == "Unsqueeze":
                if self.body.axes(node) not in ([-1], [1]) or rank:
                    return None
                rank, name = 1, node.input[0]
            else:
                break
        rows = self.rows(name)
        fits = rows is not None and self._is_truth(rows.name)
        return Truth(rows, turned, 2 - rank) if rows and fits else None

    def _is_truth(self, name: str) -> bool:
        """Whether a value outside is of truth values, or made of such by Cast."""
        while True:
            node = self.outer.makers.get(name)
            if node is None:
                inputs = {v.name: v.type.tensor_type.elem_type for v in self.outer.graph.input}
                tensor = self.outer.tensors.get(name, TensorProto())
                return TensorProto.BOOL in (inputs.get(name), tensor.data_type)
            if node.op_type in TRUTHS or attribute(node, "to") == TensorProto.BOOL:
                return True
            if node.op_type not in MOVED:
                return False
            name = node.input[0]

    def is_one(self, name: str) -> bool:
        """Whether a value of the body is the number 1."""
        outside = self.outside(self.body.source(name))
        return self.outer.is_number(outside, 1) if outside else self.body.is_number(name, 1)

    def _counts(self, k: int) -> bool:
        """Whether a carried value counts the turns, from 0 on."""
        begins = self.outer.is_number(self.first(k), 0)
        steps = self.body.both(self.after[k], "Add")
        return begins and any(
            self.body.source(old) == self.carried[k] and self.is_one(step) for old, step in steps
        )

    def _is_turn(self, name: str) -> bool:
        """Whether a value is the turn as a number without axes."""
        name = self.body.source(name, ("Identity", "Cast"))
        if name == self.graph.input[0].name:
            return not self.declared(0)
        place = self.carried.index(name) if name in self.carried else -1
        return place in self.counters and self.shapes.of(self.first(place)) == ()

    def _turns(self) -> Extent | None:
        """Return how many turns the loop has, None where that is not known before it runs."""
        most, begins = self.node.input[:2]
        limits = [self.shapes.amount(most)] if most else []
        for name in self._parts(self.graph.output[0].name):
            limits += [self._limit(name)]
        found = {e for e in limits if not (isinstance(e, int) and e >= ENDLESS)}
        if len(found) > 1 and all(isinstance(e, int) for e in found):
            found = {min(e for e in found if isinstance(e, int))}
        turns = found.pop() if len(found) == 1 else None
        if isinstance(turns, int) and turns < 1:
            return None
        starts = turns is not None and all(self._holds(n, turns) for n in self._all(begins))
        return turns if starts else None

    def _all(self, name: str) -> list[str]:
        """Return what all must hold for a truth value outside to hold."""
        return self.outer.leaves(name, "And") if name else []

    def _holds(self, name: str, turns: Extent) -> bool:
        """Whether a truth value outside holds wherever there are turns."""
        node = self.outer.made_by(name, "Less")
        if node is None:
            return self.outer.is_number(name, 1)
        limit = self.shapes.amount(node.input[1])
        zero = self.outer.is_number(node.input[0], 0)
        return zero and (limit == turns or (isinstance(limit, int) and limit > 0))

    def _parts(self, name: str) -> list[str]:
        """Return what all must hold for another turn; nothing where one follows as long as there are any."""
        parts = map(self.body.source, self.body.leaves(name, "And"))
        return [n for n in parts if n != self.graph.input[1].name and not self.is_one(n)]

    def _limit(self, name: str) -> Extent | None:
        """Return how many turns there are at most, None where a condition does not say that.

        Of a turn that is compared before it is counted on there may be one more: no limit but with others.
        """
        node = self.body.made_by(name, "Less")
        if node is None:
            return None
        count = self.body.source(node.input[0], ("Identity", "Cast"))
        amount = self._amount(self.body.source(node.input[1], NUMBER))
        counted = [self.after[k] for k in self.counters]
        before = [self.graph.input[0].name, *(self.carried[k] for k in self.counters)]
        if count in counted:
            return amount
        fits = count in before and amount == self._amount_of_turns()
        return ENDLESS if fits and amount is not None else None

    def limit(self) -> str:
        """Return the value outside that says how many turns there are."""
        most = self.node.input[0]
        if most and self.shapes.amount(most) == self.turns:
            return str(most)
        for name in self._parts(self.graph.output[0].name):
            node = self.body.made_by(name, "Less")
            limit = self.outside(self.body.source(node.input[1], NUMBER)) if node else ""
            if limit and self.shapes.amount(limit) == self.turns:
                return limit
        raise AssertionError("a loop without turns is no walk")

    def _amount_of_turns(self) -> Extent | None:
        return self.shapes.amount(self.node.input[0]) if self.node.input[0] else None

    def _amount(self, name: str) -> Extent | None:
        outside = self.outside(name)
        if outside:
            return self.shapes.amount(outside)
        number = self.body.number(self.body.source(name, NUMBER))
        return int(number) if number is not None and np.rint(number) == number else None


def _of(mask: Truth, new: str, old: str) -> Chosen:
    """Return a choice by what is not turned over."""
    upright = Truth(mask.rows, False, mask.rank)
    return Chosen(upright, old, new) if mask.turned else Chosen(upright, new, old)

"""Loops that walk an LSTM step by step, as exporters of TensorFlow write some, as LSTM nodes.

A loop's turn costs launches of its own, a layer's step none. What is recognised is proven: the loop runs
once for each row of what it reads, its weights are constants, and it hands nothing else from turn to turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from itertools import permutations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from clnn.importers.onnx.limits import default_domain
from clnn.importers.onnx.order import reads, subgraphs
from clnn.records import dataclass
from clnn.types import Array

FUNCTIONS = ("Sigmoid", "Tanh", "Relu")
FEW = 64  # elements of a constant that is looked at
OLDEST = 8  # operator set
ENDLESS = 2**31 - 1  # turns that no sequence has


@dataclass(frozen=True)
class Cell:
    """A step: gate -> its sum before the function, functions of gates, of the candidate, of the cell."""

    state: int
    cell: int
    gates: dict[str, str]
    functions: tuple[str, str, str]


@dataclass
class Gate:
    """What a gate adds up: its weights, and its biases."""

    inputs: str
    states: str
    biases: list[str]


@dataclass
class Names:
    """Nodes of one graph by what they make, and its constants."""

    graph: onnx.GraphProto
    makers: dict[str, onnx.NodeProto] = field(init=False)
    tensors: dict[str, TensorProto] = field(init=False)

    def __post_init__(self) -> None:
        self.makers = {name: node for node in self.graph.node for name in node.output if name}
        self.tensors = {t.name: t for t in self.graph.initializer}

    def source(self, name: str, through: Sequence[str] = ("Identity",)) -> str:
        """Return what a value is, behind operators that give on what they take."""
        while name in self.makers and self.makers[name].op_type in through:
            name = self.makers[name].input[0]
        return name

    def made_by(self, name: str, op_type: str) -> onnx.NodeProto | None:
        """Return the node that makes a value where it is of this operator."""
        node = self.makers.get(self.source(name))
        return node if node is not None and node.op_type == op_type else None

    def small(self, name: str) -> Array | None:
        """Return a constant of few elements."""
        tensor, node = self.tensors.get(name), self.makers.get(name)
        if node is not None and node.op_type == "Constant" and node.attribute:
            value = helper.get_attribute_value(node.attribute[0])
            if not isinstance(value, TensorProto):
                plain = isinstance(value, (int, float, list))
                return np.array(value) if plain and np.size(value) <= FEW else None
            tensor = value
        if tensor is None or tensor.data_location == TensorProto.EXTERNAL:
            return None
        if np.prod(tensor.dims, dtype=np.int64) > FEW:
            return None
        found: Array = numpy_helper.to_array(tensor)
        return found

    def rank(self, name: str) -> int:
        """Return the axes of a value, -1 where the graph does not say how many."""
        name = self.source(name, ("Identity", "ReverseSequence"))
        node = self.makers.get(name)
        if node is not None and node.op_type == "Transpose":
            return next((len(a.ints) for a in node.attribute if a.name == "perm"), -1)
        stated = (v for v in (*self.graph.input, *self.graph.value_info) if v.name == name)
        kind = next(stated, onnx.ValueInfoProto()).type.tensor_type
        return len(kind.shape.dim) if kind.HasField("shape") else -1

    def is_number(self, name: str, wanted: float) -> bool:
        """Whether a value is a constant of one element, of this value."""
        found = self.small(self.source(name, ("Identity", "Cast")))
        return found is not None and found.size == 1 and found.item() == wanted


def with_layers(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose loops are LSTM nodes where they compute such; the model where none does."""
    opset = {default_domain(o.domain): o.version for o in model.opset_import}.get("ai.onnx", 0)
    if opset < OLDEST or not any(n.op_type == "Loop" for n in model.graph.node):
        return model
    outer, nodes, tensors = Names(model.graph), [], []
    wanted = {name for node in model.graph.node for name in reads(node)}
    wanted |= {value.name for value in model.graph.output}
    for node in model.graph.node:
        found = _Loop(outer, node, opset, wanted).layer() if _is_loop(node) else None
        nodes += [node] if found is None else found[0]
        tensors += [] if found is None else found[1]
    if len(nodes) == len(model.graph.node):
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    del changed.graph.node[:]
    changed.graph.node.extend(nodes)
    changed.graph.initializer.extend(tensors)
    return changed


def _is_loop(node: onnx.NodeProto) -> bool:
    bodies = [a.g for a in node.attribute if a.name == "body"]
    if node.op_type != "Loop" or default_domain(node.domain) != "ai.onnx" or len(bodies) != 1:
        return False
    body, count = bodies[0], len(node.input) - 2
    inside = [graph for inner in body.node for graph in subgraphs(inner)]
    fits = count >= 2 and len(body.input) == count + 2 and len(body.output) > count
    return fits and not inside and not body.sparse_initializer


def _both(node: onnx.NodeProto | None) -> Iterator[tuple[str, str]]:
    """Yield the two inputs of a node in both orders."""
    if node is not None and len(node.input) == 2:
        yield node.input[0], node.input[1]
        yield node.input[1], node.input[0]


class _Loop:
    """One loop: its body, and what its names are outside."""

    def __init__(
        self, outer: Names, node: onnx.NodeProto, opset: int, wanted: Iterable[str]
    ) -> None:
        self.outer, self.node, self.opset, self.wanted = outer, node, opset, wanted
        self.graph = next(a.g for a in node.attribute if a.name == "body")
        self.body = Names(self.graph)
        self.carried = [v.name for v in self.graph.input[2:]]
        count = len(self.carried)
        self.after = [self.body.source(v.name) for v in self.graph.output[1 : count + 1]]
        self.scans = [self.body.source(v.name) for v in self.graph.output[count + 1 :]]
        pairs = zip(self.carried, self.after, node.input[2:], strict=True)
        self.kept = {name: given for name, made, given in pairs if name == made}
        self.base = f"{next((o for o in node.output if o), node.name)}/layer"
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[TensorProto] = []

    def layer(self) -> tuple[list[onnx.NodeProto], list[TensorProto]] | None:
        """Return nodes and constants that compute the loop, None where it is no layer."""
        cell, counter = self._cell(), self._counter()
        if cell is None or counter is None or self._others(cell, counter):
            return None
        state = self.graph.input[2 + cell.state].type.tensor_type
        rows = {self._row(gate) for gate in self._leaves_of(cell)} - {""}
        gates = {name: self._gate(cell, given) for name, given in cell.gates.items()}
        if len(rows) != 1 or None in gates.values() or len(state.shape.dim) != 2:
            return None
        sequence, hidden = rows.pop(), state.shape.dim[1].dim_value
        if self.outer.rank(sequence) != 3:
            return None
        fits = state.elem_type == TensorProto.FLOAT and hidden > 0
        if not fits or not self._walks(sequence, counter):
            return None
        self._build(cell, counter, sequence, hidden, {n: g for n, g in gates.items() if g})
        return self.nodes, self.tensors

    def _cell(self) -> Cell | None:
        body = self.body
        for k, j in permutations(range(len(self.carried)), 2):
            for gate, shown in _both(body.made_by(self.after[k], "Mul")):
                output, outer = self._function(gate), self._function(shown)
                if not output or not outer or body.source(outer[1]) != self.after[j]:
                    continue
                found = self._cell_of(j, output[0])
                if found:
                    gates, candidate = found
                    functions = output[0], candidate, outer[0]
                    return Cell(k, j, {"o": output[1], **gates}, functions)
        return None

    def _cell_of(self, j: int, function: str) -> tuple[dict[str, str], str] | None:
        """Return gates i, f and c of a cell whose gates have this function, and the candidate's."""
        body = self.body
        for old, new in _both(body.made_by(self.after[j], "Add")):
            for gate, cell in _both(body.made_by(old, "Mul")):
                forget = self._function(gate)
                if not forget or forget[0] != function or body.source(cell) != self.carried[j]:
                    continue
                for gate_, shown in _both(body.made_by(new, "Mul")):
                    take, candidate = self._function(gate_), self._function(shown)
                    if take and candidate and take[0] == function:
                        gates = {"i": take[1], "f": forget[1], "c": candidate[1]}
                        return gates, candidate[0]
        return None

    def _function(self, name: str) -> tuple[str, str] | None:
        node = self.body.makers.get(self.body.source(name))
        if node is None or node.op_type not in FUNCTIONS:
            return None
        return node.op_type, node.input[0]

    def _counter(self) -> int | None:
        """Return which carried value counts the turns, from 0."""
        for k, name in enumerate(self.carried):
            for old, step in _both(self.body.made_by(self.after[k], "Add")):
                begins = self.outer.is_number(self.node.input[2 + k], 0)
                if self.body.source(old) == name and self.body.is_number(step, 1) and begins:
                    return k
        return None

    def _others(self, cell: Cell, counter: int) -> bool:
        """Whether the loop carries or makes anything else."""
        known = {cell.state, cell.cell, counter}
        more = {n for k, n in enumerate(self.carried) if k not in known} - self.kept.keys()
        return bool(more) or any(made != self.after[cell.state] for made in self.scans)

    def _leaves(self, name: str) -> Iterator[str]:
        node = self.body.made_by(name, "Add")
        if node is None:
            yield self.body.source(name)
            return
        for part in node.input:
            yield from self._leaves(part)

    def _leaves_of(self, cell: Cell) -> list[str]:
        return [leaf for given in cell.gates.values() for leaf in self._leaves(given)]

    def _row(self, leaf: str) -> str:
        """Return the outer value of which a product reads a row in each turn, "" of other values."""
        product = self.body.made_by(leaf, "MatMul")
        node = self.body.made_by(product.input[0], "Gather") if product is not None else None
        counter = self._counter()
        counted = {self.graph.input[0].name, "" if counter is None else self.carried[counter]}
        if node is None or any(a.name == "axis" and a.i for a in node.attribute):
            return ""
        return self._outside(node.input[0]) if self.body.source(node.input[1]) in counted else ""

    def _outside(self, name: str) -> str:
        """Return the name outside of a value that the body reads from there, "" of others."""
        name = self.body.source(name)
        if name in self.kept:
            return str(self.kept[name])
        inside = name in self.body.makers or name in self.body.tensors
        return "" if inside or name in {v.name for v in self.graph.input} else name

    def _gate(self, cell: Cell, given: str) -> Gate | None:
        inputs, states, biases = [], [], []
        for leaf in self._leaves(given):
            product = self.body.made_by(leaf, "MatMul")
            if self._row(leaf) and product is not None:
                inputs.append(product.input[1])
            elif product is not None and self._is_state(product.input[0], cell):
                states.append(product.input[1])
            else:
                biases.append(leaf)
        if len(inputs) != 1 or len(states) != 1:
            return None
        ranks = [(inputs[0], 2), (states[0], 2), *((bias, 1) for bias in biases)]
        if not all(self._is_constant(name, rank) for name, rank in ranks):
            return None
        return Gate(inputs[0], states[0], biases)

    def _is_state(self, name: str, cell: Cell) -> bool:
        """Whether a value is the state, or the state times ones."""
        state = self.carried[cell.state]
        if self.body.source(name) == state:
            return True
        for old, ones in _both(self.body.made_by(name, "Mul")):
            node = self.body.made_by(ones, "ConstantOfShape")
            shape = self.body.made_by(node.input[0], "Shape") if node is not None else None
            if node is None or shape is None or self.body.source(old) != state:
                continue
            value = [numpy_helper.to_array(a.t) for a in node.attribute if a.name == "value"]
            if self.body.source(shape.input[0]) == state and value and value[0].item() == 1:
                return True
        return False

    def _is_constant(self, name: str, rank: int) -> bool:
        """Whether a value is a part of a constant of floats, of this rank."""
        node = self.body.makers.get(self.body.source(name))
        if node is not None and node.op_type in ("Split", "Slice"):
            rest = all(self.body.small(n) is not None for n in node.input[1:] if n)
            return rest and self._is_constant(node.input[0], rank)
        if node is not None:
            return False
        outside = self._outside(name)
        tensor = self.outer.tensors.get(self.outer.source(outside)) if outside else None
        tensor = tensor or self.body.tensors.get(self.body.source(name))
        fits = tensor is not None and tensor.data_type == TensorProto.FLOAT
        return tensor is not None and fits and len(tensor.dims) == rank

    def _walks(self, sequence: str, counter: int) -> bool:
        """Whether the loop has a turn for each row of a sequence."""
        most, begins = self.node.input[:2]
        turns = self.outer.small(most) if most else np.array(ENDLESS)
        if turns is None or turns.size != 1 or turns.item() < ENDLESS:
            return False
        compared = self.body.made_by(self.graph.output[0].name, "Less")
        if compared is None:
            return False
        count, limit = (self.body.source(n, ("Identity", "Cast")) for n in compared.input)
        rows = self._rows_of(self._outside(limit))
        first = self.outer.made_by(begins, "Less")
        if first is not None:
            zero = self.outer.is_number(first.input[0], 0)
            starts = zero and self._rows_of(first.input[1]) == rows
        else:
            starts = not begins or self.outer.is_number(begins, 1)
        ends = count == self.after[counter] and bool(rows)
        return ends and starts and rows == self._as_long_as(sequence)

    def _rows_of(self, name: str) -> str:
        """Return of which value a number is the first extent, "" where that is not clear."""
        outer = self.outer
        node = outer.makers.get(outer.source(name, ("Identity", "Cast", "Squeeze")))
        if node is None or node.op_type not in ("Slice", "Gather"):
            return ""
        numbers = [outer.small(n) for n in node.input[1:] if n]
        first = [0, 1, 0, 1][: len(numbers)] if node.op_type == "Slice" else [0]
        plain = [n.item() for n in numbers if n is not None and n.size == 1]
        shape = outer.makers.get(outer.source(node.input[0], ("Identity", "Cast")))
        if plain != first or len(plain) != len(numbers) or (node.attribute and first != [0]):
            return ""
        if shape is None or shape.op_type != "Shape" or shape.attribute:
            return ""
        return self._as_long_as(shape.input[0])

    def _as_long_as(self, name: str) -> str:
        return self.outer.source(name, ("Identity", "ReverseSequence"))

    def _build(
        self, cell: Cell, counter: int, sequence: str, hidden: int, gates: dict[str, Gate]
    ) -> None:
        order = [gates[name] for name in "iofc"]
        weights = [
            self._stacked([getattr(gate, which) for gate in order], which, hidden)
            for which in ("inputs", "states")
        ]
        zeros = self._tensor("zeros", np.zeros(hidden, np.float32))
        biases = [self._bias(k, gate.biases, zeros) for k, gate in enumerate(order)]
        rows = self._made("Concat", [*biases, *[zeros] * 4], "biases", axis=0)
        bias = self._with_axis("Unsqueeze", rows, 0, "bias")
        given = [self.node.input[2 + k] for k in (cell.state, cell.cell)]
        first = [self._with_axis("Unsqueeze", n, 0, f"first{k}") for k, n in enumerate(given)]
        outs = [f"{self.base}/{name}" for name in ("every", "state", "cell")]
        node = helper.make_node(
            "LSTM",
            [sequence, *weights, bias, "", *first],
            outs,
            self.node.name or self.base,
            hidden_size=hidden,
            activations=list(cell.functions),
        )
        self.nodes.append(node)
        self._results(cell, counter, outs)

    def _results(self, cell: Cell, counter: int, outs: list[str]) -> None:
        """Add what makes the loop's outputs that somebody reads."""
        for k, name in enumerate(self.node.output):
            if not name or name not in self.wanted:
                continue
            if k in (cell.state, cell.cell):
                self._with_axis("Squeeze", outs[1 if k == cell.state else 2], 0, out=name)
            elif k == counter:
                compared = self.body.made_by(self.graph.output[0].name, "Less")
                assert compared is not None
                limit = self._outside(self.body.source(compared.input[1], ("Identity", "Cast")))
                kind = self.graph.input[2 + k].type.tensor_type.elem_type
                self._made("Cast", [limit], out=name, to=kind)
            elif k < len(self.carried):
                self._made("Identity", [self.node.input[2 + k]], out=name)
            else:
                self._with_axis("Squeeze", outs[0], 1, out=name)

    def _stacked(self, names: Sequence[str], what: str, hidden: int) -> str:
        """Return weights of four gates as LSTM takes them: (1, 4 * hidden, what they multiply)."""
        turned = [
            self._made("Transpose", [self._copied(n)], f"{what}{k}", perm=[1, 0])
            for k, n in enumerate(names)
        ]
        rows = self._made("Concat", turned, f"{what}_rows", axis=0)
        return self._with_axis("Unsqueeze", rows, 0, what)

    def _bias(self, place: int, names: Sequence[str], zeros: str) -> str:
        total = zeros
        for k, name in enumerate(names):
            total = self._made("Add", [total, self._copied(name)], f"bias{place}_{k}")
        return total

    def _copied(self, name: str) -> str:
        """Return the name outside of a constant of the body, with the nodes that make it."""
        name = self.body.source(name)
        if self._outside(name):
            return self._outside(name)
        copy = f"{self.base}/{name}"
        if any(copy in node.output for node in self.nodes) or copy in {
            t.name for t in self.tensors
        }:
            return copy
        if name in self.body.tensors:
            tensor = TensorProto()
            tensor.CopyFrom(self.body.tensors[name])
            tensor.name = copy
            self.tensors.append(tensor)
            return copy
        node = onnx.NodeProto()
        node.CopyFrom(self.body.makers[name])
        node.input[:] = [self._copied(n) if n else "" for n in node.input]
        node.output[:] = [f"{self.base}/{n}" if n else "" for n in node.output]
        node.name = f"{self.base}/{node.name or name}"
        self.nodes.append(node)
        return copy

    def _tensor(self, what: str, data: Array) -> str:
        self.tensors.append(numpy_helper.from_array(data, f"{self.base}/{what}"))
        return str(self.tensors[-1].name)

    def _made(
        self,
        op_type: str,
        names: Sequence[str],
        what: str = "",
        out: str = "",
        **attributes: object,
    ) -> str:
        out = out or f"{self.base}/{what}"
        self.nodes.append(
            helper.make_node(op_type, list(names), [out], f"{out}:{op_type}", **attributes)
        )
        return out

    def _with_axis(self, op_type: str, name: str, axis: int, what: str = "", out: str = "") -> str:
        """Add or take away an axis of one element."""
        if self.opset < 13:
            return self._made(op_type, [name], what, out, axes=[axis])
        axes = self._tensor(f"{what or out}_axes", np.array([axis]))
        return self._made(op_type, [name, axes], what, out)

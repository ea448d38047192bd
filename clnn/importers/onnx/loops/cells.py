"""Which cells a loop's turn computes: RNN, GRU and LSTM as exporters write them, one or one behind another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from onnx import TensorProto, numpy_helper

from clnn.importers.onnx.loops.names import attribute
from clnn.importers.onnx.loops.sums import Sums, Term
from clnn.importers.onnx.loops.walk import Rows, Truth, Walk
from clnn.records import dataclass

FUNCTIONS = ("Sigmoid", "Tanh", "Relu", "Softsign", "Softplus")
PARAMETERS = {"HardSigmoid": (0.2, 0.5), "Elu": (1.0,), "LeakyRelu": (0.01,)}


@dataclass(frozen=True)
class Function:
    """An activation as RNN, GRU and LSTM name it, with alpha and beta where it has any."""

    name: str
    numbers: tuple[float, ...] = ()


@dataclass(frozen=True)
class Gate:
    """What a gate adds up: a row times weights, a state times weights, and constants."""

    row: Term | None
    state: Term
    biases: tuple[Term, ...]


@dataclass(frozen=True)
class Cell:
    """One cell of a turn.

    state, cell: which carried values these are; of others than LSTM, cell is -1. gates: by the letters of
    ONNX's documents. late: of a GRU whose reset gate is behind the product, the candidate's product and
    biases before it. value: the new state, for steps that are. mask: which steps are. rows: what the rows
    are of: a sequence outside, or the states of a cell before (its place among the cells).
    """

    kind: str
    state: int
    cell: int
    gates: dict[str, Gate]
    functions: tuple[Function, ...]
    value: str
    mask: Truth | None
    rows: Rows | int
    late: Gate | None = None


@dataclass
class Cells:
    """Finds the cells of a loop."""

    walk: Walk
    sums: Sums
    found: list[Cell] = field(default_factory=list)

    def __post_init__(self) -> None:
        while True:
            cell = next(self._next(), None)
            if cell is None:
                return
            self.found.append(cell)

    def _next(self) -> Iterator[Cell]:
        """Yield the cells whose states are not of cells before, and whose rows are known."""
        taken = {k for c in self.found for k in (c.state, c.cell)}
        for k, name in enumerate(self.walk.carried):
            if k in taken or name in self.walk.kept or k in self.walk.counters:
                continue
            kind = self.walk.graph.input[2 + k].type.tensor_type
            if kind.elem_type != TensorProto.FLOAT or len(kind.shape.dim) != 2:
                continue
            chosen = self.walk.chosen(self.walk.after[k])
            new, mask = self.walk.after[k], None
            if chosen is not None and self._is(chosen.old, name):
                new, mask = self.walk.body.source(chosen.new), chosen.mask
            for match in (self._lstm, self._gru, self._rnn):
                cell = match(k, new, mask)
                if cell is not None and self._fits(cell):
                    yield cell
                    break

    def _is(self, name: str, wanted: str) -> bool:
        return self.walk.body.source(name) == wanted

    def _fits(self, cell: Cell) -> bool:
        """Whether all weights of a cell are of one state's width, and all rows of one kind."""
        hidden = self.sums.width(cell.gates[next(iter(cell.gates))].state)
        gates = [*cell.gates.values(), *([cell.late] if cell.late else [])]
        widths = {self.sums.width(t) for g in gates for t in (g.row, g.state) if t is not None}
        if not all(self._is_row(t) for g in gates for t in g.biases):
            return False
        biases = {self.sums.width(t) for g in gates for t in g.biases} - {1}
        heights = {
            shape[0]
            for g in gates
            if not g.state.part and (shape := self.sums.constants.shape(g.state.weights))
        }
        rows = {self._rows(g.row.factor) for g in gates if g.row is not None}
        if isinstance(cell.rows, int) and self.found[cell.rows].mask not in (None, cell.mask):
            return False  # it goes on where the cell before it rests
        return widths == {hidden} and biases <= {hidden} and heights <= {hidden} and len(rows) == 1

    def _is_row(self, term: Term) -> bool:
        """Whether a constant is one row, the same for all sequences."""
        shape = self.sums.constants.shape(term.weights)
        return shape is not None and all(extent == 1 for extent in shape[:-1])

    def _rows(self, name: str) -> Rows | int | None:
        """Return of what a value is this turn's row."""
        name = self._plain(name)
        for k, cell in enumerate(self.found):
            if name == cell.value or (cell.mask and name == self.walk.after[cell.state]):
                return k
        return self.walk.rows(name)

    def _plain(self, name: str) -> str:
        """Return what is multiplied by ones of its own shape; a value itself where it is not."""
        body = self.walk.body
        for old, ones in body.both(name, "Mul"):
            node = body.made_by(ones, "ConstantOfShape")
            shape = body.made_by(node.input[0], "Shape") if node is not None else None
            if node is None or shape is None or not self._is(shape.input[0], body.source(old)):
                continue
            value = attribute(node, "value")
            if isinstance(value, TensorProto) and numpy_helper.to_array(value).item() == 1:
                return body.source(old)
        return body.source(name)

    def _function(self, name: str) -> tuple[Function, str] | None:
        """Return an activation and what it is of."""
        node = self.walk.body.maker(name)
        if node is None:
            return None
        if node.op_type in FUNCTIONS:
            return Function(node.op_type), node.input[0]
        if node.op_type in PARAMETERS:
            usual = zip(("alpha", "beta"), PARAMETERS[node.op_type], strict=False)
            numbers = tuple(float(str(attribute(node, n, value))) for n, value in usual)
            return Function(node.op_type, numbers), node.input[0]
        return self._clipped(name)

    def _clipped(self, name: str) -> tuple[Function, str] | None:
        """Return a HardSigmoid that is written as what lies between 0 and a number, over that number."""
        body = self.walk.body
        for clipped, factor in body.both(name, "Mul"):
            scale, node = self._number(factor), body.made_by(clipped, "Clip")
            if scale is None or node is None or len(node.input) != 3:
                continue
            low, high = (self._number(n) for n in node.input[1:])
            if low == 0 and high is not None and abs(high * scale - 1) < 1e-6:
                return Function("HardSigmoid", (scale, 0.0)), node.input[0]
        return None

    def _number(self, name: str) -> float | None:
        outside = self.walk.outside(self.walk.body.source(name))
        return self.walk.outer.number(outside) if outside else self.walk.body.number(name)

    def _gate(self, name: str, state: str) -> Gate | None:
        """Return what a gate adds up where it is a row's product, the product of this state, and constants."""
        rows, states, biases = [], [], []
        for term in self.sums.terms(name):
            if not term.weights:
                return None
            if not term.factor:
                biases.append(term)
            elif self._plain(term.factor) == state:
                states.append(term)
            elif self._rows(term.factor) is not None:
                rows.append(term)
            else:
                return None
        if len(rows) != 1 or len(states) != 1 or (rows[0].flat and states[0].flat):
            return None
        return Gate(rows[0], states[0], tuple(biases))

    def _rnn(self, k: int, new: str, mask: Truth | None) -> Cell | None:
        function, inner = self._function(new) or (Function("Affine", (1.0, 0.0)), new)
        gate = self._gate(inner, self.walk.carried[k])
        return self._cell("RNN", k, -1, {"i": gate}, (function,), new, mask) if gate else None

    def _gru(self, k: int, new: str, mask: Truth | None) -> Cell | None:
        state, body = self.walk.carried[k], self.walk.body
        for kept, taken in body.both(new, "Add"):
            for update, old in body.both(kept, "Mul"):
                for rest, candidate in body.both(taken, "Mul") if self._is(old, state) else ():
                    left = body.made_by(rest, "Sub")
                    one = left is not None and self._number(left.input[0]) == 1
                    if left is not None and one and self._is(left.input[1], body.source(update)):
                        return self._gru_of(k, update, candidate, new, mask)
            for update, change in body.both(taken, "Mul"):
                parts = body.made_by(change, "Sub")  # candidate + update * (state - candidate)
                wanted = (state, body.source(kept))
                if parts and tuple(map(body.source, parts.input)) == wanted:
                    return self._gru_of(k, update, kept, new, mask)
        return None

    def _gru_of(
        self, k: int, update: str, candidate: str, new: str, mask: Truth | None
    ) -> Cell | None:
        state, body = self.walk.carried[k], self.walk.body
        first, second = self._function(update), self._function(candidate)
        z = self._gate(first[1], state) if first else None
        if first is None or second is None or z is None:
            return None
        terms = self.sums.terms(second[1])
        biases = tuple(t for t in terms if not t.factor)
        rows = [t for t in terms if t.factor and t.weights and self._rows(t.factor) is not None]
        others = [t for t in terms if t not in biases and t not in rows]
        if len(rows) != 1 or len(others) != 1:
            return None
        for reset, inner in body.both(others[0].factor, "Mul"):
            gate = self._function(reset)
            r = self._gate(gate[1], state) if gate and gate[0] == first[0] else None
            if r is None:
                continue
            gates, late = {"z": z, "r": r}, None
            if others[0].weights and self._plain(inner) == state:
                gates["h"] = Gate(rows[0], others[0], biases)
            else:
                late = self._late(inner, state) if not others[0].weights else None
                if late is None:
                    continue
                gates["h"] = Gate(rows[0], late.state, biases)
            functions = (first[0], second[0])
            return self._cell("GRU", k, -1, gates, functions, new, mask, late)
        return None

    def _late(self, name: str, state: str) -> Gate | None:
        """Return a state's product and constants, and nothing else."""
        terms = self.sums.terms(name)
        states = [t for t in terms if t.weights and t.factor and self._plain(t.factor) == state]
        biases = tuple(t for t in terms if not t.factor)
        if len(states) != 1 or len(states) + len(biases) != len(terms):
            return None
        return Gate(None, states[0], biases)

    def _lstm(self, k: int, new: str, mask: Truth | None) -> Cell | None:
        body = self.walk.body
        for gate, shown in body.both(new, "Mul"):
            output, outer = self._function(gate), self._function(shown)
            for j, name in enumerate(self.walk.carried) if output and outer else ():
                made = self._new_cell(j, mask)
                if j == k or not outer or not output or made != body.source(outer[1]):
                    continue
                found = self._gates(made, name, self.walk.carried[k], output[0])
                o = self._gate(output[1], self.walk.carried[k]) if found else None
                if found and o:
                    functions = (output[0], found[1], outer[0])
                    return self._cell("LSTM", k, j, {"o": o, **found[0]}, functions, new, mask)
        return None

    def _new_cell(self, j: int, mask: Truth | None) -> str:
        """Return a carried value after a turn, of steps that are."""
        if mask is None:
            return self.walk.after[j]
        chosen = self.walk.chosen(self.walk.after[j])
        fits = chosen and chosen.mask == mask and self._is(chosen.old, self.walk.carried[j])
        return self.walk.body.source(chosen.new) if chosen and fits else ""

    def _gates(
        self, made: str, cell: str, state: str, function: Function
    ) -> tuple[dict[str, Gate], Function] | None:
        """Return gates i, f and c of a cell whose gates have this function, and the candidate's function."""
        body = self.walk.body
        for old, new in body.both(made, "Add"):
            for gate, kept in body.both(old, "Mul"):
                forget = self._function(gate)
                if not forget or forget[0] != function or not self._is(kept, cell):
                    continue
                for gate_, shown in body.both(new, "Mul"):
                    take, candidate = self._function(gate_), self._function(shown)
                    if not take or not candidate or take[0] != function:
                        continue
                    sums = {"i": take[1], "f": forget[1], "c": candidate[1]}
                    gates = {n: g for n, s in sums.items() if (g := self._gate(s, state))}
                    if len(gates) == len(sums):
                        return gates, candidate[0]
        return None

    def _cell(
        self,
        kind: str,
        k: int,
        j: int,
        gates: dict[str, Gate],
        functions: tuple[Function, ...],
        value: str,
        mask: Truth | None,
        late: Gate | None = None,
    ) -> Cell | None:
        row = next(iter(gates.values())).row
        rows = self._rows(row.factor) if row is not None else None
        if rows is None:
            return None
        return Cell(kind, k, j, gates, functions, value, mask, rows, late)

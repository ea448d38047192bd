"""A loop's cells as nodes: a layer for each, and what makes the loop's outputs of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from clnn.importers.onnx.limits import OWN_DOMAIN
from clnn.importers.onnx.loops.cells import Cell, Cells, Gate
from clnn.importers.onnx.loops.shapes import Extent, Shape
from clnn.importers.onnx.loops.sums import Sums, Term
from clnn.importers.onnx.loops.walk import Rows, Truth, Walk
from clnn.records import dataclass
from clnn.types import Array

ORDER = {"RNN": "i", "GRU": "zrh", "LSTM": "iofc"}


@dataclass(frozen=True)
class Shown:
    """Which states a value is, over all turns: those of a cell, others where a step is not.

    other: a value outside that stands there, or where no step has been yet (held), "" for the states.
    """

    cell: int
    other: str = ""
    held: bool = False


@dataclass
class Layers:
    """Makes the nodes of one loop; `made` is False where it is no walk of such cells."""

    walk: Walk
    opset: int
    wanted: frozenset[str]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    tensors: list[TensorProto] = field(default_factory=list)
    made: bool = field(init=False)
    domains: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        node = self.walk.node
        self.base = f"{next((o for o in node.output if o), node.name)}/layer"
        self.sums = Sums(self.walk)
        self.cells = Cells(self.walk, self.sums).found if self.walk.turns is not None else []
        self.outs: list[list[str]] = []
        self.truths: dict[Truth, str] = {}
        self.steps: dict[Rows, str] = {}
        self.made = bool(self.cells) and self._all_known() and self._build()

    def shapes(self) -> dict[str, Shape]:
        """Return the shapes of the loop's outputs of all turns."""
        found: dict[str, Shape] = {}
        count = len(self.walk.carried)
        for name, value in zip(self.walk.node.output[count:], self.walk.scans, strict=False):
            shown = self._shown(value)
            if shown is None or self.walk.turns is None:
                continue
            cell = self.cells[shown.cell]
            batch = self._batch(cell)
            if name and batch is not None:
                found[name] = (self.walk.turns, batch, self._hidden(cell))
        return found

    def _all_known(self) -> bool:
        """Whether the loop carries and makes nothing but what its cells and turns say."""
        walk = self.walk
        states = {k for c in self.cells for k in (c.state, c.cell)}
        known = states | walk.counters
        others = [walk.after[k] for k, n in enumerate(walk.carried) if k not in known]
        others = [name for name in others if name not in walk.kept]
        shown = [self._shown(value) for value in (*others, *walk.scans)]
        if any(s is None or self.opset < self._oldest(s) for s in shown):
            return False
        return all(self._batch(c) is not None for c in self.cells)

    def _oldest(self, shown: Shown) -> int:
        """Return the operator set that has what makes shown states."""
        return 11 if self._counts_steps(shown) else 9 if shown.other else 1

    def _counts_steps(self, shown: Shown) -> bool:
        """Whether it must be known at each step whether there was one before."""
        outer, state = self.walk.outer, self.walk.first(self.cells[shown.cell].state)
        return shown.held and not (outer.is_zeros(shown.other) and outer.is_zeros(state))

    def _batch(self, cell: Cell) -> Extent | None:
        """Return how many sequences a cell has."""
        while isinstance(cell.rows, int):
            cell = self.cells[cell.rows]
        rows = self.walk.whole(cell.rows, 3)
        return rows[1] if rows else None

    def _first_shape(self, k: int) -> Shape | None:
        return self.walk.shapes.of(self.walk.first(k))

    def _shown(self, value: str) -> Shown | None:
        """Return what a value of the body is of the cells' states."""
        walk = self.walk
        for place, cell in enumerate(self.cells):
            if value == walk.after[cell.state]:
                return Shown(place)
            chosen = walk.chosen(value) if cell.mask else None
            if chosen is None or chosen.mask != cell.mask:
                continue
            if walk.body.source(chosen.new) != cell.value:
                continue
            old = walk.body.source(chosen.old)
            if old == walk.carried[cell.state]:
                return Shown(place)
            if not walk.is_row(old):
                continue
            if walk.outside(old):
                return Shown(place, walk.outside(old))
            if old in walk.carried and walk.after[walk.carried.index(old)] == value:
                return Shown(place, walk.first(walk.carried.index(old)), held=True)
        return None

    def _build(self) -> bool:
        """Add all nodes; whether all sequences have the rows that turns read."""
        for place, cell in enumerate(self.cells):
            inputs = self._sequence(cell)
            mask = self._mask(cell.mask) if cell.mask else ""
            if not inputs or (cell.mask and not mask):
                return False
            shape = self.walk.whole(cell.mask.rows, cell.mask.rank + 1) if cell.mask else None
            if shape and shape[1] != self._batch(cell):
                mask = self._broadcast(mask, inputs, place)
            self._layer(place, cell, inputs, mask)
        self._results()
        return True

    def _sequence(self, cell: Cell) -> str:
        """Return rows of all turns, (steps, sequences, elements), "" where they are not known to be there."""
        if isinstance(cell.rows, int):
            return self._with_axes("Squeeze", self.outs[cell.rows][0], [1], f"rows{cell.state}")
        return self._walked(cell.rows, 3)

    def _walked(self, rows: Rows, rank: int) -> str:
        """Return the steps of a sequence that turns read, as its first axis; "" where they are not known."""
        if rows not in self.steps:
            self.steps[rows] = self._first_axis(rows, rank)
        return self.steps[rows]

    def _first_axis(self, rows: Rows, rank: int) -> str:
        shape = self.walk.whole(rows, rank)
        if shape is None:
            return ""
        name = rows.name
        if rows.axis % rank:
            order = [rows.axis % rank, *(a for a in range(rank) if a != rows.axis % rank)]
            name = self._made("Transpose", [name], f"{name}/turned", perm=order)
        turns = self.walk.turns
        if shape[0] == turns or not isinstance(turns, int):
            return name
        first = self._sliced(name, [(0, 0, turns)], f"{name}/first")
        # A sequence that is shorter has no such shape, which is said then.
        wanted = self._tensor(f"{name}/shape", np.array([turns] + [0] * (rank - 1)))
        return self._made("Reshape", [first, wanted], f"{name}/steps")

    def _mask(self, mask: Truth) -> str:
        """Return which steps are, (steps, sequences) of int32, "" where that is not known of each."""
        if mask not in self.truths:
            shape = self.walk.whole(mask.rows, mask.rank + 1)
            name = self._walked(mask.rows, mask.rank + 1)
            if shape is None or not name or (mask.rank == 2 and shape[2] != 1):
                return ""
            if mask.rank == 2:
                name = self._with_axes("Squeeze", name, [2], f"mask{len(self.truths)}/row")
            what = f"mask{len(self.truths)}"
            self.truths[mask] = self._made("Cast", [name], what, to=TensorProto.INT32)
        return self.truths[mask]

    def _broadcast(self, mask: str, inputs: str, place: int) -> str:
        """Return a mask of as many sequences as the inputs have, where its one row may be for all."""
        extents = self._made("Shape", [inputs], f"cell{place}/shape")
        both = self._sliced(extents, [(0, 0, 2)], f"cell{place}/extents")
        return self._made("Expand", [mask, both], f"cell{place}/mask")

    def _first(self, k: int, cell: Cell, inputs: str, what: str) -> str:
        """Return a first state as layers take it, "" where it is zeros."""
        name = self.walk.first(k)
        if self.walk.outer.is_zeros(name):
            return ""
        shape = self._first_shape(k)
        if shape is None or shape[0] != self._batch(cell):  # it may be one for all sequences
            extents = self._made("Shape", [inputs], f"{what}/shape")
            count = self._sliced(extents, [(0, 1, 2)], f"{what}/count")
            width = self._tensor(f"{what}/hidden", np.array([self._hidden(cell)]))
            wanted = self._made("Concat", [count, width], f"{what}/wanted", axis=0)
            name = self._made("Expand", [name, wanted], f"{what}/expanded")
        return self._with_axes("Unsqueeze", name, [0], what)

    def _layer(self, place: int, cell: Cell, inputs: str, mask: str) -> None:
        what, order = f"cell{place}", ORDER[cell.kind]
        gates = [cell.gates[name] for name in order]
        hidden = self._hidden(cell)
        weights = [
            self._stacked([g.row for g in gates if g.row], hidden, f"{what}/inputs"),
            self._stacked([g.state for g in gates], hidden, f"{what}/states"),
        ]
        given = [k for k in (cell.state, cell.cell) if k >= 0]
        first = [self._first(k, cell, inputs, f"{what}/first{k}") for k in given]
        more = [*[""] * (4 - len(first) - 1), mask] if mask else []
        self.outs.append([f"{self.base}/{what}/{n}" for n in ("every", "state", "cell")])
        functions = cell.functions
        numbers = [f.numbers for f in functions]
        node = helper.make_node(
            cell.kind,
            [inputs, *weights, self._biases(cell, gates, hidden, what), "", *first, *more],
            self.outs[-1][: 1 + len(given)],
            f"{self.walk.node.name or self.base}/{what}",
            hidden_size=hidden,
            activations=[f.name for f in functions],
            activation_alpha=[n[0] for n in numbers if n] or None,
            activation_beta=[n[1] for n in numbers if len(n) > 1] or None,
            linear_before_reset=1 if cell.late else None,
            domain=OWN_DOMAIN if mask else None,
        )
        if mask:
            self.domains.add(OWN_DOMAIN)
        self.nodes.append(node)

    def _hidden(self, cell: Cell) -> int:
        return self.sums.width(next(iter(cell.gates.values())).state)

    def _stacked(self, terms: Sequence[Term], hidden: int, what: str) -> str:
        """Return weights of all gates as layers take them: (1, gates * hidden, what they multiply)."""
        turned = [
            self._made(
                "Transpose", [self._weights(t, hidden, f"{what}{k}")], f"{what}{k}", perm=[1, 0]
            )
            for k, t in enumerate(terms)
        ]
        rows = self._made("Concat", turned, f"{what}_rows", axis=0)
        return self._with_axes("Unsqueeze", rows, [0], what)

    def _weights(self, term: Term, hidden: int, what: str) -> str:
        """Return the rows and columns of a constant that a term multiplies."""
        name = self._copied(term.weights)
        cuts = [] if term.columns is None else [(1, *term.columns)]
        if term.part:
            is_state = any(term == g.state for c in self.cells for g in c.gates.values())
            ends = 2**31 - 1
            first = (0, hidden) if is_state else (0, -hidden)
            second = (-hidden, ends) if is_state else (hidden, ends)
            cuts.append((0, *(first if term.part == 1 else second)))
        return self._sliced(name, cuts, what)

    def _sliced(self, name: str, cuts: Sequence[tuple[int, int, int]], what: str) -> str:
        if not cuts:
            return name
        axes, begins, ends = zip(*cuts, strict=True)
        if self.opset < 10:
            return self._made(
                "Slice",
                [name],
                f"{what}/cut",
                starts=list(begins),
                ends=list(ends),
                axes=list(axes),
            )
        bounds = [
            self._tensor(f"{what}/{n}", np.array(v))
            for n, v in (("begins", begins), ("ends", ends), ("axes", axes))
        ]
        return self._made("Slice", [name, *bounds], f"{what}/cut")

    def _biases(self, cell: Cell, gates: Sequence[Gate], hidden: int, what: str) -> str:
        """Return the biases of all gates, and behind them those of a late candidate's own product."""
        zeros = self._tensor(f"{what}/zeros", np.zeros(hidden, np.float32))
        own = [self._bias(g, zeros, f"{what}/bias{k}") for k, g in enumerate(gates)]
        rest = [zeros] * len(gates)
        if cell.late:
            rest[-1] = self._bias(cell.late, zeros, f"{what}/late")
        rows = self._made("Concat", [*own, *rest], f"{what}/biases", axis=0)
        return self._with_axes("Unsqueeze", rows, [0], f"{what}/bias")

    def _bias(self, gate: Gate, zeros: str, what: str) -> str:
        total, flat = zeros, self._tensor(f"{what}/flat", np.array([-1]))
        for k, term in enumerate(gate.biases):
            row = self._made("Reshape", [self._copied(term.weights), flat], f"{what}/row{k}")
            cuts = [] if term.columns is None else [(0, *term.columns)]
            total = self._made(
                "Add", [total, self._sliced(row, cuts, f"{what}/{k}")], f"{what}/{k}"
            )
        return total

    def _results(self) -> None:
        """Add what makes the loop's outputs that somebody reads."""
        walk, states = self.walk, {c.state: (p, 1) for p, c in enumerate(self.cells)}
        states |= {c.cell: (p, 2) for p, c in enumerate(self.cells) if c.cell >= 0}
        for k, name in enumerate(walk.node.output):
            if not name or name not in self.wanted:
                continue
            if k >= len(walk.carried):
                shown = self._shown(walk.scans[k - len(walk.carried)])
                assert shown is not None
                self._states(shown, name)
            elif k in states:
                place, which = states[k]
                self._with_axes("Squeeze", self.outs[place][which], [0], out=name)
            elif walk.carried[k] in walk.kept:
                self._made("Identity", [walk.first(k)], out=name)
            elif k in walk.counters:
                self._count(k, name)
            else:
                self._last(k, name)

    def _count(self, k: int, out: str) -> None:
        """Add what makes a counter's last value."""
        kind = self.walk.graph.input[2 + k].type.tensor_type.elem_type
        if isinstance(self.walk.turns, int):
            count = self._tensor(f"{out}/count", np.array(self.walk.turns))
        else:
            no_axes = self._tensor(f"{out}/no_axes", np.zeros(0, np.int64))
            count = self._made("Reshape", [self.walk.limit(), no_axes], f"{out}/one")
        self._made("Cast", [count], out=out, to=kind)

    def _last(self, k: int, out: str) -> None:
        """Add what makes the last value of states that are shown, the first where there are no turns."""
        shown = self._shown(self.walk.after[k])
        assert shown is not None
        every = self._states(shown, f"{out}/every")
        state = self._with_axes("Squeeze", self.outs[shown.cell][1], [0], f"{out}/state")
        shape = self._made("Shape", [state], f"{out}/shape")
        first = self._made("Expand", [self.walk.first(k), shape], f"{out}/before")
        first = self._with_axes("Unsqueeze", first, [0], f"{out}/first")
        both = self._made("Concat", [first, every], f"{out}/both", axis=0)
        place = self._tensor(f"{out}/place", np.array(-1))
        self._made("Gather", [both, place], out=out)

    def _states(self, shown: Shown, out: str) -> str:
        """Add what makes shown states of all turns."""
        cell = self.cells[shown.cell]
        every = self.outs[shown.cell][0]
        if not shown.other or (shown.held and not self._counts_steps(shown)):
            return self._with_axes("Squeeze", every, [1], out=out)
        assert cell.mask is not None
        states = self._with_axes("Squeeze", every, [1], f"{out}/states")
        steps = self._mask(cell.mask)
        if shown.held:
            axis = self._tensor(f"{out}/axis", np.array(0))
            steps = self._made("CumSum", [steps, axis], f"{out}/seen")
        holds = self._made("Cast", [steps], f"{out}/holds", to=TensorProto.BOOL)
        holds = self._with_axes("Unsqueeze", holds, [2], f"{out}/each")
        return self._made("Where", [holds, states, shown.other], out=out)

    def _copied(self, name: str) -> str:
        """Return the name outside of a constant of the body, with the nodes that make it."""
        body = self.walk.body
        name = body.source(name)
        if self.walk.outside(name):
            return self.walk.outside(name)
        copy = f"{self.base}/{name}"
        if any(copy in node.output for node in self.nodes) or copy in {
            t.name for t in self.tensors
        }:
            return copy
        if name in body.tensors:
            tensor = TensorProto()
            tensor.CopyFrom(body.tensors[name])
            tensor.name = copy
            self.tensors.append(tensor)
            return copy
        node = onnx.NodeProto()
        node.CopyFrom(body.makers[name])
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

    def _with_axes(
        self, op_type: str, name: str, axes: list[int], what: str = "", out: str = ""
    ) -> str:
        """Add or take away axes of one element."""
        if self.opset < 13:
            return self._made(op_type, [name], what, out, axes=axes)
        given = self._tensor(f"{what or out}_axes", np.array(axes))
        return self._made(op_type, [name, given], what, out)

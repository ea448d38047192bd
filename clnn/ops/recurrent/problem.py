"""A recurrent node as its kernels see it: extents, pitches by meaning, and which operands there are."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from clnn.ops.launch import Arg, In, Out
from clnn.ops.problem import Operand, Problem
from clnn.ops.recurrent.cells import (
    CELL,
    CELLS,
    LATE_BIAS,
    LENGTHS,
    MASK,
    PEEPHOLES,
    PRODUCTS,
    SCALES,
    STATE,
    STATES,
    WEIGHTS,
    CellKind,
    Chain,
)
from clnn.records import dataclass

EXTRAS = {
    LATE_BIAS: "late_bias",
    LENGTHS: "lengths",
    PEEPHOLES: "peepholes",
    SCALES: "scales",
    MASK: "mask",
}
FIRST = {STATE: "state", CELL: "cell"}
NAMES = ("every", "last_state", "last_cell")  # of the outputs, in templates


@dataclass(frozen=True)
class RecurrentProblem:
    """One layer: its placed operands, and its attributes as the op has them."""

    node: Problem
    cell: str
    functions: tuple[tuple[Chain, ...], ...]
    backward: tuple[bool, ...]
    input_forget: bool
    batch_first: bool
    outputs: tuple[int, ...]

    @property
    def kind(self) -> CellKind:
        """What a step computes."""
        return CELLS[self.cell]

    @property
    def directions(self) -> int:
        """Directions: 1 or 2."""
        return len(self.backward)

    @cached_property
    def hidden(self) -> int:
        """Elements of a state."""
        return int(self.weights.type.shape[2])

    @property
    def weights(self) -> Operand:
        """The recurrent weights."""
        return self.node.input(WEIGHTS)

    @property
    def steps(self) -> int:
        """Steps; may be open."""
        return self.node.input(PRODUCTS).layout.shape[1 if self.batch_first else 0]

    @property
    def batch(self) -> int:
        """Sequences; may be open."""
        return self.node.input(PRODUCTS).layout.shape[0 if self.batch_first else 1]

    def _turned(self, pitches: tuple[int, ...], a: int, b: int) -> tuple[int, ...]:
        """Return pitches with axes a and b exchanged where the batch comes first."""
        found = list(pitches)
        if self.batch_first:
            found[a], found[b] = found[b], found[a]
        return tuple(found)

    @property
    def product_pitches(self) -> tuple[int, ...]:
        """Pitches of the products: (step, sequence, element)."""
        return self._turned(self.node.input(PRODUCTS).layout.pitches, 0, 1)

    def _extra_pitches(self, which: int) -> tuple[int, ...]:
        pitches = self.node.input(which).layout.pitches
        return self._turned(pitches, 0, 1) if which == MASK else pitches

    def first_pitches(self, which: int) -> tuple[int, ...]:
        """Pitches of a first state or cell: (direction, sequence, element)."""
        return self._turned(self.node.input(which).layout.pitches, 0, 1)

    def out_pitches(self, place: int) -> tuple[int, ...]:
        """Pitches of an output: (step, direction, sequence, element), a step of 0 for the last ones."""
        pitches = self.node.outputs[place].layout.pitches
        if self.outputs[place] != STATES:
            return (0, *self._turned(pitches, 0, 1))
        if self.batch_first:
            batch, step, direction, element = pitches
            return (step, direction, batch, element)
        return pitches

    @property
    def is_dense(self) -> bool:
        """Whether the elements of a state lie side by side wherever kernels take vectors of them."""
        pitches = [self.product_pitches[-1]]
        pitches += [self.out_pitches(k)[-1] for k in range(len(self.node.outputs))]
        pitches += [
            self.node.input(k).layout.pitches[-1]
            for k in (LATE_BIAS, PEEPHOLES, SCALES)
            if self.node.has(k)
        ]
        return all(p == 1 for p in pitches) or self.hidden == 1

    def ctype(self, which: int) -> str:
        """Return the type of an input in memory, as templates take it."""
        return self.node.input(which).ctype

    @property
    def rounds_states(self) -> bool:
        """Whether states are rounded to a byte's steps, and the weights are integers."""
        return self.node.has(SCALES)

    @property
    def label(self) -> str:
        """The kind of cell and the type in names of kernels."""
        return f"{self.cell}{'_rounded' * self.rounds_states}_{self.weights.label.replace('float', 'f32')}"

    def params(self) -> dict[str, Any]:
        """Return the parameters that the templates share."""
        node = self.node
        return {
            "kind": self.cell,
            "gates": self.kind.gates,
            "functions": self.functions,
            "backward": self.backward,
            "input_forget": self.input_forget,
            "hidden": self.hidden,
            "steps": self.steps,
            "batch": self.batch,
            "products": (self.ctype(PRODUCTS), self.product_pitches),
            "extras": {
                name: (self.ctype(k), self._extra_pitches(k))
                for k, name in EXTRAS.items()
                if node.has(k)
            },
            "outputs": {
                NAMES[k]: (node.outputs[place].ctype, self.out_pitches(place))
                for place, k in enumerate(self.outputs)
            },
        }

    def first(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return the first states that are given: name -> (type, pitches)."""
        return {
            name: (self.ctype(k), self.first_pitches(k))
            for k, name in FIRST.items()
            if self.node.has(k)
        }

    def first_args(self) -> tuple[Arg, ...]:
        """Return the kernel arguments of the first states that are given."""
        return tuple(In(k) for k in FIRST if self.node.has(k))

    def extra_args(self) -> tuple[Arg, ...]:
        """Return the kernel arguments of the further inputs that are given."""
        return tuple(In(k) for k in EXTRAS if self.node.has(k))

    def out_args(self) -> tuple[Arg, ...]:
        """Return the kernel arguments of the outputs."""
        return tuple(Out(k) for k in range(len(self.node.outputs)))

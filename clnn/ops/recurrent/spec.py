"""Recurrent layers: from the products of inputs by weights to states, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from clnn.errors import DTypeError, ShapeError
from clnn.ops.launch import Variant
from clnn.ops.problem import Problem, required
from clnn.ops.recurrent import families
from clnn.ops.recurrent.cells import (
    CELL,
    CELLS,
    LAST_STATE,
    LATE_BIAS,
    LENGTHS,
    MASK,
    PEEPHOLES,
    SCALES,
    STATE,
    STATES,
    WEIGHTS,
    Chain,
    Step,
)
from clnn.ops.recurrent.problem import RecurrentProblem
from clnn.ops.spec import OpSpec
from clnn.records import dataclass
from clnn.types import F32, I32, Array, TensorType


@dataclass(frozen=True)
class Recurrent(OpSpec):
    """The steps of an RNN, GRU or LSTM layer, whose inputs have been multiplied by W and biased.

    Inputs: products (steps, batch, directions * gates * hidden); weights R (directions, gates * hidden,
    hidden); of late_gru its bias behind the product (directions, hidden), or None; lengths (batch,) of
    int32, or None; first state and (lstm) cell (directions, batch, hidden), or None for zeros; peepholes
    (directions, 3 * hidden), or None; of an lstm with integer weights what a step of each row is worth
    (directions, gates * hidden), or None; a mask (steps, batch) of int32, or None. Outputs: those of
    `outputs` in this order: all states (steps, directions, batch, hidden), the last state and the last cell
    (directions, batch, hidden).

    cell: a key of CELLS. functions: for each direction its activations. backward: for each direction
    whether it begins with the last step. batch_first: all tensors have the batch as their first
    axis. A sequence ends after its length (held to 0 to steps): its states behind are zero, its last
    state is that of its last step (zero where it has none), and backward it begins there. A step whose
    mask is 0 leaves its sequence's state and cell as they are, and gives that state; there is a mask or
    there are lengths.
    """

    cell: str
    functions: tuple[tuple[Chain, ...], ...]
    backward: tuple[bool, ...] = (False,)
    input_forget: bool = False
    batch_first: bool = False
    outputs: tuple[int, ...] = (STATES, LAST_STATE)

    kind = "recurrent"
    supports_narrow_storage = True

    @property
    def directions(self) -> int:
        """Directions: 1 or 2."""
        return len(self.backward)

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the types of the outputs. Raises ShapeError or DTypeError where inputs do not fit."""
        x, turns, gates = required(inputs), self.directions, CELLS[self.cell].gates
        if x.rank != 3 or x.shape[2] % (turns * gates) or 0 in x.shape[2:]:
            raise ShapeError(
                f"products {x.shape} of {self.cell} must be (steps, batch, {turns} directions * "
                f"{gates} gates * hidden)."
            )
        steps, batch = (x.shape[1], x.shape[0]) if self.batch_first else x.shape[:2]
        if not steps:
            raise ShapeError(f"{self.cell} of no steps: its last state is not defined.")
        hidden = x.shape[2] // (turns * gates)
        last = (batch, turns, hidden) if self.batch_first else (turns, batch, hidden)
        wanted = {
            WEIGHTS: (turns, gates * hidden, hidden),
            LATE_BIAS: (turns, hidden),
            LENGTHS: (batch,),
            STATE: last,
            CELL: last,
            PEEPHOLES: (turns, 3 * hidden),
            SCALES: (turns, gates * hidden),
            MASK: x.shape[:2],
        }
        self._check(inputs, wanted)
        every = (batch, steps, turns, hidden) if self.batch_first else (steps, *last)
        shapes = (every, last, last)
        return tuple(TensorType(shapes[k], F32) for k in self.outputs)

    def _check(
        self, inputs: Sequence[TensorType | None], wanted: dict[int, tuple[int, ...]]
    ) -> None:
        names = (
            "products",
            "weights",
            "late bias",
            "lengths",
            "state",
            "cell",
            "peepholes",
            "scales",
            "mask",
        )
        if len(inputs) > MASK and inputs[MASK] is not None and inputs[LENGTHS] is not None:
            raise ShapeError(
                f"{self.cell} has lengths and a mask; one of them says which steps are."
            )
        for k, (given, name) in enumerate(zip(inputs, names, strict=False)):
            if given is None:
                continue
            dtype = I32 if k in (LENGTHS, MASK) else F32
            if given.dtype != dtype:
                raise DTypeError(f"{name} of {self.cell} are {given.dtype}, must be {dtype}.")
            if k in wanted and given.shape != wanted[k]:
                raise ShapeError(
                    f"{name} of {self.cell} are {given.shape}, must be {wanted[k]} for products "
                    f"{required(inputs).shape}."
                )
        required(inputs, WEIGHTS)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return the outputs, each sequence of each direction walked by itself with numpy."""
        given = [*inputs, *[None] * 9][:9]
        x = required(given)
        x = np.swapaxes(x, 0, 1) if self.batch_first else x
        hidden = required(given, WEIGHTS).shape[2]
        steps, batch = x.shape[:2]
        shape = (self.directions, batch, hidden)
        asked, mask = given[LENGTHS], given[MASK]
        mask = np.ones((1, 1)) if mask is None else mask.T if self.batch_first else mask
        live = np.broadcast_to(mask != 0, (steps, batch))
        lengths = np.full(batch, steps) if asked is None else np.clip(asked, 0, steps)
        first = [self._direction_first(given[k], shape, x.dtype) for k in (STATE, CELL)]
        every = np.zeros((steps, *shape), x.dtype)
        last = [first[0].copy(), first[1].copy()]
        with np.errstate(all="ignore"):
            for d in range(self.directions):
                step, parts = self._step(given, d), np.split(x, self.directions, axis=2)[d]
                for b, length in enumerate(lengths):
                    state, cell = first[0][d, b], first[1][d, b]
                    order = range(length - 1, -1, -1) if self.backward[d] else range(length)
                    for t in order:
                        if live[t, b]:
                            state, cell = step.run(parts[t, b], state, cell)
                        every[t, d, b] = state
                    ran = length > 0 or asked is None
                    last[0][d, b], last[1][d, b] = (state, cell) if ran else (0, 0)
        if self.batch_first:
            every = every.transpose(2, 0, 1, 3)
            last = [a.transpose(1, 0, 2) for a in last]
        return tuple((every, *last)[k] for k in self.outputs)

    def _direction_first(self, given: Array | None, shape: tuple[int, ...], dtype: object) -> Array:
        if given is None:
            return np.zeros(shape, dtype)  # type: ignore[call-overload, no-any-return]
        return np.swapaxes(given, 0, 1) if self.batch_first else given

    def _step(self, given: Sequence[Array | None], d: int) -> Step:
        late, peep, weights = given[LATE_BIAS], given[PEEPHOLES], required(given, WEIGHTS)
        scales = given[SCALES]
        return Step(
            self.cell,
            weights[d],
            self.functions[d],
            None if late is None else late[d],
            None if peep is None else peep[d].reshape(3, -1),
            self.input_forget,
            None if scales is None else scales[d],
        )

    def variants(self, problem: Problem) -> list[Variant]:
        """Return the best kernel of each family that fits, best first, and the reference kernel."""
        return families.variants(self.problem(problem))

    def candidates(self, problem: Problem) -> list[Variant]:
        """Return the kernels that are worth a measurement, by rising cost."""
        return families.candidates(self.problem(problem))

    def repeat(self, problem: Problem, variant: Variant) -> Variant | None:
        """Return a kernel of the same tile."""
        if variant.again is None:
            return super().repeat(problem, variant)
        return variant.again(self.problem(problem))

    def problem(self, node: Problem) -> RecurrentProblem:
        """Return a node of this op as the kernels see it."""
        return RecurrentProblem(
            node,
            self.cell,
            self.functions,
            self.backward,
            self.input_forget,
            self.batch_first,
            self.outputs,
        )

    def flops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        """Two operations per multiply-add of a state and the weights."""
        x, weights = required(inputs), required(inputs, WEIGHTS)
        return 2 * x.shape[0] * x.shape[1] * weights.size

    def tolerance(self, inputs: Sequence[TensorType | None]) -> float:
        """Return the error allowed: roundings of a step go through all steps behind it."""
        return 2e-5

    def without(self, unused: frozenset[int]) -> Recurrent:
        """Return the layer that makes its other outputs alone."""
        kept = tuple(k for place, k in enumerate(self.outputs) if place not in unused)
        return replace(self, outputs=kept)

"""What the recurrent cells compute in a step: gates in ONNX's order, functions, and numpy's meaning."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from clnn.ops.shared.functions import PostOp, apply_post_ops
from clnn.records import dataclass
from clnn.types import Array

# Inputs and outputs of a layer.
PRODUCTS, WEIGHTS, LATE_BIAS, LENGTHS, STATE, CELL, PEEPHOLES, SCALES, MASK = range(9)
STATES, LAST_STATE, LAST_CELL = range(3)

Chain = tuple[PostOp, ...]
"""An activation, as elementwise functions one after the other."""


@dataclass(frozen=True)
class CellKind:
    """One kind of cell.

    gates: blocks of rows in W and R, in ONNX's order. functions: how many activations it has (ONNX's
    f, g, h). phases: gates whose sums are known at once; those of a second phase multiply the state
    after the reset gate.
    """

    gates: int
    functions: int
    phases: tuple[tuple[int, ...], ...]


CELLS = {
    "rnn": CellKind(1, 1, ((0,),)),
    "gru": CellKind(3, 2, ((0, 1), (2,))),
    "late_gru": CellKind(3, 2, ((0, 1, 2),)),
    "lstm": CellKind(4, 3, ((0, 1, 2, 3),)),
}
"""By name. gru: gates update, reset, hidden. late_gru: the same, reset behind the product
(linear_before_reset). lstm: gates input, output, forget, cell."""


def in_steps(state: Array) -> tuple[Array, Array]:
    """Return a state as integers counted from its zero point, and what a step of them is worth.

    As DynamicQuantizeLinear rounds: 255 steps from its least to its greatest element, 0 among them.
    """
    least, most = min(state.min(), state.dtype.type(0)), max(state.max(), state.dtype.type(0))
    worth = (most - least) / 255 if most > least else np.ones((), state.dtype)
    zero = np.rint(np.clip(-least / worth, 0, 255))
    return np.clip(np.rint(state / worth) + zero, 0, 255) - zero, np.asarray(worth)


@dataclass(frozen=True)
class Step:
    """The numpy computation of one direction's steps, for rows of a batch.

    weights: R, (gates * hidden, hidden). functions: the activations. late_bias: what late_gru adds to
    the hidden gate's own product, (hidden,). peepholes: (3, hidden), for input, output and forget gate.
    scales: what a step of a row of weights is worth, (gates * hidden,), where these are integers and
    each sequence's state is rounded to a byte's steps before it is multiplied (lstm).
    """

    kind: str
    weights: Array
    functions: Sequence[Chain]
    late_bias: Array | None = None
    peepholes: Array | None = None
    input_forget: bool = False
    scales: Array | None = None

    def apply(self, which: int, value: Array) -> Array:
        """Return an activation of a value."""
        return apply_post_ops(value, self.functions[which], ())

    def run(self, products: Array, state: Array, cell: Array) -> tuple[Array, Array]:
        """Return state and cell (rows, hidden) after a step; products: (rows, gates * hidden)."""
        parts = np.split(products, CELLS[self.kind].gates, axis=-1)
        blocks = np.split(self.weights, CELLS[self.kind].gates, axis=0)
        if self.scales is not None:
            state, worth = in_steps(state)
            blocks = np.split(self.weights * (self.scales * worth)[:, None], len(blocks), axis=0)
        step: Callable[..., tuple[Array, Array]] = getattr(self, f"_{self.kind}")
        return step(parts, blocks, state, cell)

    def _rnn(self, x: list[Array], r: list[Array], h: Array, c: Array) -> tuple[Array, Array]:
        return self.apply(0, x[0] + h @ r[0].T), c

    def _gru(self, x: list[Array], r: list[Array], h: Array, c: Array) -> tuple[Array, Array]:
        update = self.apply(0, x[0] + h @ r[0].T)
        reset = self.apply(0, x[1] + h @ r[1].T)
        hidden = self.apply(1, x[2] + (reset * h) @ r[2].T)
        return (1 - update) * hidden + update * h, c

    def _late_gru(self, x: list[Array], r: list[Array], h: Array, c: Array) -> tuple[Array, Array]:
        update = self.apply(0, x[0] + h @ r[0].T)
        reset = self.apply(0, x[1] + h @ r[1].T)
        own = h @ r[2].T + (0 if self.late_bias is None else self.late_bias)
        hidden = self.apply(1, x[2] + reset * own)
        return (1 - update) * hidden + update * h, c

    def _lstm(self, x: list[Array], r: list[Array], h: Array, c: Array) -> tuple[Array, Array]:
        peep = np.zeros((3, 1), c.dtype) if self.peepholes is None else self.peepholes
        taken = self.apply(0, x[0] + h @ r[0].T + peep[0] * c)
        kept = 1 - taken
        if not self.input_forget:
            kept = self.apply(0, x[2] + h @ r[2].T + peep[2] * c)
        cell = kept * c + taken * self.apply(1, x[3] + h @ r[3].T)
        out = self.apply(0, x[1] + h @ r[1].T + peep[1] * cell)
        return out * self.apply(2, cell), cell

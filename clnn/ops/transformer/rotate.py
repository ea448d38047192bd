"""Rotary positions as one op: pairs of values of the last axis turned by the angle of their place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clnn.errors import ShapeError
from clnn.layout import TensorLayout
from clnn.ops.launch import In, Launch, Out, Variant
from clnn.ops.movement.views import slice_of
from clnn.ops.problem import Operand, Problem, required
from clnn.ops.shared.loops import collapse, run_work
from clnn.ops.spec import OpSpec, batched
from clnn.records import dataclass
from clnn.types import F32, Array, TensorType, broadcast_shapes


@dataclass(frozen=True)
class Rotate(OpSpec):
    """Inputs x (..., 2 half), cosines, sines: x cos + (x turned by 90 degrees) sin.

    Tables are broadcast to x, or to its first halves: then both values of a pair have the same number. A
    pair (a, b) turned is (-b, a). beside: pairs lie side by side, else half by half.
    """

    beside: bool = False

    kind = "rotate"
    layout_rule = "same"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the type of x. Raises ShapeError where inputs do not fit it."""
        x = required(inputs)
        tables = [required(inputs, k) for k in (1, 2)]
        if any(t.dtype != F32 for t in (x, *tables)):
            raise ShapeError(f"rotation of {x.dtype.name}: it needs float32.")
        fits = x.rank > 0 and x.shape[-1] % 2 == 0 and all(t.rank > 0 for t in tables)
        rows = x.shape[:-1]
        if not fits or any(
            t.shape[-1] not in (x.shape[-1], x.shape[-1] // 2)
            or broadcast_shapes(rows, t.shape[:-1]) != rows
            for t in tables
        ):
            shapes = ", ".join(str(t.shape) for t in tables)
            raise ShapeError(f"rotation of {x.shape} by {shapes}: pairs with numbers for all.")
        return (x,)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return x cos + turned sin with numpy."""
        x = required(inputs)
        half = x.shape[-1] // 2
        cos, sin = (self._of_all(required(inputs, k), half) for k in (1, 2))
        turned = np.empty_like(x)
        first, second = (
            (np.s_[..., 0::2], np.s_[..., 1::2])
            if self.beside
            else (np.s_[..., :half], np.s_[..., half:])
        )
        turned[first], turned[second] = -x[second], x[first]
        return (x * cos + turned * sin,)

    def _of_all(self, table: Array, half: int) -> Array:
        """Return a table with a number for each value."""
        if table.shape[-1] != half:
            return table
        return table.repeat(2, -1) if self.beside else np.concatenate([table, table], -1)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return the one kernel, which walks any layouts."""
        x = problem.input(0)
        half = x.type.shape[-1] // 2
        operands = (x, problem.input(1), problem.input(2), problem.outputs[0])
        whole = [_broadcast(o, x.type.shape) for o in operands]
        firsts = [_firsts(la, half, self.beside) for la in whole]
        loops = collapse(firsts)
        swaps = self.beside and half > 1 and whole[-1].order[-1] == x.type.rank - 1
        swaps = swaps and all(la.shape[-1] > half and la.pitches[-1] == 1 for la in whole)
        loops = collapse(whole) if swaps else loops
        params, global_size, local = run_work(
            loops, problem.target, loops.has_inner_pitches(1, 1, 1, 1)
        )
        name = "rotate_pairs" if self.beside else "rotate_halves"
        away = 1 if self.beside else half
        params |= {
            "name": name,
            "swaps": swaps,
            "away": tuple(la.pitches[-1] * away if la.shape[-1] > half else 0 for la in whole),
            "wg": local,
        }
        args = (In(0), In(1), In(2), Out(0))
        launch = Launch("transformer/rotate.cl.mako", params, args, global_size, local)
        return [Variant(name, (launch,))]

    def split_batch(
        self, inputs: Sequence[TensorType | None], count: int
    ) -> tuple[OpSpec, tuple[int, ...]] | None:
        """Return the op as it is, for some images of the inputs that are not broadcast along them."""
        x = required(inputs)
        return (self, batched(inputs, x.rank)) if x.rank > 1 else None

    def flops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        """Two products and a sum for each element."""
        return 3 * outputs[0].size


def _broadcast(operand: Operand, shape: tuple[int, ...]) -> TensorLayout:
    """Return where the values of rows lie; a table may have half as many columns."""
    layout = operand.layout.unpadded()
    return layout.broadcast((*shape[:-1], layout.shape[-1]))


def _firsts(layout: TensorLayout, half: int, beside: bool) -> TensorLayout:
    """Return where the first values of all pairs lie."""
    if layout.shape[-1] == half:
        return layout
    cut = slice_of(layout.shape, layout.rank - 1, 0, half, 2 if beside else 1).forward(layout)
    assert cut is not None
    return cut

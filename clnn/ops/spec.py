"""What every op provides: attributes, shape inference, a numpy reference and kernel variants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from clnn.layout import TensorLayout
from clnn.ops.launch import Variant
from clnn.ops.problem import Border, Problem
from clnn.records import changed
from clnn.types import Array, TensorType


class OpSpec:
    """Attributes of one op, as a frozen dataclass; subclasses are the op families.

    layout_rule: "image" (channels innermost on axis 1), "same" (inputs and output alike) or "free".
    fuses_post_ops: whether post-ops may be fused behind it; such a spec has a field `post_ops`,
    whose operands are inputs from `first_operand` on. supports_narrow_storage: whether all kernels
    take operands whose float32 values are stored in fewer bits (Operand.stored). is_view: whether it is a
    ViewSpec, which only renames elements.
    """

    kind: ClassVar[str] = "op"  # name in listings
    layout_rule: ClassVar[str] = "free"
    fuses_post_ops: ClassVar[bool] = False
    first_operand: ClassVar[int] = 1
    supports_narrow_storage: ClassVar[bool] = False
    is_view: ClassVar[bool] = False

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the output types. Raises ShapeError or DTypeError with the offending values."""
        raise NotImplementedError

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return the outputs computed with numpy, independent of the kernels."""
        raise NotImplementedError

    def padding_needs(self, inputs: Sequence[TensorType | None]) -> dict[int, Border]:
        """Return the border that the fast variants want around each input."""
        return {}

    def needs_border(self, inputs: Sequence[TensorType | None]) -> tuple[int, ...]:
        """Return the inputs whose border is worth a copy: without it no fast variant is left."""
        return ()

    def needs_neighbours(self, inputs: Sequence[TensorType | None]) -> tuple[int, ...]:
        """Return the inputs that are worth a copy where the channels of a pixel are no neighbours in memory.

        No fast variant takes them otherwise.
        """
        return ()

    def accepts_nchw(self, inputs: Sequence[TensorType | None]) -> bool:
        """Whether an image op is as fast where the channels of input 0 lie plane by plane."""
        return False

    def variants(self, problem: Problem) -> list[Variant]:
        """Return the ways to compute this node, best first; the last is always valid.

        The first output has elements.
        """
        raise NotImplementedError

    def candidates(self, problem: Problem) -> list[Variant]:
        """Return the ways to compute this node that are worth a measurement, by rising cost.

        Names tell the tunables and are unique within a problem. The first output has elements.
        """
        return self.variants(problem)

    def repeat(self, problem: Problem, variant: Variant) -> Variant | None:
        """Return the way in which another problem of this node was computed; None where it does not fit."""
        if variant.again is not None:
            return variant.again(problem)
        return self.named(problem, variant.name)

    def costs(self, problem: Problem, variants: Sequence[Variant]) -> list[float | None]:
        """Return what `repeat` of variants would cost; None where nothing tells."""
        return [v.cost_at and v.cost_at(problem) for v in variants]

    def named(self, problem: Problem, name: str) -> Variant | None:
        """Return the variant or candidate of a name, None where there is none for this problem."""
        lists = (self.variants, self.candidates)
        return next((v for of in lists for v in of(problem) if v.name == name), None)

    def without(self, unused: frozenset[int]) -> OpSpec | None:
        """Return the op that makes all outputs but `unused`, in their order; None where it makes them anyway."""
        return None

    def split_batch(
        self, inputs: Sequence[TensorType | None], count: int
    ) -> tuple[OpSpec, tuple[int, ...]] | None:
        """Return the op for `count` images of a batch, and the inputs of which it takes those alone.

        None where an image of the result depends on more than that image of the inputs, and where
        the first axis is not the batch.
        """
        return None

    def flops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        """Return the arithmetic operations of one run (a fused multiply-add counts two)."""
        return sum(t.size for t in outputs)

    def work(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        """Return the operations of a product that take about as long."""
        return self.flops(inputs, outputs)

    def tolerance(self, inputs: Sequence[TensorType | None]) -> float:
        """Return the error allowed against `reference`, relative to the largest output."""
        return 1e-5


class ViewSpec(OpSpec):
    """An op that moves no data where geometry allows: output and input share a storage.

    `forward` gives the output's layout inside the input's storage, None where there is no such view;
    `inside` gives the views that make inputs of the output.
    """

    supports_narrow_storage = True
    is_view = True

    def forward(self, source: TensorLayout) -> TensorLayout | None:
        """Return the layout of output 0 as a view of input 0."""
        return None

    def takes(self, source: TensorLayout, fill: float | None) -> bool:
        """Whether the border of input 0, filled so, is what the view reads of it."""
        return True

    def inside(self, inputs: Sequence[TensorType | None]) -> Sequence[ViewSpec | None]:
        """Return for each input the view of output 0 that it can be, None where there is none."""
        return (None,) * len(inputs)


def batched(inputs: Sequence[TensorType | None], rank: int, first: int = 0) -> tuple[int, ...]:
    """Return the inputs from `first` on whose first axis is that of a result of `rank` axes.

    Others are broadcast along it.
    """
    types = [(k, t) for k, t in enumerate(inputs) if k >= first and t is not None]
    return tuple(k for k, t in types if t.rank == rank > 0 and t.shape[0] != 1)


def with_fields(spec: OpSpec, **changes: Any) -> OpSpec:
    """Return a copy of a spec (a frozen dataclass) with fields changed."""
    return changed(spec, **changes)

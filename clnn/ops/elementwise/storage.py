"""Float32 values from one type of storage to another: what stands around ops in 16-bit storage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clnn.errors import ShapeError
from clnn.ops.elementwise.eltwise import walk_launch
from clnn.ops.launch import In, Variant
from clnn.ops.problem import Problem
from clnn.ops.spec import OpSpec
from clnn.types import Array, TensorType


@dataclass(frozen=True)
class Convert(OpSpec):
    """The same values, stored in another type: rounded to nearest, ties to even, where narrower."""

    kind = "convert"
    layout_rule = "same"
    supports_narrow_storage = True

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the input's type."""
        if inputs[0] is None:
            raise ShapeError("a conversion needs an input.")
        return (inputs[0],)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return the input: what storage rounds away is not part of the value."""
        assert inputs[0] is not None
        return (inputs[0],)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return one strided copy between the types."""
        source, out = problem.input(0), problem.outputs[0]
        if not out.type.size:
            return [Variant("empty", ())]
        name = f"convert_{source.label}_{out.label}"
        launch = walk_launch(
            name,
            [source.layout, out.layout],
            (source.ctype, out.ctype),
            (),
            {0: 0},
            problem.target,
            (In(0),),
        )
        return [Variant(name, (launch,))]

    def flops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        """No operations: values stay what they are."""
        return 0


@dataclass(frozen=True)
class PortConvert(Convert):
    """A conversion at an input or output of the network, whose own side stays in the host's order."""

    layout_rule = "free"

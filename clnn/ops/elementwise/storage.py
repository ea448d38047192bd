"""Float32 values from one type of storage to another: what stands around ops in 16-bit storage."""

from __future__ import annotations

from collections.abc import Sequence

from clnn.ops.launch import In, Out, Variant
from clnn.ops.problem import Problem, required
from clnn.ops.shared.elementwise_launch import Walked, walk_launch
from clnn.ops.spec import OpSpec
from clnn.records import dataclass
from clnn.types import Array, TensorType


@dataclass(frozen=True)
class Convert(OpSpec):
    """The same values, stored in another type: rounded to nearest, ties to even, where narrower."""

    kind = "convert"
    layout_rule = "same"
    supports_narrow_storage = True

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the input's type."""
        return (required(inputs),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return the input: what storage rounds away is not part of the value."""
        return (required(inputs),)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return one strided copy between the types."""
        source, out = problem.input(0), problem.outputs[0]
        name = f"convert_{source.label}_{out.label}"
        launch = walk_launch(
            name,
            [Walked(In(0), source.layout, source.ctype)],
            Walked(Out(0), out.layout, out.ctype),
            problem.target,
        )
        return [Variant(name, (launch,))]

    def flops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        """No operations: values stay what they are."""
        return 0


@dataclass(frozen=True)
class PortConvert(Convert):
    """A conversion at an input or output of the network, whose own side stays in the host's order."""

    layout_rule = "free"

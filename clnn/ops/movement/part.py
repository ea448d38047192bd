"""Some images of a batch as a value of its own, with the order and border that their readers want."""

from __future__ import annotations

from collections.abc import Sequence

from clnn.ops.launch import Variant
from clnn.ops.movement.views import copy_launch
from clnn.ops.problem import Problem, required
from clnn.ops.spec import OpSpec
from clnn.records import dataclass
from clnn.types import Array, TensorType


@dataclass(frozen=True)
class Part(OpSpec):
    """Copies of `images` images, from image `start` on. Input and output may lie in different orders."""

    start: int
    images: int

    kind = "part"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the type of so many images."""
        source = required(inputs)
        return (TensorType((self.images, *source.shape[1:]), source.dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return the images."""
        return (required(inputs)[self.start : self.start + self.images],)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return one strided copy."""
        images = problem.input(0).layout.slice(0, self.start, self.images)
        launch = copy_launch(problem, 0, images, problem.outputs[0].layout)
        return [Variant("copy", (launch,))]

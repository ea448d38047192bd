"""Elementwise functions of a fixed-point system, over any number of operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clnn.arith._base import Elementwise
from clnn.ops.launch import In, Out, Variant
from clnn.ops.problem import Problem
from clnn.ops.shared.elementwise_launch import Walked, walk_launch
from clnn.ops.spec import OpSpec
from clnn.types import Array, TensorType, broadcast_shapes


@dataclass(frozen=True)
class FixedMap(OpSpec):
    """All inputs that are there, broadcast to a common shape, through `function`."""

    function: Elementwise

    kind = "fixed_map"
    layout_rule = "same"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the broadcast type. Raises ShapeError or DTypeError where operands do not fit."""
        operands = [t for t in inputs if t is not None]
        shape = broadcast_shapes(*(t.shape for t in operands))
        return (TensorType(shape, self.function.output([t.dtype for t in operands])),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return the function of the broadcast operands with numpy."""
        operands = np.broadcast_arrays(*(x for x in inputs if x is not None))
        return (self.function.reference(*operands),)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return the one kernel, which walks any layouts."""
        name, out = f"map_{self.function.name}", problem.outputs[0]
        sources = [
            Walked(In(k), operand.layout.broadcast(out.type.shape), operand.type.dtype.cl)
            for k, operand in enumerate(problem.inputs)
            if operand is not None
        ]
        result = Walked(Out(0), out.layout, out.type.dtype.cl)
        launch = walk_launch(name, sources, result, problem.target, function=self.function)
        return [Variant(name, (launch,))]

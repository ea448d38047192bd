"""Elementwise functions of a fixed-point system, over any number of operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clnn.arith._base import Elementwise
from clnn.ops.elementwise.eltwise import walk_launch
from clnn.ops.launch import In, Variant
from clnn.ops.problem import Problem
from clnn.ops.spec import OpSpec
from clnn.types import Array, TensorType, broadcast_shapes


@dataclass(frozen=True)
class FixedMap(OpSpec):
    """All inputs, broadcast to a common shape, through `function`."""

    function: Elementwise

    kind = "fixed_map"
    layout_rule = "same"

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the broadcast type. Raises ShapeError or DTypeError where operands do not fit."""
        given = [t for t in inputs if t is not None]
        shape = broadcast_shapes(*(t.shape for t in given))
        return (TensorType(shape, self.function.output([t.dtype for t in given])),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return the function of the broadcast operands with numpy."""
        given = np.broadcast_arrays(*(x for x in inputs if x is not None))
        return (self.function.reference(*given),)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return the one kernel, which walks any layouts."""
        name, out = f"map_{self.function.name}", problem.outputs[0]
        if not out.type.size:
            return [Variant("empty", ())]
        operands = [problem.input(k) for k in range(len(problem.inputs))]
        layouts = [o.layout.broadcast(out.type.shape) for o in operands]
        ctypes = tuple(o.type.dtype.cl for o in (*operands, out))
        sources = tuple(In(k) for k in range(len(operands)))
        launch = walk_launch(
            name,
            [*layouts, out.layout],
            ctypes,
            (),
            {},
            problem.target,
            sources,
            function=self.function,
        )
        return [Variant(name, (launch,))]

"""Elementwise functions of a fixed-point system, over any number of operands."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clnn.arith._base import Elementwise
from clnn.arith.quantised_maps import Quantise
from clnn.ops.launch import Arg, In, Launch, Out, Variant, grid
from clnn.ops.problem import Problem
from clnn.ops.shared.elementwise_launch import Walked, walk_launch
from clnn.ops.spec import OpSpec
from clnn.records import dataclass
from clnn.traced import is_one
from clnn.types import I8, U8, Array, TensorType, broadcast_shapes

PLANES = 4  # of an image that becomes pixels of bytes
BAND = 4  # rows of it that a work-item walks


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

    def accepts_nchw(self, inputs: Sequence[TensorType | None]) -> bool:
        """Whether bytes are made of an image of few channels, which may be planes then."""
        image, *others = (t for t in inputs if t is not None)
        single = all(t.size == 1 for t in others)
        quantised = isinstance(self.function, Quantise) and self.function.kind in (I8, U8)
        return quantised and single and image.rank == 4 and image.shape[1] <= PLANES

    def variants(self, problem: Problem) -> list[Variant]:
        """Return the kernel that makes pixels of planes where it fits, and the one that walks any layouts."""
        walked = self._walked(problem)
        types = [None if operand is None else operand.type for operand in problem.inputs]
        if not (problem.target.is_cpu and self.accepts_nchw(types)):
            return [walked]
        source, out = problem.input(0).layout, problem.outputs[0].layout
        planes = (
            is_one(source.pitches[3]) and is_one(out.pitches[1]) and not is_one(source.pitches[1])
        )
        return [_of_planes(self.function, problem), walked] if planes else [walked]

    def _walked(self, problem: Problem) -> Variant:
        name, out = f"map_{self.function.name}", problem.outputs[0]
        sources = [
            Walked(In(k), operand.layout.broadcast(out.type.shape), operand.type.dtype.cl)
            for k, operand in enumerate(problem.inputs)
            if operand is not None
        ]
        result = Walked(Out(0), out.layout, out.type.dtype.cl)
        function = self.function.on(problem.target.features)
        launch = walk_launch(name, sources, result, problem.target, function=function)
        return Variant(name, (launch,))


def _of_planes(function: Elementwise, problem: Problem) -> Variant:
    """Return the kernel that makes pixels of planes."""
    name, out, operands = (
        f"map_{function.name}_planes",
        problem.outputs[0],
        range(len(problem.inputs)),
    )
    height = out.layout.shape[2]
    global_size, local = grid(problem.target, -(-height // BAND), out.layout.shape[0])
    params = {
        "name": name,
        "ctypes": (*(problem.input(k).type.dtype.cl for k in operands), out.type.dtype.cl),
        "src": problem.input(0).layout,
        "dst": out.layout,
        "function": function,
        "vec": max(4, problem.target.vector),
        "rows": BAND,
        "wg": local,
    }
    args: tuple[Arg, ...] = (*map(In, operands), Out(0))
    return Variant(name, (Launch("elementwise/planes.cl.mako", params, args, global_size, local),))

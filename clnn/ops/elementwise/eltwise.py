"""Elementwise chains: one primary input, steps applied in a register, operands broadcast."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clnn.arith._base import Elementwise
from clnn.errors import DTypeError
from clnn.layout import TensorLayout
from clnn.ops.launch import Const, In, Launch, Out, Variant, grid, vector_width
from clnn.ops.problem import Problem
from clnn.ops.shared.element_types import move_type, require
from clnn.ops.shared.functions import FUNCTIONS, PostOp, apply_post_ops
from clnn.ops.shared.loops import Loops, collapse, even_chunk
from clnn.ops.spec import OpSpec, batched
from clnn.target import Target
from clnn.types import Array, TensorType, broadcast_shapes, dtype_of

RESULT = Out(0)
CHUNK = 2048  # elements that one CPU work-item walks
SHORT = 16  # an innermost loop below this gives way to a longer one, if it has no vectors


@dataclass(frozen=True)
class Eltwise(OpSpec):
    """Steps applied to input 0, which is broadcast with the operands to the output's shape."""

    post_ops: tuple[PostOp, ...] = ()

    kind = "eltwise"
    layout_rule = "same"
    fuses_post_ops = True
    supports_narrow_storage = True

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the broadcast type. Raises DTypeError where operands differ in type."""
        given = [t for t in inputs if t is not None]
        if any(t.dtype != given[0].dtype for t in given):
            names = ", ".join(t.dtype.name for t in given)
            raise DTypeError(f"elementwise operands have types {names}: they must be equal.")
        for step in self.post_ops:
            if FUNCTIONS[step.fn].floats_only and not given[0].dtype.is_float:
                raise DTypeError(f"{step.fn} of {given[0].dtype.name}: it needs a float type.")
        return (TensorType(broadcast_shapes(*(t.shape for t in given)), given[0].dtype),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return the chain's result with numpy."""
        given = [x for x in inputs if x is not None]
        shape = np.broadcast_shapes(*(x.shape for x in given))
        first = np.broadcast_to(given[0], shape)
        return (np.broadcast_to(apply_post_ops(first, self.post_ops, inputs), shape),)

    def variants(self, problem: Problem) -> list[Variant]:
        """Return the one kernel, which walks any layouts."""
        return [walk("eltwise", problem, self.post_ops)]

    def split_batch(
        self, inputs: Sequence[TensorType | None], count: int
    ) -> tuple[OpSpec, tuple[int, ...]] | None:
        """Return the op as it is, for some images of the inputs that are not broadcast along them."""
        return self, batched(inputs, max((t.rank for t in inputs if t is not None), default=0))

    def flops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        """One operation per step and element."""
        return len(self.post_ops) * outputs[0].size


def walk(name: str, problem: Problem, post_ops: Sequence[PostOp]) -> Variant:
    """Return the variant that applies `post_ops` to input 0 under the problem's layouts."""
    used = sorted({0, *(s.operand for s in post_ops if s.operand is not None)})
    out = problem.outputs[0]
    if not out.type.size:
        return Variant(name, ())
    layouts = [problem.input(k).layout.broadcast(out.type.shape) for k in used]
    ctypes = tuple(
        move_type(o.memory) if not post_ops else o.ctype
        for o in (*(problem.input(k) for k in used), out)
    )
    require(problem.target, name, *ctypes)
    operands = {k: place for place, k in enumerate(used)}
    launch = walk_launch(
        name,
        [*layouts, out.layout],
        ctypes,
        post_ops,
        operands,
        problem.target,
        tuple(In(k) for k in used),
    )
    return Variant(name, (launch,))


def walk_launch(
    name: str,
    layouts: Sequence[TensorLayout],
    ctypes: tuple[str, ...],
    post_ops: Sequence[PostOp],
    operands: dict[int, int],
    target: Target,
    sources: tuple[In | Out, ...],
    result: Out = RESULT,
    function: Elementwise | None = None,
) -> Launch:
    """Return one launch of the eltwise template over layouts of equal shape, the last written.

    function: computes the result of all sources, instead of steps.
    """
    loops = collapse(layouts)
    vec = _width(loops, target)
    if vec == 1 and loops.inner < SHORT and len(loops.extents) > 1:
        long = [k for k, extent in enumerate(loops.extents) if extent >= SHORT]
        longest = max(range(len(loops.extents)), key=lambda k: (loops.extents[k], k))
        loops = loops.with_inner(long[-1] if long else longest)
        vec = _width(loops, target)
    loops = loops.padded(2)
    chunk = even_chunk(loops.inner, CHUNK, vec) if target.is_cpu else vec
    middle = loops.extents[-2]
    rows = even_chunk(middle, max(1, CHUNK // chunk)) if target.is_cpu else 1
    global_size, local = grid(
        target, loops.inner // chunk * (middle // rows), math.prod(loops.extents[:-2])
    )
    params = {
        "name": name,
        "ctypes": ctypes,
        "outer": loops.extents[:-2] or (1,),
        "pitches": tuple(p[:-2] or (0,) for p in loops.pitches),
        "inner": loops.inner,
        "chunk": chunk,
        "inner_pitches": loops.inner_pitches,
        "middle": middle,
        "rows": rows,
        "middle_pitches": tuple(p[-2] for p in loops.pitches),
        "post_ops": tuple(post_ops),
        "operands": operands,
        "wg": local,
        "vec": vec,
        "function": function,
    }
    tables = function.tables() if function else ()
    params["tables"] = tuple(dtype_of(t.dtype).cl for t in tables)
    args = (*sources, *(Const(functools.partial(np.asarray, t)) for t in tables), result)
    return Launch("elementwise/eltwise.cl.mako", params, args, global_size, local)


def _width(loops: Loops, target: Target) -> int:
    """Return the vector width along the innermost loop: 1 where the result has gaps there."""
    if loops.inner_pitches[-1] != 1:
        return 1
    return vector_width(loops.inner, target.vector, [(0, p) for p in loops.inner_pitches])

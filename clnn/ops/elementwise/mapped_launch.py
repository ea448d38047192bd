"""The variant of ops that compute one function of operands whose types differ from the result's."""

from __future__ import annotations

from clnn.ops.launch import Arg, In, Launch, Out, Variant
from clnn.ops.problem import Problem
from clnn.ops.shared.element_types import move_type, require
from clnn.ops.shared.loops import collapse, run_work
from clnn.traced import is_open
from clnn.types import BOOL, DType


def map_variant(problem: Problem, op: str, fn: str, vectors: bool = True) -> Variant:
    """Return the variant of the map template for function `fn`, for any layouts.

    vectors: whether the function is written for vectors too.
    """
    out = problem.outputs[0]
    operands = [problem.input(k) for k in range(len(problem.inputs))]
    types = [_type(o.type.dtype, fn) for o in (*operands, out)]
    require(problem.target, op, *(t for t in types if t != "half"))
    layouts = [o.layout.unpadded().broadcast(out.type.shape) for o in operands]
    loops = collapse([*layouts, out.layout.unpadded()])
    pitches = loops.inner_pitches
    contiguous = pitches[-1] == 1 and all(not is_open(p) and p in (0, 1) for p in pitches)
    work, global_size, local = run_work(loops, problem.target, contiguous and vectors)
    kinds = [o.type.dtype.name for o in (operands[0], out)]
    name = "_".join([op, fn, *dict.fromkeys(kinds), f"v{work['vw']}"])
    params = {
        "name": name,
        "fn": fn,
        "types": tuple(types),
        "from_bool": operands[0].type.dtype == BOOL,
        "to_bool": out.type.dtype == BOOL,
        "wg": local,
        **work,
    }
    args: tuple[Arg, ...] = (*(In(k) for k in range(len(operands))), Out(0))
    return Variant(name, (Launch("elementwise/map.cl.mako", params, args, global_size, local),))


def _type(dtype: DType, fn: str) -> str:
    """Return the type that the kernel sees; functions that only choose move any type."""
    return move_type(dtype) if fn == "where" else dtype.cl

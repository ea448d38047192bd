"""The launch of elementwise/eltwise: tensors of equal shape walked together, the last one written."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from clnn.arith._base import Elementwise
from clnn.layout import TensorLayout
from clnn.ops.launch import Arg, Const, Launch, grid, vector_width
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.loops import Loops, collapse, even_chunk
from clnn.records import dataclass
from clnn.target import Target
from clnn.traced import greatest, is_one, is_open, other
from clnn.types import dtype_of

CHUNK = 2048  # elements that one CPU work-item walks
LEAST_TURNED, TURNED_ROWS = 4, 32  # rows that a CPU work-item walks where a source lies along them
SHORT = 16  # extent below which an innermost loop without vectors gives way to a longer one


@dataclass(frozen=True)
class Walked:
    """A tensor that a kernel walks: its argument, its layout in the result's shape, its type."""

    arg: Arg
    layout: TensorLayout
    ctype: str


def walk_launch(
    name: str,
    sources: Sequence[Walked],
    result: Walked,
    target: Target,
    post_ops: Sequence[PostOp] = (),
    operands: Mapping[int, int] | None = None,
    function: Elementwise | None = None,
) -> Launch:
    """Return the launch that computes `result` from `sources`.

    That is the first source after `post_ops`, whose operands are node inputs: `operands` tells the
    number of each among the sources. function: computes the result of all sources instead.
    """
    walked = (*sources, result)
    loops, vec = _loops([tensor.layout for tensor in walked], target)
    if function and is_open(loops.inner):
        vec = 1  # of which alone a function has a text besides that for vectors
    chunk, rows = _shares(loops, vec) if target.is_cpu else (vec, 1)
    middle = loops.extents[-2]
    parts = -(-loops.inner // chunk) * -(-middle // rows)
    global_size, local = grid(target, parts, math.prod(loops.extents[:-2]))
    tables = function.tables() if function else ()
    params = {
        "name": name,
        "ctypes": tuple(tensor.ctype for tensor in walked),
        "outer": loops.extents[:-2] or (1,),
        "pitches": tuple(p[:-2] or (0,) for p in loops.pitches),
        "inner": loops.inner,
        "chunk": chunk,
        "inner_pitches": loops.inner_pitches,
        "middle": middle,
        "rows": rows,
        "middle_pitches": tuple(p[-2] for p in loops.pitches),
        "post_ops": tuple(post_ops),
        "operands": operands or {},
        "wg": local,
        "vec": vec,
        "function": function,
        "tables": tuple(dtype_of(t.dtype).cl for t in tables),
    }
    args = (
        *(source.arg for source in sources),
        *(Const(functools.partial(np.asarray, t)) for t in tables),
        result.arg,
    )
    return Launch("elementwise/eltwise.cl.mako", params, args, global_size, local)


def _shares(loops: Loops, vec: int) -> tuple[int, int]:
    """Return how many elements of a row, and how many rows, one CPU work-item walks.

    They divide the loops where these are not open.
    """
    inner, middle = loops.inner, loops.extents[-2]
    turned = even_chunk(middle, TURNED_ROWS) if _turns(loops) else 1
    if LEAST_TURNED <= turned <= TURNED_ROWS:
        return even_chunk(inner, CHUNK // turned, vec), turned
    chunk = CHUNK if is_open(inner) else even_chunk(inner, CHUNK, vec)
    most = greatest(1, CHUNK // (inner if is_open(inner) else chunk))
    return chunk, most if is_open(middle) or is_open(most) else even_chunk(middle, most)


def _turns(loops: Loops) -> bool:
    """Whether a source lies along the middle loop, so that parts of few rows would each read all of it."""
    pitches = [p[-2:] for p in loops.pitches]
    if any(map(is_open, [*loops.extents[-2:], *(p for pair in pitches for p in pair)])):
        return False
    return pitches[-1][1] == 1 and any(down == 1 < along for down, along in pitches[:-1])


def _loops(layouts: Sequence[TensorLayout], target: Target) -> tuple[Loops, int]:
    """Return two loops at least over all layouts, and the vector width along the innermost one."""
    loops = collapse(layouts)
    vec = _width(loops, target)
    extents = [other(extent) for extent in loops.extents]
    if vec == 1 and extents[-1] < SHORT and len(extents) > 1:
        long = [k for k, extent in enumerate(extents) if extent >= SHORT]
        longest = max(range(len(extents)), key=lambda k: (extents[k], k))
        loops = loops.with_inner(long[-1] if long else longest)
        vec = _width(loops, target)
    return loops.padded(2), vec


def _width(loops: Loops, target: Target) -> int:
    """Return the vector width along the innermost loop: 1 where the result has gaps there."""
    pitches = loops.inner_pitches
    if any(map(is_open, pitches)) or not is_one(pitches[-1]):
        return 1
    if is_open(loops.inner):
        return target.vector if target.is_cpu and set(pitches) <= {0, 1} else 1
    return vector_width(loops.inner, target.vector, [(0, p) for p in pitches])

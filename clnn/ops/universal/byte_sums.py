"""What convolutions, filters and windows of bytes have in common as launches of the universal set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from clnn.arith._base import Arithmetic
from clnn.arith.quantised import Requantised, Sums, Written
from clnn.codegen.filters import image
from clnn.layout import TensorLayout
from clnn.ops.conv.problem import ConvProblem
from clnn.ops.launch import Arg, Const, In
from clnn.ops.problem import Problem
from clnn.ops.shared.functions import FUNCTIONS, PostOp
from clnn.ops.universal.byte_steps import FEW, TYPES, Number, encoded, steps_of
from clnn.records import dataclass
from clnn.types import I8, I16, Array

ROWS = 4  # of constants of a channel: start; bits of the factor, of what it lacks, of the bias
BYTES = ("char", "uchar")
MOVED = 128  # of signed bytes as unsigned ones
SUMS, REQUANTISED, WRITTEN = 0, 1, 2  # modes
TABLE = 256 + 64  # floats of a table: its entries, and these as bytes
_NOTHING = Const(lambda: np.zeros(TABLE, np.float32))


@dataclass(frozen=True)
class Behind:
    """Steps behind sums: the arguments of their table and their operand, and numbers of both."""

    args: tuple[Arg, ...]
    operand: tuple[Number, ...]
    steps: tuple[Number, ...]


def behind(
    problem: Problem,
    post_ops: Sequence[PostOp],
    images: Mapping[int, tuple[int, TensorLayout]],
) -> Behind | None:
    """Return what follows sums, None where the set has no form for it.

    images: input -> its number among the operands, its layout.
    """
    tables = [op.operand for op in post_ops if FUNCTIONS[op.fn].looks_up]
    read = [k for k in images if k not in tables]
    kinds = [problem.input(k).type.dtype.cl for k in read]
    plain = all(not problem.input(k).stored for k in read)
    steps = steps_of(post_ops, {k: place for place, k in enumerate(read)})
    of_bytes = all(FUNCTIONS[op.fn].of_bytes for op in post_ops)
    if (
        not of_bytes
        or len(read) > 1
        or len(tables) > 1
        or steps is None
        or not plain
        or set(kinds) - {*TYPES}
    ):
        return None
    codes = encoded(steps, FEW)
    table = _NOTHING
    if tables and tables[0] is not None:
        entries = problem.input(tables[0]).const
        if entries is None:
            return None
        table = Const(partial(entries_of, entries.reshape(-1)))
    if codes is None:
        return None
    pitches = image(images[read[0]][1]).pitches if read else (0, 0, 0, 0)
    number = TYPES.index(kinds[0]) if read else 0
    return Behind((table, In(read[0] if read else 0)), (number, *pitches), codes)


def entries_of(entries: Array) -> Array:
    """Return a table of 256 bytes as kernels read it: floats, then as bytes."""
    low = np.asarray(entries, np.int32).astype(np.uint8)
    return np.concatenate([np.asarray(entries, np.float32), low.view(np.float32)])


def moved(dtype: object) -> int:
    """Return by how much bytes are moved up to be unsigned ones."""
    return MOVED if dtype == I8 else 0


def finish(arith: Arithmetic) -> tuple[int, tuple[float, ...]]:
    """Return the mode of sums, and the scale of the result, its limits and its zero point."""
    if not isinstance(arith, Requantised):
        return SUMS, (1.0, 0.0, 0.0, 0.0)
    step = float(arith.step_out) if isinstance(arith, Written) else 1.0
    mode = WRITTEN if isinstance(arith, Written) else REQUANTISED
    return mode, (step, float(arith.low), float(arith.high), float(arith.zero_out))


def constants(problem: ConvProblem, flip: int, alone: bool = False) -> Array:
    """Return ROWS of constants of each output channel, int32. alone: sums begin with what `flip` takes alone."""
    weights, found = problem.weights, problem.table
    assert found is not None, "sums of integers have constants"
    rows = np.zeros((ROWS, len(weights)), np.int32)
    rows[: len(found)] = found
    if alone:
        rows[0] = 0
    above = weights.reshape(len(weights), -1).sum(1, dtype=np.int64)
    rows[0] = (rows[0].astype(np.int64) - flip * above).astype(np.int32)
    return rows


def takes(problem: ConvProblem) -> bool:
    """Whether functions of the set compute sums of bytes as they are asked for here."""
    x, w, out = (problem.input(0), problem.input(problem.weights_input), problem.outputs[0])
    if not isinstance(problem.arith, Sums) or type(problem.arith) not in (
        Sums,
        Requantised,
        Written,
    ):
        return False
    if not problem.is_constant(problem.weights_input, problem.bias_input):
        return False
    if problem.bias is not None and problem.bias.ndim > 1:
        return False
    shorts = x.type.dtype == I16 and type(problem.arith) is Sums
    if not (shorts or x.type.dtype.cl in BYTES) or w.type.dtype.cl not in ("char", "short"):
        return False
    made = BYTES if isinstance(problem.arith, Requantised) else ("int",)
    plain = not any(o.stored for o in (x, out))
    return plain and out.type.dtype.cl in made

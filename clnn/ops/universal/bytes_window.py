"""Maxima and means of windows of bytes as launches of the universal set."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from clnn.arith.quantised import QuantisedAverage, limits_of
from clnn.codegen.filters import image
from clnn.ops.launch import Arg, Const, In, Out, Variant
from clnn.ops.problem import Problem
from clnn.ops.shared.epilogue import operand_images
from clnn.ops.shared.functions import PostOp
from clnn.ops.universal.byte_steps import TYPES
from clnn.ops.universal.byte_sums import behind, moved
from clnn.ops.universal.functions import COLUMNS, banded, of_bytes, universal_launch
from clnn.ops.universal.window import WindowSize
from clnn.types import I8, U8

MAXIMUM, MEAN = 3, 4  # modes
MOST_TAPS = 65536  # of a mean, whose sums floats hold exactly


def universal_byte_window(
    problem: Problem, window: WindowSize, rule: QuantisedAverage | None, post_ops: Sequence[PostOp]
) -> Variant | None:
    """Return the maximum of the windows of input 0, an image of bytes, or their mean by a rule.

    None where it has no form in the set.
    """
    x, out = problem.input(0), problem.outputs[0]
    after = behind(problem, post_ops, operand_images(problem, post_ops))
    fits = {x.type.dtype, out.type.dtype} <= {I8, U8} and prod(window.kernel) <= MOST_TAPS
    if after is None or not fits or x.stored or out.stored:
        return None
    target = of_bytes(problem.target)
    vector, flip = target.vector, moved(x.type.dtype)
    src, dst = image(x.layout), image(out.layout)
    batch, channels, height, width = dst.shape
    tiles, blocks = -(-width // COLUMNS), -(-channels // vector)
    work = COLUMNS * vector * prod(window.kernel) * 4
    band = banded(height * tiles, blocks * batch, work, target)
    scales = [0.0] * 6
    if rule is not None:
        (given, wanted), (zero, made) = rule.steps, rule.zeros
        scales = [*map(float, (given, zero, wanted, *limits_of(rule.kind), made))]
    numbers = (
        *(MAXIMUM if rule is None else MEAN, channels, height, width, tiles, band, flip),
        *src.pitches,
        *src.shape[2:],
        *window.numbers,
        *dst.pitches,
        *(TYPES.index(out.type.dtype.cl), *scales),
        *after.operand,
        *after.steps,
    )
    none = Const(lambda: np.zeros(1, np.float32)), Const(lambda: np.zeros(1, np.int32))
    args: tuple[Arg, ...] = (In(0), *none, *after.args, Out(0))
    sizes = (blocks, -(-height * tiles // band), batch)
    launch = universal_launch("bytes_window", problem.target, args, numbers, sizes)
    return Variant("universal_bytes_window", (launch,))

"""Pooling, and means and maxima of whole images, as launches of the universal set."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from clnn.codegen.filters import image
from clnn.layout import TensorLayout
from clnn.ops.launch import Arg, Const, In, Out, Variant
from clnn.ops.problem import Problem
from clnn.ops.shared.epilogue import operand_images
from clnn.ops.shared.functions import PostOp
from clnn.ops.universal.functions import COLUMNS, banded, universal_launch
from clnn.ops.universal.post_ops import encoded, is_plain, operands
from clnn.records import dataclass

MODES = {"max": 1, "average": 2, "mean": 2}  # of the window function


@dataclass(frozen=True)
class WindowSize:
    """A window as (y, x) numbers. counted: the extents within which a mean counts places, None: what lies inside."""

    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    pads: tuple[int, int] = (0, 0)
    counted: tuple[int, int] | None = None

    @property
    def numbers(self) -> tuple[int, ...]:
        """What the kernel takes."""
        counted = (0, 0, 0) if self.counted is None else (1, *self.counted)
        return *self.kernel, *self.strides, *self.dilations, *self.pads, *counted


def universal_window(
    problem: Problem, mode: str, window: WindowSize, post_ops: Sequence[PostOp]
) -> Variant | None:
    """Return the maximum or mean of the windows of input 0, an image; None where it has no form there.

    mode: one of MODES.
    """
    images: dict[int, tuple[int, TensorLayout]] = operand_images(problem, post_ops)
    codes = encoded(post_ops, {k: place for k, (place, _) in images.items()})
    extra = operands(problem, post_ops, images)
    if codes is None or extra is None or not is_plain(problem, 0):
        return None
    target, vector = problem.target, problem.target.vector
    src, dst = image(problem.input(0).layout), image(problem.outputs[0].layout)
    batch, channels, height, width = dst.shape
    tiles, blocks = -(-width // COLUMNS), -(-channels // vector)
    work = COLUMNS * vector * prod(window.kernel) * 4
    band = banded(height * tiles, blocks * batch, work, target)
    numbers = (
        *(MODES[mode], channels, height, width, tiles, band),
        *src.pitches,
        *src.shape[2:],
        *window.numbers,
        *dst.pitches,
        *extra[1],
        *codes,
    )
    none = Const(lambda: np.zeros(1, np.float32))
    args: tuple[Arg, ...] = (In(0), none, none, *extra[0], Out(0))
    sizes = (blocks, -(-height * tiles // band), batch)
    launch = universal_launch("window", target, args, numbers, sizes)
    return Variant(f"universal_{mode}", (launch,))

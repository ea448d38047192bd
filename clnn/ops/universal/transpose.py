"""Transposed convolutions as launches of the universal set: a convolution for each phase of the output."""

from __future__ import annotations

from functools import partial
from itertools import product
from math import gcd

import numpy as np

from clnn.budget import MAX_PHASES
from clnn.ops.conv.packing import by_output
from clnn.ops.conv.transpose_phases import TransposeProblem, first_taps
from clnn.ops.launch import Arg, Const, In, Launch, Out, Variant
from clnn.ops.universal.conv import fits, groups_of, terms_in
from clnn.ops.universal.functions import tile_channels, tiling, universal_launch
from clnn.ops.universal.packing import pack_bias, pack_tiles
from clnn.ops.universal.post_ops import Number, encoded, limited, operands
from clnn.types import Array


def universal_transpose(problem: TransposeProblem) -> Variant | None:
    """Return a transposed convolution as launches of the set, None where it has no form there."""
    if not fits(problem) or not problem.has_border or max(problem.window.strides) > MAX_PHASES:
        return None
    codes = encoded(problem.post_ops, {k: place for k, (place, _) in problem.operands.items()})
    extra = operands(problem, problem.post_ops, problem.operands)
    if codes is None or extra is None:
        return None
    phases = product(*map(range, problem.geometry["strides"]))
    launches = [_phase(problem, (y, x), extra, codes) for y, x in phases]
    return Variant("universal_transpose", tuple(one for one in launches if one is not None))


def phase_extents(problem: TransposeProblem, phase: tuple[int, int]) -> tuple[int, int]:
    """Return the height and width of a phase (y, x) of the output; 0 and less where it has no pixels."""
    (y, x), (down, right) = phase, problem.geometry["strides"]
    return -(-(problem.height - y) // down), -(-(problem.width - x) // right)


def taps_of(problem: TransposeProblem, axis: int, phase: int) -> tuple[list[int], int]:
    """Return the taps of a phase along y (0) or x (1), those of the first inputs first, and the first input.

    The input is told as its distance from the output pixel's place divided by the stride.
    """
    kernel, stride, dilation, before = (
        problem.geometry[what][axis] for what in ("kernel", "strides", "dilations", "pads")
    )
    real = axis - (2 - len(problem.window.kernel))
    if real < 0:
        return [0], 0
    apart = stride // gcd(stride, dilation)
    taps = list(range(first_taps(problem.window, real)[phase], kernel, apart))[::-1]
    return taps, (phase + before - taps[0] * dilation) // stride if taps else 0


def _phase(
    problem: TransposeProblem,
    phase: tuple[int, int],
    extra: tuple[tuple[In, ...], tuple[int, ...]],
    codes: tuple[Number, ...],
) -> Launch | None:
    """Return the launch of a phase (y, x) of the output, None where the output is too small to have one."""
    strides, wide = problem.geometry["strides"], tile_channels(problem.target)
    height, width = phase_extents(problem, phase)
    if height <= 0 or width <= 0:
        return None
    (ys, first_y), (xs, first_x) = (taps_of(problem, axis, phase[axis]) for axis in (0, 1))
    sn, pc, py, px = problem.src.pitches
    steps = [d // gcd(s, d) for s, d in zip(strides, problem.geometry["dilations"], strict=True)]
    terms = terms_in(problem.src.pitches, problem.ic, (max(len(ys), 1), max(len(xs), 1)), steps)
    sums, pixels = len(ys) * len(xs) * problem.ic, problem.batch * height * width
    tiles = tiling(pixels, problem.oc, problem.group, sums, problem.target)
    pitches = [spread(problem.dst.pitches, strides)]
    pitches += [spread(extra[1][k : k + 4], strides) for k in (0, 4)]
    shifts = [phase[0] * p[2] // strides[0] + phase[1] * p[3] // strides[1] for p in pitches]
    numbers = (
        *(pixels, height, width, tiles.band, tiles.across),
        *(sn, py, px, problem.ic * pc),
        *pitches[0],
        *(sums, *terms[1:]),
        *(tiles.blocks, tiles.span, problem.oc, *limited(codes)[:2], *pitches[1], *pitches[2]),
        *groups_of(problem, tiles.blocks * sums * wide, pitches[0], (*pitches[1], *pitches[2])),
        *limited(codes)[2],
    )
    weights, bias, group = problem.weights, problem.bias, problem.group
    pack = partial(packed_taps, weights, group, wide, terms.order, ys, xs)
    made = partial(pack_bias, bias, problem.oc * group, group, wide)
    read = [In(one.index, shift) for one, shift in zip(extra[0], shifts[1:], strict=True)]
    first = In(0, first_y * py + first_x * px)
    args: tuple[Arg, ...] = (first, Const(pack), In(0), Const(made), *read, Out(0, shifts[0]))
    return universal_launch("conv", problem.target, args, numbers, tiles.sizes)


def spread(pitches: tuple[int, ...], strides: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return the pitches (n, c, y, x) of an image's pixels that are a stride apart."""
    n, c, y, x = pitches
    return n, c, y * strides[0], x * strides[1]


def packed_taps(
    weights: Array,
    group: int,
    wide: int,
    order: tuple[int, int, int],
    ys: list[int],
    xs: list[int],
) -> Array:
    """Return the weights of some taps as pack_tiles does; one zero where there are none."""
    if not (ys and xs):
        return np.zeros(1, np.float32)
    whole = by_output(weights, group)
    image = whole.reshape(*whole.shape[:2], *(1, *whole.shape[2:])[-2:])
    return pack_tiles(image[:, :, ys][:, :, :, xs], group, wide, order)

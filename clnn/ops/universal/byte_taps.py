"""Transposed convolutions of bytes by real weights as launches of the universal set."""

from __future__ import annotations

from functools import partial
from itertools import product
from math import gcd

import numpy as np

from clnn.arith.real_taps import RealTaps
from clnn.budget import MAX_PHASES
from clnn.ops.conv.transpose_phases import TransposeProblem
from clnn.ops.launch import Arg, Const, In, Launch, Out, Variant
from clnn.ops.universal.byte_steps import TYPES
from clnn.ops.universal.byte_sums import BYTES, moved
from clnn.ops.universal.functions import banded, of_bytes, tile_channels, tile_of, universal_launch
from clnn.ops.universal.packing import pack_bias
from clnn.ops.universal.transpose import packed_taps, phase_extents, spread, taps_of

APART = RealTaps.apart  # channels whose products are summed by themselves


def universal_byte_taps(problem: TransposeProblem) -> Variant | None:
    """Return a transposed convolution of bytes as launches of the set, None where it has no form there."""
    x, out = problem.input(0), problem.outputs[0]
    constant = problem.is_constant(problem.weights_input, problem.bias_input)
    if not isinstance(problem.arith, RealTaps) or problem.post_ops or not constant:
        return None
    if not problem.has_border or max(problem.window.strides) > MAX_PHASES:
        return None
    if x.stored or out.stored or {x.type.dtype.cl, out.type.dtype.cl} - {*BYTES}:
        return None
    phases = product(*map(range, problem.geometry["strides"]))
    launches = [_phase(problem, problem.arith, (y, x)) for y, x in phases]
    return Variant("universal_byte_taps", tuple(one for one in launches if one is not None))


def _phase(problem: TransposeProblem, arith: RealTaps, phase: tuple[int, int]) -> Launch | None:
    """Return the launch of a phase (y, x) of the output, None where the output is too small to have one."""
    strides, target = problem.geometry["strides"], of_bytes(problem.target)
    wide, (sn, pc, py, px) = tile_channels(target), problem.src.pitches
    height, width = phase_extents(problem, phase)
    if height <= 0 or width <= 0:
        return None
    # Those of the first inputs come first: the last ones of the kernel.
    (ys, first_y), (xs, first_x) = (taps_of(problem, axis, phase[axis]) for axis in (0, 1))
    steps = [d // gcd(s, d) for s, d in zip(strides, problem.geometry["dilations"], strict=True)]
    pixels, taps = problem.batch * height * width, len(ys) * len(xs)
    blocks, high = -(-problem.oc // wide), tile_of(target)[0]
    work = high * wide * max(taps * problem.ic, 1)
    band = banded(-(-pixels // high), blocks * problem.group, work, target)
    pitches = spread(problem.dst.pitches, strides)
    begin = [
        first + step * max(len(t) - 1, 0)
        for first, step, t in ((first_y, steps[0], ys), (first_x, steps[1], xs))
    ]
    numbers = (
        *(pixels, height, width, band, moved(problem.input(0).type.dtype)),
        *(sn, py, px, problem.ic * pc, *pitches),
        *(problem.ic, pc, len(ys), len(xs), -steps[0] * py, -steps[1] * px),
        *(blocks, problem.oc, arith.quads),
        TYPES.index(problem.outputs[0].type.dtype.cl),
        *(arith.zero, float(arith.step_in), float(arith.step_out)),
        *(float(arith.low), float(arith.high), float(arith.zero_out)),
    )
    group, offsets = problem.group, np.array(arith.offsets or (0.0,), np.float32)
    added = np.broadcast_to(offsets, (problem.oc * group,))
    args: tuple[Arg, ...] = (
        In(0, begin[0] * py + begin[1] * px),
        Const(partial(packed_taps, problem.weights, group, wide, (1, 2, 0), ys[::-1], xs[::-1])),
        Const(partial(pack_bias, added, problem.oc * group, group, wide)),
        Out(0, phase[0] * pitches[2] // strides[0] + phase[1] * pitches[3] // strides[1]),
    )
    sizes = (-(-pixels // (high * band)), blocks * group)
    return universal_launch("bytes_taps", problem.target, args, numbers, sizes)

"""Convolutions between bytes that ONNX Runtime computes in float32, where its order of sums is known.

Its library multiplies a single filter as a row with a matrix, and windows of one place as two matrices, as was seen
on a processor with AVX2. Sums over several taps of several channels follow its blocks of channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from clnn.arith.quantised import Quantisation
from clnn.arith.real_fours import RealFours
from clnn.ops.conv.spec import Conv2d
from clnn.ops.conv.transpose import ConvTranspose
from clnn.ops.movement.views import Slice
from clnn.ops.onnx_registry import Emit, Source
from clnn.ops.quantised import build
from clnn.types import Array

MOST_AXES = 2  # of images; volumes are convolved as several images


def convolution(
    spec: Conv2d,
    extents: tuple[Sequence[int], Sequence[int]],
    weights: tuple[Array, Quantisation],
    steps: tuple[Quantisation, Quantisation],
    bias: Array | None,
    limits: tuple[int, int],
) -> Emit | None:
    """Return a convolution of the values 0 with sums of real numbers in that order, None where it is not known.

    extents: of x and of the result. weights: integers (oc, ic / group, kernel...) that count from 0, and what they
    stand for. steps: of x and of the result. bias: real numbers, or None. limits: of the result's integers.
    """
    if len(extents[0]) > MOST_AXES + 2:
        return None
    integers, w = weights
    scales = np.array(w.scale, np.float32).reshape(-1, *(1,) * (integers.ndim - 1))
    real = (integers * scales).astype(np.float32)
    x, y = steps
    window, single = spec.window, spec.group == len(real)
    if single and real.shape[1] == 1 < spec.group:
        offsets = () if bias is None else tuple(map(float, bias.astype(np.float32).reshape(-1)))
        ends = (y.dtype, y.zero[0], float(y.step), *limits)
        fours = RealFours(x.zero[0], float(x.step), *ends, offsets=offsets)
        return Emit(replace(spec, arith=fours), [0, real, None])
    place, out = (1,) * (real.ndim - 2), tuple(extents[1][2:])
    if window.kernel != place or any((*window.before, *window.after)):
        return None
    if math.prod(out) == 1 and not single:  # a matrix with a row: as dot products
        return None
    source: Source = 0
    if window.strides != place:
        seen = (*extents[0][:2], *out)
        source = Emit(Slice((0,) * real.ndim, seen, (1, 1, *window.strides)), [0])
    arith = build.real_taps(x, y, bias, limits, single, _each(w, len(real)))
    turned = real.reshape(spec.group, -1, real.shape[1]).transpose(0, 2, 1)
    taps = turned.reshape(-1, turned.shape[2], *place)
    return Emit(
        ConvTranspose(place, place, place, (0,) * len(place), out, spec.group, (), arith),
        [source, taps, None],
    )


def _each(w: Quantisation, count: int) -> tuple[float, ...]:
    """Return what a step of the weights of each output channel is worth."""
    return w.scale if len(w.scale) == count else w.scale * count

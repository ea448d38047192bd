"""Transposed convolutions of bytes by real weights, summed in one order, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_op, rng

from clnn.arith.quantised import RealTaps
from clnn.errors import DTypeError
from clnn.ops.conv.transpose import ConvTranspose
from clnn.types import F32, I8, I16, U8

pytestmark = pytest.mark.dealt  # kernels that are slow to build

F = np.float32


def problem(kind, ic, per, size, group=1, quads=False, strides=(2, 1), dilations=(1, 1)):
    """Return an op and its inputs; its sums are often within a last digit of a tie."""
    low = int(np.iinfo(kind.numpy).min)
    offsets = tuple(rng(3).normal(0, 1, per * group).tolist())
    arith = RealTaps(low + 100, 0.0125, kind, low + 9, 0.05, low + 3, low + 250, quads, offsets)
    kernel, before = (3, 2), (1, 0)
    extents = tuple(
        (s - 1) * t + (k - 1) * d + 1 - b
        for s, t, k, d, b in zip(size, strides, kernel, dilations, before, strict=True)
    )
    spec = ConvTranspose(kernel, strides, dilations, before, extents, group, (), arith)
    x = rng(1).integers(low, low + 255, (2, ic * group, *size), endpoint=True).astype(kind.numpy)
    w = rng(2).integers(-127, 127, (ic * group, per, *kernel), endpoint=True).astype(F) * F(0.004)
    return spec, [x, w, None]


@pytest.mark.parametrize("kind", [U8, I8], ids=repr)
@pytest.mark.parametrize("ic,per,group", [(5, 3, 1), (16, 20, 1), (3, 4, 2), (131, 8, 1)])
def test_every_variant(device, kind, ic, per, group):
    spec, inputs = problem(kind, ic, per, (4, 5), group)
    for border in (0, 2):
        check_op(device, spec, inputs, consts=(1,), border=border, every=True)


@pytest.mark.parametrize("ic", [1, 2, 3, 4, 7, 130])
def test_images_of_one_pixel(device, ic):
    spec, inputs = problem(U8, ic, 5, (1, 1), quads=True)
    check_op(device, spec, inputs, consts=(1,))


def test_holes_between_taps(device):
    spec, inputs = problem(I8, 6, 9, (3, 6), strides=(3, 2), dilations=(2, 3))
    check_op(device, spec, inputs, consts=(1,))


def one_result(channels):
    """Return what a tap of each row of `channels` gives at the pixel that all of them reach."""
    weights = np.array(channels, F)[:, None]
    taps = weights.shape[2]
    arith = RealTaps(0, 1.0, U8, 0, 1.0, 0, 255, taps == 1)
    spec = ConvTranspose((taps,), (1,), (1,), (taps - 1,), (1,), 1, (), arith)
    (got,) = spec.reference(np.ones((1, len(channels), taps), np.uint8), weights, None)
    return got.item()


def test_taps_and_fours_are_summed_by_themselves():
    """One after the other added to 2**24 would change nothing."""
    big = 2.0**24
    assert one_result([[big, 1, -big], [0, 1, 0]]) == 2
    assert one_result([[p] for p in (big, 0, 0, 0, 1, 1, 0, 0, -big)]) == 2
    assert one_result([[p] for p in (big, 0, 0, 0, 1, 1, -big)]) == 2


def test_operands_that_do_not_fit_are_refused():
    arith = RealTaps(0, 1.0, U8, 0, 1.0, 0, 255)
    for x, w in ((I16, F32), (U8, I8)):
        with pytest.raises(DTypeError, match="takes bytes with float32"):
            arith.output(x, w)

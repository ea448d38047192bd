"""Transposed convolutions of bytes by real weights, summed in one order, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_op, check_universal, rng

from clnn.arith.real_taps import RealTaps
from clnn.errors import DTypeError
from clnn.ops.conv.transpose import ConvTranspose
from clnn.runtime.device.device import select
from clnn.types import F32, I8, I16, U8

pytestmark = pytest.mark.dealt  # kernels that are slow to build

F = np.float32


def problem(kind, ic, per, size, group=1, quads=False, strides=(2, 1), dilations=(1, 1)):
    """Return an op and its inputs; its sums are often within a last digit of a tie."""
    low = int(np.iinfo(kind.numpy).min)
    offsets = tuple(rng(3).normal(0, 1, per * group).tolist())
    arith = RealTaps(
        low + 100, 0.0125, kind, low + 9, 0.05, low + 3, low + 250, quads, offsets=offsets
    )
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


SETS = {
    "few": (U8, 5, 3, (4, 5), {}),
    "blocks": (I8, 16, 40, (4, 5), {}),
    "groups": (U8, 3, 4, (4, 5), {"group": 2}),
    "far": (I8, 131, 8, (4, 5), {}),
    "holes": (I8, 6, 9, (3, 6), {"strides": (3, 2), "dilations": (2, 3)}),
    "point": (U8, 7, 5, (1, 1), {"quads": True}),
    "far_point": (I8, 130, 5, (1, 1), {"quads": True}),
}


@pytest.mark.parametrize("order", ((0, 1, 2, 3), (0, 2, 3, 1)), ids=("nchw", "nhwc"))
@pytest.mark.parametrize("case", SETS)
def test_on_the_universal_set(device, case, order):
    kind, ic, per, size, about = SETS[case]
    spec, inputs = problem(kind, ic, per, size, **about)
    check_universal(device, spec, inputs, consts=(1,), orders={"i0": order, "o0": order})


@pytest.mark.parametrize("ic", [1, 2, 3, 4, 7, 130])
def test_images_of_one_pixel(device, ic):
    spec, inputs = problem(U8, ic, 5, (1, 1), quads=True)
    check_op(device, spec, inputs, consts=(1,))


def test_holes_between_taps(device):
    spec, inputs = problem(I8, 6, 9, (3, 6), strides=(3, 2), dilations=(2, 3))
    check_op(device, spec, inputs, consts=(1,))


def of_bytes(kind, ic, per, size, window, group=1, limits=None, steps=1):
    """Return an op with weights of bytes times steps, one for all or one per channel, and its inputs.

    A product is a thousandth of a step of the result, so that many sums are ties but for rounding.
    """
    low = int(np.iinfo(kind.numpy).min)
    kernel, strides, dilations, before, more = window
    scales = (F(0.004) * (F(2) ** -rng(5).integers(0, 2, steps).astype(F))).tolist()
    offsets = (rng(3).integers(-9, 9, per * group) * 0.025).tolist()
    ends = limits or (low, low + 255)
    arith = RealTaps(
        low + 100, 0.0125, kind, low + 9, 0.05, *ends, False, tuple(scales), offsets=tuple(offsets)
    )
    extents = tuple(
        (s - 1) * t + (k - 1) * d + 1 - b + m
        for s, t, k, d, b, m in zip(size, strides, kernel, dilations, before, more, strict=True)
    )
    spec = ConvTranspose(kernel, strides, dilations, before, extents, group, (), arith)
    x = rng(1).integers(low, low + 255, (2, ic * group, *size), endpoint=True).astype(kind.numpy)
    whole = rng(2).integers(-128, 127, (group, ic, per, *kernel), endpoint=True)
    of_channels = np.broadcast_to(np.array(scales, F).reshape(-1, 1, 1), (per * group, 1, 1))
    w = whole.astype(F) * of_channels.reshape(group, 1, per, 1, 1)
    return spec, [x, w.reshape(ic * group, per, *kernel), None]


DOUBLED = ((2, 2), (2, 2), (1, 1), (0, 0), (0, 0))
OVERLAPPING = ((3, 3), (2, 2), (1, 1), (1, 1), (0, 0))  # extents that the stride does not divide
PADDED = ((4, 3), (2, 1), (1, 1), (1, 0), (-1, 0))
HOLES = ((3, 2), (3, 2), (2, 3), (1, 0), (-1, 0))


@pytest.mark.parametrize("kind", [U8, I8], ids=repr)
@pytest.mark.parametrize(
    "ic,per,group,window",
    [
        (8, 16, 1, DOUBLED),
        (132, 40, 1, DOUBLED),
        (256, 7, 1, DOUBLED),
        (12, 20, 1, OVERLAPPING),
        (4, 33, 2, PADDED),
        (16, 64, 1, HOLES),
    ],
)
def test_weights_of_bytes(device, kind, ic, per, group, window):
    steps = per * group if ic != 8 else 1
    spec, inputs = of_bytes(kind, ic, per, (5, 7), window, group, None, steps)
    ran = check_op(device, spec, inputs, consts=(1,), border=int(window is DOUBLED), every=True)
    assert any("_bytes_" in name for name in ran), ran


def test_weights_of_bytes_clipped(device):
    spec, inputs = of_bytes(U8, 20, 24, (3, 30), DOUBLED, limits=(9, 200))
    ran = check_op(device, spec, inputs, consts=(1,))
    fast = bool(select(device).caps.x86_vnni)
    assert any("_bytes_" in name for name in ran) == fast, ran


@pytest.mark.parametrize("kind", [U8, I8], ids=repr)
def test_some_weights_beyond_bytes(device, kind):
    """Products with what they have more are added apart; not where they are many."""
    spec, inputs = of_bytes(kind, 32, 40, (5, 7), PADDED, 2)
    step = F(spec.arith.weight_steps[0])
    for at in ((0, 0, 0, 0), (0, 1, 0, 0), (33, 39, 3, 2), (63, 17, 2, 1)):
        inputs[1][at] = step * F(-255 if at[0] else 133)
    ran = check_op(device, spec, inputs, consts=(1,), every=True)
    assert any("_rests" in name for name in ran), ran
    inputs[1][:] = step * F(200)
    ran = check_op(device, spec, inputs, consts=(1,), every=True)
    assert not any("_bytes_" in name for name in ran), ran


def test_weights_that_are_no_bytes(device):
    """Integers beyond 9 bits, and numbers between them: the kernel of floats alone."""
    for change in (F(0.004) * 256, F(0.001)):
        spec, inputs = of_bytes(U8, 8, 16, (3, 4), DOUBLED)
        inputs[1][0, 0, 0, 0] = change
        ran = check_op(device, spec, inputs, consts=(1,), every=True)
        assert not any("_bytes_" in name for name in ran), ran


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

"""Transposed convolution in fixed point: every kernel against the numpy reference, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_op, rng

from clnn.arith.mli import MliAffine, MliFixed
from clnn.errors import DTypeError, PlanError
from clnn.ops.conv.transpose import ConvTranspose

GEOMETRIES = {  # kernel, strides, cut off in front, output
    "halves": ((2, 2), (2, 2), (0, 0), (8, 10)),
    "cut": ((3, 4), (2, 1), (1, 2), (7, 6)),
    "apart": ((2, 3), (3, 4), (0, 1), (13, 18)),
}


def integers(shape, dtype, seed):
    ends = np.iinfo(dtype)
    draw = rng(seed)
    anywhere = draw.integers(ends.min, ends.max, shape, dtype, endpoint=True)
    return np.where(
        draw.random(shape) < 0.3,
        draw.choice(np.array([ends.min, ends.max], dtype), shape),
        anywhere,
    )


def operands(types, group=1, ic=6, per=5):
    x, w, b = types.split()
    return lambda kernel: [
        integers((1, ic, 4, 5), x, 1),
        integers((ic, per, *kernel), w, 2),
        integers((per * group,), b, 3),
    ]


ARITHMETICS = {
    "fx16": (MliFixed(16, 4, 15), "int16 int16 int16"),
    "fx8": (MliFixed(8, 4, 9, up=True), "int16 int8 int8"),
    "sa8": (
        MliAffine(24494, 21, 20291, 16, (17000,) * 5, (20, 21, 22, 23, 24), -43, 16),
        "int8 int8 int32",
    ),
    "sa8_full": (
        MliAffine(24494, 21, 20291, 16, (17000,) * 5, (22,) * 5, 127, -128, full=True, up=True),
        "int8 int8 int32",
    ),
}


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("name", ["fx16", "sa8"])
def test_geometries(device, name, geometry):
    arith, types = ARITHMETICS[name]
    kernel, strides, before, outs = GEOMETRIES[geometry]
    spec = ConvTranspose(kernel, strides, (1, 1), before, outs, arith=arith)
    ran = check_op(device, spec, operands(types)(kernel), consts=(1, 2))
    assert len(ran) == 2 and "spread" in ran[0]


@pytest.mark.parametrize("name", ["fx8", "sa8_full"])
def test_arithmetics(device, name):
    arith, types = ARITHMETICS[name]
    kernel, strides, before, outs = GEOMETRIES["cut"]
    spec = ConvTranspose(kernel, strides, (1, 1), before, outs, arith=arith)
    check_op(device, spec, operands(types)(kernel), consts=(1, 2), border=1)


def test_groups(device):
    arith, types = ARITHMETICS["fx16"]
    kernel, strides, before, outs = GEOMETRIES["cut"]
    spec = ConvTranspose(kernel, strides, (1, 1), before, outs, 2, arith=arith)
    check_op(device, spec, operands(types, 2)(kernel), consts=(1, 2))


def test_a_tap_that_meets_no_input_counts_nothing():
    """The reference itself: one pixel, spread over a window of weights 1."""
    arith = MliAffine(16384, 14, 16384, 14, (16384,), (14,), -7, 0)
    spec = ConvTranspose((2, 2), (1, 1), (1, 1), (0, 0), (3, 2), arith=arith)
    x, w = np.full((1, 1, 1, 1), 5, np.int8), np.ones((1, 1, 2, 2), np.int8)
    (y,) = spec.reference(x, w, np.zeros(1, np.int32))
    assert y.reshape(3, 2).tolist() == [[12, 12], [12, 12], [0, 0]]


def test_refusals(device):
    arith, types = ARITHMETICS["fx16"]
    kernel, strides, before, outs = GEOMETRIES["halves"]
    spec = ConvTranspose(kernel, strides, (1, 1), before, outs, arith=arith)
    x, w, b = operands(types)(kernel)
    with pytest.raises(PlanError, match="weights and bias are computed by other nodes"):
        check_op(device, spec, [x, w, b])
    with pytest.raises(DTypeError, match="not its operands"):
        check_op(device, spec, [x.astype(np.int8), w, b], consts=(1, 2))

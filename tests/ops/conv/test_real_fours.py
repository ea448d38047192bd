"""Convolutions of single filters whose products are rounded and added up by fours."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_op, of_cpus, rng

from clnn.arith.real_fours import RealFours, ends_of_fours
from clnn.errors import DTypeError
from clnn.ops.conv.spec import Conv2d
from clnn.ops.shared.window import Window
from clnn.types import F32, I8, I32, U8

WINDOWS = {
    "point": Window((1, 1), (1, 1), (1, 1), (0, 0), (0, 0)),
    "same": Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    "strided": Window((3, 3), (2, 1), (1, 2), (1, 0), (0, 3)),
    "three left": Window((5, 3), (1, 2), (1, 1), (2, 1), (2, 0)),
    "two": Window((1, 2), (1, 1), (1, 1), (0, 0), (0, 1)),
    "large": Window((7, 7), (1, 1), (1, 1), (3, 3), (3, 3)),
}


def given(kind, channels, window, taken=1, size=(9, 11)):
    """Return inputs, weights whose products round, and an arithmetic with a bias for each output."""
    low, at = int(np.iinfo(kind).min), rng(channels)
    x = at.integers(low, low + 256, (2, channels * taken, *size), kind)
    weights = at.normal(0, 1, (channels, taken, *window.kernel)).astype(np.float32)
    offsets = tuple(at.normal(0, 2, channels).astype(np.float32).tolist())
    ends = (I8 if kind == np.int8 else U8, low + 131, 0.7, low + 2, low + 250)
    return [x, weights, None], RealFours(low + 100, 0.0123, *ends, offsets=offsets)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("channels", [3, 16, 37])
@pytest.mark.parametrize("kind", [np.int8, np.uint8])
def test_one_filter_per_channel(device, kind, channels, window):
    inputs, arith = given(kind, channels, WINDOWS[window])
    spec = Conv2d(WINDOWS[window], channels, (), arith)
    ran = check_op(device, spec, inputs, consts=(1,), every=channels == 37)
    assert {name.partition("_r4")[0] for name in ran} == {"depthwise", "conv2d_reference"}, ran


@pytest.mark.parametrize("window", ["same", "three left"])
def test_groups_of_several_channels(device, window):
    """Which only the reference kernel takes; its products go channel by channel."""
    inputs, arith = given(np.int8, 6, WINDOWS[window], taken=3)
    ran = check_op(device, Conv2d(WINDOWS[window], 6, (), arith), inputs, consts=(1,), every=True)
    assert all("reference" in name for name in ran)


def test_no_bias(device):
    inputs, arith = given(np.int8, 8, WINDOWS["same"])
    plain = RealFours(arith.zero, arith.step_in, I8, 3, 0.7, -128, 127)
    ran = check_op(device, Conv2d(WINDOWS["same"], 8, (), plain), inputs, consts=(1,))
    assert not of_cpus(device) or ran[0].startswith("depthwise_r4_s8")


def test_order_of_products():
    """Large ones cancel within a four, so that a small one behind them is lost and one that comes later is not."""
    big = np.float32(2.0**25)  # whose neighbours are 4 away
    factors = [big, 1, -big, 1, 1, big, -big, 1, big, 3, -big]
    window = Window((1, 11), (1, 1), (1, 1), (0, 0), (0, 0))
    weights = np.array(factors, np.float32).reshape(1, 1, 1, 11).repeat(2, 0)
    arith = RealFours(0, 1.0, I8, 0, 1.0, -128, 127)
    ones = np.ones((1, 2, 1, 11), np.int8)
    (found,) = Conv2d(window, 2, (), arith).reference(ones, weights, None)
    # The fours are 1 and 1; 2 and big + 4, of which 2 becomes 4, less big are 8.
    assert found.reshape(-1).tolist() == [8, 8]


def test_ends():
    assert [sum(ends_of_fours(n)) for n in range(1, 9)] == [1, 1, 2, 1, 2, 2, 3, 2]
    assert list(ends_of_fours(7)) == [False, False, False, True, False, True, True]


def test_types_are_checked():
    arith = RealFours(0, 1.0, I8, 0, 1.0, -128, 127)
    with pytest.raises(DTypeError, match="it takes bytes with float32"):
        arith.output(I32, F32)
    with pytest.raises(DTypeError, match="real product of int8 with int8"):
        arith.output(I8, I8)

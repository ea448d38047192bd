"""Convolution in fixed point: every kernel against the numpy reference, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_op, of_cpus, rng, single_node, variant_names
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from targets import without

from clnn.arith.mli import MliAffine, MliFixed
from clnn.errors import DTypeError, PlanError, ShapeError
from clnn.ops.conv.spec import Conv2d
from clnn.ops.shared.window import Window
from clnn.runtime.device.device import select

pytestmark = pytest.mark.dealt  # kernels that are slow to build

SAME = Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
PACKED = [
    *("_vnni4", "_vnni2", "_wide2"),
    *(f"_{how}{sums}" for how in ("madd", "plain") for sums in ("4", "2", "wide2")),
]
POINT = Window((1, 1), (1, 1), (1, 1), (0, 0), (0, 0))


def integers(shape, dtype, seed=0, extreme=False):
    """Return random integers of a type; extreme: mostly its ends, and what is next to zero."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    if extreme:
        return rng(seed).choice(np.array([low, low + 1, -1, 0, 1, high - 1, high], dtype), shape)
    return rng(seed).integers(low, high, shape, dtype, endpoint=True)


def fixed_case(arith, n, ic, oc, h, w, win, group=1, extreme=False, seed=0):
    weight = np.int16 if arith.w_bits == 16 else np.int8
    x = integers((n, ic, h, w), np.int16, seed, extreme)
    weights = integers((oc, ic // group, *win.kernel), weight, seed + 1, extreme)
    bias = integers((oc,), weight, seed + 2, extreme)
    return Conv2d(win, group, (), arith), [x, weights, bias]


def affine(oc, seed=0, **changes):
    """Return sa8 parameters whose products fill the output's range."""
    scales = rng(seed).integers(16384, 32767, oc)
    fracs = rng(seed + 1).integers(20, 26, oc)
    about = {
        "in_scale": 24494,
        "in_frac": 21,
        "out_scale": 20291,
        "out_frac": 16,
        "w_scale": tuple(map(int, scales)),
        "w_frac": tuple(map(int, fracs)),
        "zero_in": -43,
        "zero_out": 16,
    } | changes
    return MliAffine(**about)


def affine_case(arith, n, ic, h, w, win, group=1, extreme=False, seed=0):
    oc = len(arith.w_scale)
    x = integers((n, ic, h, w), np.int8, seed, extreme)
    weights = integers((oc, ic // group, *win.kernel), np.int8, seed + 1, extreme)
    bias = rng(seed + 2).integers(-(2**20), 2**20, oc, np.int32)
    return Conv2d(win, group, (), arith), [x, weights, bias]


@pytest.mark.parametrize("up", [False, True])
@pytest.mark.parametrize(("bits", "shift"), [(16, 15), (16, -3), (8, 9), (8, 33)])
def test_fixed_point_of_a_padded_3x3(device, bits, shift, up):
    spec, inputs = fixed_case(MliFixed(bits, 4, shift, up=up), 1, 3, 21, 5, 7, SAME)
    ran = check_op(device, spec, inputs, consts=(1, 2), border=1)
    assert any("direct" in name for name in ran) and any("reference" in name for name in ran)


def test_lots_of_two_shorts(device):
    spec, inputs = fixed_case(MliFixed(8, 4, 9), 1, 4, 21, 5, 7, SAME)
    ran = check_op(device, spec, inputs, consts=(1, 2))
    assert any(any(way in name for way in PACKED) for name in ran)


@pytest.mark.parametrize("channels", [14, 34, 130, 600])
def test_limbs_of_weights_at_their_ends(device, channels):
    """Sums of 64 bits in two of 32 each, joined after all taps, a row, a tap, or a part of one."""
    spec, inputs = fixed_case(MliFixed(16, 4, 26), 1, channels, 19, 2, 3, SAME, extreme=True)
    inputs[0][0, :, 0], inputs[1][:3] = -32768, -32768
    ran = check_op(device, spec, inputs, consts=(1, 2), only="direct")
    assert any(any(way in name for way in PACKED) for name in ran)


def test_sums_that_saturate_with_their_bias(device):
    """A bias far beyond the output: the addition saturates in 32 bits, before the shift."""
    spec, inputs = fixed_case(MliFixed(8, 24, 18), 1, 4, 16, 3, 4, SAME, extreme=True)
    assert not spec.arith.refine(*inputs[1:]).safe
    check_op(device, spec, inputs, consts=(1, 2))


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("up", [False, True])
def test_affine_bytes_of_a_padded_3x3(device, up, full):
    arith = affine(21, up=up, full=full, low=-20, high=100)
    spec, inputs = affine_case(arith, 1, 8, 5, 7, SAME)
    ran = check_op(device, spec, inputs, consts=(1, 2), border=1)
    assert any(any(way in name for way in PACKED) for name in ran) or not of_cpus(device)


@pytest.mark.parametrize("lacks", [("x86_vnni",), ("x86_vnni", "x86_madd")], ids=["madd", "plain"])
@pytest.mark.parametrize("kind", ["4", "2", "wide2"])
def test_processors_that_lack_instructions(any_device, kind, lacks, monkeypatch):
    """Bytes, shorts by bytes, and shorts by shorts at their ends, as other processors would add them."""
    without(monkeypatch, *lacks)
    if kind == "4":
        spec, inputs = affine_case(affine(21), 1, 8, 5, 7, SAME, extreme=True)
    else:
        arith = MliFixed(16, 4, 26) if kind == "wide2" else MliFixed(8, 4, 9)
        spec, inputs = fixed_case(arith, 1, 6, 21, 3, 4, SAME, extreme=True)
        inputs[0][0, :, 0], inputs[1][:3] = -32768, np.iinfo(inputs[1].dtype).min
    ran = check_op(any_device, spec, inputs, consts=(1, 2))
    known = len(lacks) == 1 and select(any_device).caps.x86_madd
    assert any(f"_{'madd' if known else 'plain'}{kind}" in name for name in ran), ran


def test_products_of_single_bytes(device):
    """Five channels in a group are not packed in fours: products are summed one by one."""
    spec, inputs = affine_case(
        affine(16), 2, 10, 6, 6, Window((3, 3), (2, 2), (1, 1), (1, 1), (0, 0)), group=2
    )
    ran = check_op(device, spec, inputs, consts=(1, 2))
    assert not any(any(way in name for way in PACKED) for name in ran)


def test_groups_and_channels_without_zero_point(device):
    spec, inputs = affine_case(affine(24, zero_in=0), 1, 8, 4, 6, SAME, group=2)
    check_op(device, spec, inputs, consts=(1, 2))


@pytest.mark.parametrize("bits", [16, 8])
def test_depthwise_in_fixed_point(device, bits):
    spec, inputs = fixed_case(MliFixed(bits, 2, 11), 1, 16, 16, 6, 9, SAME, group=16)
    ran = check_op(device, spec, inputs, consts=(1, 2))
    assert any(name.startswith("depthwise") for name in ran)


def test_depthwise_of_affine_bytes(device):
    spec, inputs = affine_case(affine(32), 2, 32, 7, 5, SAME, group=32)
    assert any(
        name.startswith("depthwise") for name in check_op(device, spec, inputs, consts=(1, 2))
    )


def test_the_extreme_sums_wrap(device):
    """600 products of 2**22 leave 32 bits and come out negative."""
    spec, inputs = fixed_case(MliFixed(8, 0, 12), 1, 600, 16, 1, 1, POINT)
    inputs[0][:], inputs[1][:] = -32768, -128
    assert (spec.reference(*inputs)[0] == -32768).all()
    check_op(device, spec, inputs, consts=(1, 2))


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**31), st.sampled_from([-128, 0, 127]), st.booleans())
def test_extreme_bytes_and_any_scale(device, seed, zero, extreme):
    """Scales, shifts and data at their ends: tables hold them, so that two kernels serve all."""
    random = np.random.default_rng(seed)
    arith = affine(
        16,
        zero_in=zero,
        w_scale=tuple(map(int, random.integers(1, 32768, 16))),
        w_frac=tuple(map(int, random.integers(-40, 60, 16))),
    )
    spec, inputs = affine_case(arith, 1, 4, 4, 4, POINT, extreme=extreme, seed=seed % 1000)
    inputs[2] = integers((16,), np.int32, seed % 997, extreme=True)
    check_op(device, spec, inputs, consts=(1, 2))


def test_weights_of_other_nodes_are_refused(device):
    spec, inputs = affine_case(affine(16), 1, 4, 4, 4, POINT)
    with pytest.raises(PlanError, match="constants"):
        variant_names(single_node(spec, inputs), device)


def test_wrong_types_are_refused():
    spec, inputs = affine_case(affine(16), 1, 4, 4, 4, POINT)
    with pytest.raises(DTypeError, match="int8"):
        single_node(spec, [inputs[0].astype(np.int16), *inputs[1:]])
    with pytest.raises(DTypeError, match="must be int32"):
        single_node(spec, [*inputs[:2], inputs[2].astype(np.int8)])
    with pytest.raises(ShapeError, match=r"must be \(16,\)"):
        single_node(spec, [*inputs[:2], np.zeros((16, 4, 4), np.int32)])

"""Ops of the OpenVX extension on devices against their numpy references, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_op, rng
from hypothesis import given, settings
from hypothesis import strategies as st

from clnn.arith.openvx import Format, Scale, activation_table, multiply, shifted, softmax
from clnn.arith.openvx_device import (
    VxAverage,
    VxClamp,
    VxMac,
    VxMatrix,
    VxProduct,
    VxSum,
    VxTable,
)
from clnn.errors import DTypeError, ShapeError
from clnn.ops.conv.spec import Conv2d
from clnn.ops.elementwise.fixed_map import FixedMap
from clnn.ops.rows.openvx_norm import OpenVxNorm
from clnn.ops.rows.openvx_softmax import OpenVxSoftmax
from clnn.ops.shared.window import Window
from clnn.types import F32, I8, I16, I32, U8, TensorType

Q78, S8, BYTE = Format(I16, 8), Format(I8), Format(U8)
NHWC = {"i0": (0, 2, 3, 1), "o0": (0, 2, 3, 1)}


def extreme(form, shape, seed=0):
    """Return elements over the whole range, half of them at its ends or about 0."""
    found = rng(seed).integers(form.low, form.high + 1, shape)
    edges = np.array([form.low, form.low + 1, form.high, form.high - 1, 0, 1, form.low // 2])
    picked = rng(seed + 1).choice(edges, shape)
    return np.where(rng(seed + 2).random(shape) < 0.5, picked, found).astype(form.dtype.numpy)


RULES = {  # as the conformance suite and as the specification have it
    "suite sat": VxMac(Q78, 8, "biased", False, 16, channels=True),
    "suite zero": VxMac(Q78, 8, "zero", False, 16),
    "suite wrap": VxMac(Q78, 8, "biased", True, 16, channels=True),
    "suite bytes": VxMac(BYTE, 0, "zero", False, 8, True, channels=True),
    "suite s8": VxMac(S8, 0, "zero", False, 8, channels=True),
    "even": VxMac(Q78, 8, "even", False, 20, bias_first=False),
    "even wide": VxMac(Q78, 8, "even", False, 40, bias_first=False, wide=True),
    "integers wide": VxMac(Format(I16), 0, "zero", False, 62, bias_first=False, wide=True),
    "wrap s8": VxMac(S8, 0, "zero", True, 32, bias_first=False),
    "integers wrap": VxMac(Format(I16), 0, "zero", True, 32),
    "even wrap": VxMac(Q78, 8, "even", True, 32, bias_first=False),
}
BOTH = ("suite bytes", "even wide", "even wrap")


@pytest.mark.parametrize("name", RULES)
def test_convolutions(device, name):
    """Constant weights; results saturate in many places. Half of the rules in one kernel only."""
    arith = RULES[name]
    form = arith.out
    x, w = extreme(form, (2, 4, 5, 6)), extreme(form, (9, 4, 3, 2), 3)
    bias = extreme(form, (9,), 5).astype(np.int32)
    window = Window((3, 2), (1, 2), (1, 1), (1, 0), (1, 1))
    only = None if name in BOTH else "direct"
    check_op(
        device, Conv2d(window, arith=arith), [x, w, bias], consts=(1, 2), orders=NHWC, only=only
    )


def test_small_weights_need_no_clamp(device):
    arith = RULES["suite sat"]
    x, w = extreme(Q78, (1, 4, 3, 4)), np.clip(extreme(Q78, (3, 4, 1, 1), 3), -255, 255)
    assert arith.refine(w, None).small and not arith.refine(w * 2, None).small
    point = Window((1, 1), (1, 1), (1, 1), (0, 0), (0, 0))
    bias = extreme(Q78, (3,), 5).astype(np.int32)
    check_op(
        device, Conv2d(point, arith=arith), [x, w, bias], consts=(1, 2), orders=NHWC, only="direct"
    )


def test_weights_at_run_time_and_a_bias_for_each_place(device):
    arith = RULES["suite sat"]
    x, w = extreme(Q78, (1, 3, 4, 5)), extreme(Q78, (5, 3, 2, 2), 3)
    bias = extreme(Q78, (5, 3, 4), 5).astype(np.int32)
    window = Window((2, 2), (1, 1), (1, 1), (0, 0), (0, 0))
    check_op(device, Conv2d(window, arith=arith), [x, w, bias])


def test_convolution_without_a_bias(device):
    window = Window((1, 1), (1, 1), (1, 1), (0, 0), (0, 0))
    for name in ("wrap s8", "even"):
        arith = RULES[name]
        without = VxMac(**{**arith.__dict__, "biased": False})
        x, w = extreme(arith.out, (2, 8, 1, 1)), extreme(arith.out, (17, 8, 1, 1), 3)
        check_op(device, Conv2d(window, arith=without), [x, w, None], consts=(1,), orders=NHWC)


@pytest.mark.parametrize("form", [Q78, BYTE])
def test_averages(device, form):
    window = Window((2, 3), (2, 1), (1, 1), (1, 1), (1, 1))
    x, ones = extreme(form, (1, 8, 5, 6)), np.ones((8, 1, 2, 3), np.int8)
    check_op(
        device, Conv2d(window, 8, arith=VxAverage(form, 6)), [x, ones], consts=(1,), orders=NHWC
    )


@pytest.mark.parametrize("wide", [False, True])
def test_matrices(device, wide):
    point = Window((1, 1), (1, 1), (1, 1), (0, 0), (0, 0))
    x, w = extreme(Q78, (1, 7, 5, 1)), extreme(Q78, (4, 7, 1, 1), 3)
    if not wide:
        x, w = (np.clip(a, -2000, 2000) for a in (x, w))
    bias = extreme(Q78, (4, 5, 1), 5).astype(np.int32)
    check_op(device, Conv2d(point, arith=VxMatrix(Q78, 8, wide)), [x, w, bias])


@pytest.mark.parametrize("form", [Q78, S8, BYTE])
def test_elements(device, form):
    """Sums, products and clamps: overflow policies, rounding, scales below and above 1."""
    x, y = extreme(form, (3, 70)), extreme(form, (3, 70), 7)
    shift = form.fraction
    functions = [
        VxSum(form, True),
        VxSum(form, False, -1),
        VxProduct(form, Scale.of(1 / 255), shift, False, True, 53 if shift else 24),
        VxProduct(form, Scale.of(0.5), shift, True, True),
        VxProduct(form, Scale.of(3.7), shift, False, False),
        VxProduct(form, Scale.of(2.0**70), shift, False, False),
        VxProduct(form, Scale.of(2.0**-90), shift, True, True),
    ]
    for function in functions if form is Q78 else functions[1:3]:
        check_op(device, FixedMap(function), [x, y])
    check_op(device, FixedMap(VxClamp(form, 0, 100, True)), [x])


def test_broadcast_sum(device):
    x, y = extreme(Q78, (4, 1, 6)), extreme(Q78, (1, 5, 6), 7)
    check_op(device, FixedMap(VxSum(Q78, False)), [x, y])


def test_tables(device):
    everything = Q78.every().astype(np.int16)
    table = activation_table("logistic", 0, 0, Q78, BYTE, False)
    check_op(device, FixedMap(VxTable.of(I16, U8, Q78.low, table)), [everything])
    short = VxTable.of(I16, I16, -5, np.arange(100, 111))
    kept = extreme(Q78, (40,))
    check_op(device, FixedMap(short), [np.arange(-20, 20, dtype=np.int16), kept])
    check_op(
        device,
        FixedMap(VxTable.of(U8, F32, 0, np.arange(256) / 7)),
        [np.arange(256, dtype=np.uint8)],
    )
    with pytest.raises(DTypeError, match="11 entries from -5"):
        FixedMap(short).infer([TensorType((3,), I16)])


@pytest.mark.parametrize("conformance", [False, True])
@pytest.mark.parametrize("form", [Q78, BYTE])
def test_softmax(device, form, conformance):
    x = extreme(form, (3, 11, 2, 4))
    x[1] //= 200  # rows whose exponentials do not overflow
    spec = OpenVxSoftmax(1, form, form, conformance)
    check_op(device, spec, [x], orders={"i0": (0, 2, 3, 1)})


@pytest.mark.parametrize("count", [1, 2, 7, 64])
def test_softmax_of_exponentials_below_the_smallest_normal_number(device, count):
    """As C gives them: one such element alone is 1; rows from nothing but zeros to normal numbers."""
    rng = np.random.default_rng(count)
    x = rng.integers(-26800, -21500, (500, count)).astype(np.int16)
    x[0], x[1, 0], x[2] = -24918, 3000, -32768
    spec = OpenVxSoftmax(1, Q78, Q78, True)
    check_op(device, spec, [x])
    if count == 1:
        assert spec.reference(x)[0][0] == 256


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("sample,beta", [(True, 0.6), (False, 0.75), (False, 0.5), (False, 1.0)])
def test_normalisation(device, across, sample, beta):
    x = extreme(Q78, (2, 5, 3, 4))
    x[1] //= 64
    check_op(device, OpenVxNorm(3, 0.8, beta, across, Q78, Q78, sample), [x], orders=NHWC)


def test_other_types_are_refused():
    window = Window((1, 1), (1, 1), (1, 1), (0, 0), (0, 0))
    with pytest.raises(DTypeError, match="int8"):
        Conv2d(window, arith=RULES["even"]).infer(
            [TensorType((1, 2, 1, 1), I8), TensorType((3, 2, 1, 1), I8), None]
        )
    with pytest.raises(DTypeError, match="int32"):
        FixedMap(VxSum(Q78, True)).infer([TensorType((1,), I32)] * 2)
    with pytest.raises(DTypeError, match="int8"):
        OpenVxSoftmax(0, Q78, Q78).infer([TensorType((3,), I8)])
    with pytest.raises(ShapeError, match="axis 2"):
        OpenVxSoftmax(2, Q78, Q78).infer([TensorType((3,), I16)])
    with pytest.raises(DTypeError, match=r"Q7\.8"):
        OpenVxNorm(3, 1.0, 0.5, True, S8, S8, True).infer([TensorType((1, 1, 1, 1), I8)])


# The formulas themselves, by hand


def test_roundings():
    values = np.array([384, 128, -128, -129, -300, -384])
    np.testing.assert_array_equal(shifted(values, 8, "zero"), [1, 0, 0, 0, -1, -1])
    np.testing.assert_array_equal(shifted(values, 8, "even"), [2, 0, 0, -1, -1, -2])
    np.testing.assert_array_equal(shifted(values, 8, "biased"), [2, 1, 0, 0, 0, -1])


def test_one_convolution_by_hand():
    """1.5 * 1.5 and -0.004 * 0.5 in Q7.8: products are rounded one by one."""
    columns = np.array([384, -1]).reshape(1, 1, 1, 2, 1)
    weights = np.array([384, 128]).reshape(1, 1, 1, 2)
    for name, want in (("suite sat", 576), ("even", 576)):
        got = RULES[name].reference(columns, weights, np.array([0]))
        assert got.item() == want, name
    minus = RULES["suite sat"].reference(-columns, weights, np.array([0])).item()
    assert (minus, RULES["even"].reference(-columns, weights, np.array([0])).item()) == (-574, -576)


def test_sums_saturate_where_the_rule_says():
    """Two channels of +127 and one of -128, which becomes -32767: clamped after each, or once."""
    columns = np.array([32767, 32767, -32768]).reshape(1, 1, 3, 1, 1)
    ones = np.full((1, 1, 3, 1), 256)
    assert RULES["suite sat"].reference(columns, ones, None).item() == 0
    assert RULES["even"].reference(columns, ones, None).item() == 32766


def test_products_of_fractions_by_hand():
    def product(x, y, scale, even):
        return multiply(np.array([x]), np.array([y]), Scale.of(scale), Q78, 8, False, even, 0)[0]

    assert [product(256, 3, 0.5, even) for even in (False, True)] == [1, 2]
    assert [product(-256, 3, 0.5, even) for even in (False, True)] == [-1, -2]
    assert product(-32768, -32768, 1.0, False) == 32767


@settings(max_examples=300, deadline=None)
@given(
    st.integers(-32768, 32767),
    st.integers(-32768, 32767),
    st.floats(0, 300, width=32),
    st.booleans(),
    st.booleans(),
)
def test_products_are_those_of_floating_point(x, y, scale, even, wrap):
    """bits 53 and 24 give the product as double and single precision round it."""
    factor = np.float64(np.float32(scale)) / 256
    real = np.rint(x * y * factor) if even else np.trunc(x * y * factor)
    got = multiply(np.array(x), np.array(y), Scale.of(scale), Q78, 8, wrap, even, 53)
    assert got == Q78.convert(np.int64(real), wrap)
    small, other = x % 256, y % 256
    real = np.float64(np.float32(small * other) * np.float32(scale))
    real = np.rint(real) if even else np.trunc(real)
    got = multiply(np.array(small), np.array(other), Scale.of(scale), BYTE, 0, wrap, even, 24)
    assert got == BYTE.convert(np.int64(real), wrap)


@pytest.mark.parametrize(
    "spec",
    [
        OpenVxSoftmax(1, Q78, Q78),
        OpenVxNorm(3, 0.8, 0.75, True, Q78, Q78, True),
        FixedMap(VxClamp(Q78, -7, 900)),
    ],
)
def test_code_for_gpus(device, as_gpu, spec):
    check_op(device, spec, [extreme(Q78, (2, 5, 3, 7))], orders=NHWC)


def test_softmax_by_hand():
    x = np.array(
        [[0, 0], [256, 25600], [0, 25600]], np.int16
    ).T  # 100.0 overflows without a maximum
    spec = softmax(x, 1, Q78, Q78, False)
    np.testing.assert_array_equal(spec, [[54, 147, 54], [0, 128, 128]])
    suite = softmax(x, 1, Q78, Q78, True)
    np.testing.assert_array_equal(suite, [[54, 147, 54], [0, -32768, -32768]])


@pytest.mark.parametrize(
    "name,a,b,x,want",
    [
        ("logistic", 0, 0, 0, 128),
        ("tanh", 2, 1, 32767, 512),
        ("relu", 0, 0, -5, 0),
        ("brelu", 1, 0, 700, 256),
        ("softrelu", 0, 0, 0, 177),
        ("abs", 0, 0, -32768, 32767),
        ("square", 0, 0, -512, 1024),
        ("sqrt", 0, 0, 1024, 512),
        ("sqrt", 0, 0, -4, 0),
        ("linear", -2, 3, 256, 256),
    ],
)
def test_activations_by_hand(name, a, b, x, want):
    table = activation_table(name, a, b, Q78, Q78, False)
    assert table[x - Q78.low] - want in ((0, -1) if name == "tanh" else (0,))

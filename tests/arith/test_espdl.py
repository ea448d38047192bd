"""ESP-DL's arithmetic on devices, against integers and fractions computed one by one in Python."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import floor

import numpy as np
import pytest
from harness import check_op, rng, single_node
from hypothesis import given, settings
from hypothesis import strategies as st

from clnn.arith import espdl_maps as maps
from clnn.arith.espdl import (
    FLOOR,
    GRAIN,
    HALF_EVEN,
    HALF_UP,
    ROUNDINGS,
    EspLanes,
    EspProducts,
    in_lanes,
    moved,
)
from clnn.errors import DTypeError
from clnn.ops.conv.spec import Conv2d
from clnn.ops.elementwise.fixed_map import FixedMap
from clnn.ops.pool.spec import Pool
from clnn.ops.shared.window import Window
from clnn.options import Options
from clnn.runtime.doctor.selection import select_device
from clnn.runtime.run.session import Session

NHWC = {"i0": (0, 2, 3, 1), "o0": (0, 2, 3, 1)}
WINDOW = Window((3, 2), (1, 2), (1, 1), (1, 0), (1, 1))
ROUND = {FLOOR: floor, HALF_UP: lambda v: floor(v + Fraction(1, 2)), HALF_EVEN: round}


def shifted(value, n, rounding, bits):
    """Return value / 2**n, rounded and saturated."""
    whole = ROUND[rounding](Fraction(int(value)) / Fraction(2) ** int(n))
    return max(-(1 << bits - 1), min((1 << bits - 1) - 1, whole))


def extreme(shape, dtype=np.int8, seed=0):
    """Return integers over the whole range of a type, half of them at its ends or about 0."""
    ends = np.iinfo(dtype)
    found = rng(seed).integers(ends.min, ends.max + 1, shape)
    picked = rng(seed + 1).choice([ends.min, ends.min + 1, ends.max, -1, 0, 1], shape)
    return np.where(rng(seed + 2).random(shape) < 0.5, picked, found).astype(dtype)


def sums(x, w, window=WINDOW, lane=0, begin=None):
    """Return sums of products (n, oc, h, w) as Python integers; of lanes, saturated one by one."""
    (n, ic, ih, iw), (oc, _, kh, kw) = x.shape, w.shape
    outs = window.output((ih, iw))
    found = np.zeros((n, oc, *outs), object)
    for at in product(*map(range, found.shape)):
        total = 0 if begin is None else int(begin[at[1]])
        for ky, kx, c in product(range(kh), range(kw), range(ic)):
            y = at[2] * window.strides[0] - window.before[0] + ky
            z = at[3] * window.strides[1] - window.before[1] + kx
            if 0 <= y < ih and 0 <= z < iw:
                total += int(x[at[0], c, y, z]) * int(w[at[1], c, ky, kx])
            if lane:
                total = max(-(1 << lane - 1), min((1 << lane - 1) - 1, total))
        found[at] = total
    return found


def wanted(arith, x, w, bias):
    """Return the results of an arithmetic, by its documentation."""
    found = sums(x, w)
    shifts = np.broadcast_to(arith.shifts, (len(w),))
    out = np.zeros(found.shape, x.dtype)
    for at in product(*map(range, found.shape)):
        k, total = at[1], found[at]
        if arith.late:
            total = shifted(total, shifts[k], arith.rounding, 64) + int(bias[k])
        else:
            total += int(bias[k])
            if arith.grain and shifts[k] < arith.grain:
                total = total >> arith.grain << arith.grain
            total = shifted(total, shifts[k], arith.rounding, 64)
        out[at] = max(arith.limits[0], min(arith.limits[1], total))
    return out


SHIFTS = (13, 9, 0, -1, 16, 3, 7, 5, 20)
ARITHS = {
    "1.x int16": EspProducts(16, (13,), FLOOR, late=True),
    "1.x int16 left": EspProducts(16, (-2,), FLOOR, late=True),
    "1.x int8": EspProducts(8, (7,), FLOOR, late=True),
    "1.x int8 channels": EspProducts(8, SHIFTS, FLOOR, late=True),
    "3.x int8 up": EspProducts(8, (6,), HALF_UP),
    "3.x int8 even": EspProducts(8, (9,), HALF_EVEN, low=0),
    "3.x int8 left": EspProducts(8, (-3,), HALF_EVEN),
    "3.x int8 channels": EspProducts(8, SHIFTS, FLOOR, grain=GRAIN),
    "3.x int16 up": EspProducts(16, (14,), HALF_UP, low=0),
    "3.x int16 even": EspProducts(16, (16,), HALF_EVEN),
    "3.x int16 channels": EspProducts(16, SHIFTS, HALF_UP),
    "3.x int16 by int8": EspProducts(16, (9,), HALF_EVEN, w_bits=8),
}


@pytest.mark.parametrize("name", ARITHS)
def test_sums_of_products(device, name):
    arith = ARITHS[name]
    dtype = np.int8 if arith.bits == 8 else np.int16
    weights = np.int8 if arith.w_bits == 8 else dtype
    x, w = extreme((2, 4, 5, 6), dtype), extreme((9, 4, 3, 2), weights, 3)
    most = (
        2 ** (arith.bits - 1)
        if arith.late
        else 2 ** (arith.bits + (arith.w_bits or arith.bits) - 2)
    )
    if arith.shift is not None and arith.shift < 0:
        x, w, most = (x // 2 ** (arith.bits - 4)).astype(dtype), np.clip(w, -2, 2), 9
    kind = np.int64 if arith.bits == 16 and not arith.late else np.int32
    bias = rng(5).integers(-most, most, 9).astype(kind)
    spec = Conv2d(WINDOW, arith=arith)
    (made,) = spec.reference(x, w, bias)
    assert made.dtype == dtype and (made == wanted(arith, x, w, bias)).all()
    assert len(np.unique(made)) > 20, "most results saturate"
    check_op(device, spec, [x, w, bias], consts=(1, 2), orders=NHWC)


@pytest.mark.parametrize("name", ["1.x int16", "3.x int8 even", "3.x int8 channels"])
def test_random_extremes(device, name):
    """One session each; inputs are the ends of the range, their neighbours, and any others."""
    arith = ARITHS[name]
    dtype = np.int8 if arith.bits == 8 else np.int16
    ends = np.iinfo(dtype)
    w, bias = extreme((9, 3, 3, 2), dtype, 3), rng(5).integers(-999, 999, 9).astype(np.int32)
    shape = (1, 3, 4, 4)
    graph = single_node(Conv2d(WINDOW, arith=arith), [np.zeros(shape, dtype), w, bias], (1, 2))
    corners = st.sampled_from([ends.min, ends.min + 1, ends.max, ends.max - 1, -1, 0, 1])
    element = corners | st.integers(ends.min, ends.max)

    with Session(graph, select_device(device), Options()) as session:

        @given(st.lists(element, min_size=48, max_size=48))
        @settings(max_examples=25, deadline=None)
        def check(values):
            x = np.array(values, dtype).reshape(shape)
            assert (session({"i0": x})["o0"] == wanted(arith, x, w, bias)).all()

        check()


def test_a_bias_beyond_32_bits(device):
    arith = EspProducts(16, (30,), HALF_EVEN)
    x, w = extreme((1, 4, 5, 6), np.int16), extreme((3, 4, 3, 2), np.int16, 3)
    bias = np.array([2**40 + 2**31 + 7, -(2**41) - 5, 2**29], np.int64)
    spec = Conv2d(WINDOW, arith=arith)
    assert (spec.reference(x, w, bias)[0] == wanted(arith, x, w, bias)).all()
    check_op(device, spec, [x, w, bias], consts=(1, 2), orders=NHWC)


def test_one_filter_for_each_channel(device):
    for arith, dtype in ((ARITHS["1.x int16"], np.int16), (ARITHS["3.x int8 channels"], np.int8)):
        x, w = extreme((1, 9, 6, 7), dtype), extreme((9, 1, 3, 2), dtype, 3)
        bias = rng(5).integers(-99, 99, 9).astype(np.int32)
        spec = Conv2d(WINDOW, 9, arith=arith)
        made = spec.reference(x, w, bias)[0]
        for k in range(9):
            one = EspProducts(
                arith.bits, arith.shifts[k % len(arith.shifts) :][:1], arith.rounding, arith.late
            )
            one = EspProducts(one.bits, one.shifts, one.rounding, one.late, grain=arith.grain)
            part = wanted(one, x[:, k : k + 1], w[k : k + 1], bias[k : k + 1])
            assert (made[:, k : k + 1] == part).all()
        check_op(device, spec, [x, w, bias], consts=(1, 2), orders=NHWC)


def test_lanes_of_twenty_bits_saturate_product_by_product(device):
    x, w = extreme((1, 40, 5, 4)), extreme((5, 40, 3, 2), seed=3)
    bias = np.array([0, 2**18, -(2**18), 2**19 + 5, 2**25 - 1], np.int32)
    plain = EspProducts(8, (12,), HALF_UP)
    lanes = in_lanes(plain, w, bias)
    assert isinstance(lanes, EspLanes)
    begin = ((bias.astype(np.int64) + 2**19) % 2**20) - 2**19
    found = sums(x, w, lane=20, begin=begin)
    exact = np.vectorize(lambda v: shifted(v, 12, HALF_UP, 8), otypes=[np.int8])(found)
    spec = Conv2d(WINDOW, arith=lanes)
    made = spec.reference(x, w, bias)[0]
    assert (made == exact).all()
    assert (made != Conv2d(WINDOW, arith=plain).reference(x, w, bias)[0]).any()
    check_op(device, spec, [x, w, bias], consts=(1, 2), orders=NHWC)
    x, w = extreme((1, 16, 6, 6)), extreme((16, 1, 3, 2), seed=3)
    far = np.full(16, 2**19 - 9, np.int32)
    deep = Conv2d(WINDOW, 16, arith=in_lanes(plain, w, far))
    check_op(device, deep, [x, w, far], consts=(1, 2), orders=NHWC)


def test_lanes_that_hold_all_sums_change_nothing():
    plain, w = EspProducts(8, (9,)), np.full((2, 500, 1, 1), 1, np.int8)
    assert in_lanes(plain, w, None) is plain
    assert in_lanes(plain, w * 9, None) is not plain
    with pytest.raises(DTypeError, match="bias before shifts"):
        in_lanes(ARITHS["1.x int8"], w, None)


@given(
    st.integers(-(2**31), 2**31 - 1) | st.sampled_from([-(2**63), 2**63 - 1, 0]),
    st.integers(-20, 70),
    st.sampled_from(ROUNDINGS),
)
@settings(max_examples=300, deadline=None)
def test_shifts_round_as_fractions_do(value, n, rounding):
    found = int(np.clip(moved(np.int64(value), n, rounding), -32768, 32767))
    assert found == shifted(value, n, rounding, 16)


def single(value, rounding):
    """Return a float32 number rounded to an integer; ties up is the addition of a half in float32."""
    return floor(np.float32(value + np.float32(0.5))) if rounding == HALF_UP else round(value)


EDGES = {
    8: np.array([-128, -127, -65, -64, -3, -1, 0, 1, 2, 63, 64, 127], np.int8),
    16: np.array([-32768, -32767, -16385, -300, -1, 0, 1, 2, 255, 16384, 32766, 32767], np.int16),
}


def pairs(bits, seed=0):
    """Return all pairs of edges, and random ones behind them."""
    edges, dtype = EDGES[bits], EDGES[bits].dtype
    a, b = (m.reshape(-1) for m in np.meshgrid(edges, edges))
    return [np.concatenate([m, extreme(47, dtype, seed + k)]) for k, m in enumerate((a, b))]


def compare(device, function, operands, one):
    """Compare a function on a device with a function of one pair of integers."""
    spec = FixedMap(function)
    made = spec.reference(*operands)[0]
    exact = [one(*(v.item() for v in pair)) for pair in zip(*operands, strict=True)]
    assert made.tolist() == exact
    check_op(device, spec, operands)


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_functions_of_two(device, bits, rounding):
    a, b = pairs(bits)
    scale = Fraction(2)
    for exponents, result, minus in (((-7, -7), -7, True), ((-5, -9), -4, False)):
        compare(
            device,
            maps.total(bits, exponents, result, minus, rounding),
            [a, b],
            lambda x, y, e=exponents, r=result, m=minus: shifted(
                (x * scale ** e[0] + (-y if m else y) * scale ** e[1]) * scale**20,
                20 + r,
                rounding,
                bits,
            ),
        )
    compare(
        device,
        maps.EspProduct(bits, bits - 2, rounding),
        [a, b],
        lambda x, y: shifted(x * y, bits - 2, rounding, bits),
    )
    compare(
        device,
        maps.EspSlope(bits, bits - 1, 1, rounding),
        [a, b],
        lambda x, y: (
            shifted(x * y, bits - 1, FLOOR, bits) if x < 0 else shifted(x, 1, rounding, bits)
        ),
    )


@pytest.mark.parametrize("rounding", [HALF_UP, HALF_EVEN])
def test_products_of_shorts_are_rounded_in_single_precision(device, rounding):
    a, b = pairs(16)
    function = maps.product(16, (-10, -9), -7, rounding)
    assert function.single

    def one(x, y):
        scaled = np.float32(x * y) * np.float32(2.0**-12)
        return max(-32768, min(32767, single(scaled, rounding)))

    compare(device, function, [a, b], one)
    assert not maps.product(8, (-10, -9), -7, rounding).single


@pytest.mark.parametrize("sizes", [(8, 8), (8, 16), (16, 8), (16, 16)])
@pytest.mark.parametrize("shift", [0, 3, -4, 17])
def test_requantisation(device, sizes, shift):
    (x, _), rounding = pairs(sizes[0]), HALF_EVEN if shift == 3 else HALF_UP
    function = maps.EspRequantise(sizes, shift, rounding)
    compare(device, function, [x], lambda v: shifted(v, shift, rounding, sizes[1]))


def test_left_shifts_of_slopes_saturate(device):
    a, b = pairs(8)
    for shift in (0, -3, -30):
        function = maps.EspSlope(8, shift)
        compare(
            device,
            function,
            [a, b],
            lambda x, y, s=shift: shifted(x * y, s, FLOOR, 8) if x < 0 else x,
        )


@pytest.mark.parametrize("rounding", [HALF_UP, HALF_EVEN])
def test_quantisation_of_real_numbers(device, rounding):
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 3.49, 1e9, -1e9, np.inf, -np.inf, np.nan], np.float32)
    function = maps.EspQuantise(8, 0, rounding)
    exact = [0, 2, 2, 0, -2] if rounding == HALF_EVEN else [1, 2, 3, 0, -1]
    assert FixedMap(function).reference(x)[0].tolist() == [*exact, 3, 127, -128, 127, -128, 0]
    check_op(device, FixedMap(function), [x])
    check_op(device, FixedMap(maps.EspQuantise(16, -9, rounding)), [x / 77])


@pytest.mark.parametrize("rounding", [HALF_UP, HALF_EVEN])
def test_tables(device, rounding):
    bytes_ = np.arange(-128, 128).astype(np.int8)
    entries = rng().integers(-128, 128, 256).astype(np.int8)
    spec = FixedMap(maps.lookup(entries))
    assert (spec.reference(bytes_)[0] == entries).all()
    check_op(device, spec, [bytes_])
    shorts = pairs(16)[0]
    for count, step in ((257, 8), (2**16, 0)):
        entries = rng(1).integers(-32768, 32768, count).astype(np.int16)
        function = maps.table_of(entries, rounding)
        places = [shifted(int(v) + 32768, step, rounding, 64) for v in shorts]
        assert FixedMap(function).reference(shorts)[0].tolist() == entries[places].tolist()
        check_op(device, FixedMap(function), [shorts])
    with pytest.raises(DTypeError, match="300 entries"):
        maps.table_of(np.zeros(300, np.int16), rounding)


def test_functions_as_tables(device):
    def sigmoid(v):
        return 1 / (1 + np.exp(-v))

    bytes_ = np.arange(-128, 128).astype(np.int8)
    made = FixedMap(maps.tabulated(8, -5, -8, sigmoid, HALF_UP)).reference(bytes_)[0]
    exact = np.floor(sigmoid(bytes_ / 32.0) * 256 + 0.5).clip(-128, 127)
    assert (made == exact).all() and made.max() == 127
    shorts = np.arange(-32768, 32768, 7).astype(np.int16)
    function = maps.tabulated(16, -12, -15, np.tanh, HALF_EVEN)
    exact = np.rint(np.float32(np.tanh(shorts / 4096.0) * 32768)).clip(-32768, 32767)
    assert (FixedMap(function).reference(shorts)[0] == exact).all()
    check_op(device, FixedMap(function), [shorts])


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("shift", [0, 2, -3])
def test_averages(device, bits, rounding, shift):
    """Windows that padding cuts; counted with it where the shift is 2."""
    x = extreme((2, 5, 7, 6), EDGES[bits].dtype)
    window = Window((3, 2), (2, 1), (1, 1), (1, 1), (1, 0))
    rule = maps.EspAverage(bits, shift, rounding)
    spec = Pool(window, "average", shift == 2, rule=rule)
    made = spec.reference(x)[0]
    for at in product(*map(range, made.shape)):
        y, z = at[2] * 2 - 1, at[3] - 1
        part = x[at[0], at[1], max(y, 0) : y + 3, max(z, 0) : z + 2].astype(int)
        count, total = 6 if shift == 2 else part.size, int(part.sum())
        if rounding == FLOOR:
            whole = floor(Fraction(total, count) / Fraction(2) ** shift)
        else:
            rate = np.float32(1) / np.float32(count) * np.float32(2.0**-shift)
            scaled = np.float32(total) * rate
            whole = single(scaled, rounding)
        assert made[at] == max(-(1 << bits - 1), min((1 << bits - 1) - 1, whole))
    check_op(device, spec, [x], border=1, orders=NHWC)
    check_op(device, spec, [x])


def test_operands_of_other_types_are_refused():
    with pytest.raises(DTypeError, match="int8 with int8"):
        Conv2d(WINDOW, arith=EspProducts(16, (3,), w_bits=8)).arith.output(maps.I8, maps.I8)
    with pytest.raises(DTypeError, match="differ by 31"):
        maps.total(8, (0, -40), 0, False)
    with pytest.raises(DTypeError, match="must be int8, int8"):
        FixedMap(maps.EspSum(8)).function.output([maps.I16, maps.I16])

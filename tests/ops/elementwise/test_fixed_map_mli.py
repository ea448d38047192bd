"""Elementwise functions of embARC MLI: every kernel against the numpy reference, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_op, rng

from clnn.arith import mli_fused
from clnn.arith.mli_convert import convert
from clnn.arith.mli_dense import DenseRule, MliDense
from clnn.arith.mli_maps import affine_leaky, binary, clip, fixed_leaky, normalised_slope
from clnn.arith.mli_pool import AverageRule
from clnn.arith.mli_primitives import cast, round_shift, shift_left
from clnn.arith.mli_quant import RELU_1, RELU_6, RELU_GEN, RELU_NONE, Quant, relu_limits
from clnn.arith.mli_rows import L2Finish, L2Rule, L2Scale, SoftmaxPower, SoftmaxRule, SoftmaxScale
from clnn.arith.mli_tables import EXP, INVERSE_ROOT, SIGMOID, TANH, activation, tabled
from clnn.errors import DTypeError
from clnn.ops.conv.spec import Conv2d
from clnn.ops.elementwise.fixed_map import FixedMap
from clnn.ops.pool.spec import Pool
from clnn.ops.rows.mli_argmax import MliTopK
from clnn.ops.shared.window import Window

pytestmark = pytest.mark.dealt  # kernels that are slow to build

OPS = ("add", "sub", "mul", "min", "max")
SA8, LOW, HIGH = (Quant(8, 20, 24590, z, True) for z in (-42, -128, 127))
COARSE, FINE = Quant(8, 12, 32767, 3, True), Quant(8, 27, 16384, -5, True)
SHAPE = (7, 37)


def operands(function, seed=0, shape=SHAPE):
    """Return operands of a function: half anywhere, half at the ends, next to them and at zero."""
    found = []
    for k, dtype in enumerate(function.types[:-1]):
        draw = rng(seed + k)
        if dtype.is_float:
            found.append((draw.standard_normal(shape) * 300).astype(np.float32))
            continue
        low, high = np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max
        ends = np.array([low, low + 1, -2, -1, 0, 1, 2, high - 1, high], dtype.numpy)
        anywhere = draw.integers(low, high, shape, dtype.numpy, endpoint=True)
        found.append(np.where(draw.random(shape) < 0.5, draw.choice(ends, shape), anywhere))
    return found


def check(device, function, *rows):
    given = operands(function)
    if rows:
        given = [given[0], *(np.asarray(row).reshape(1, -1) for row in rows)]
    check_op(device, FixedMap(function), given)


FRACTIONS = [(9, 12, 11), (0, 40, 3), (15, 15, -4)]


@pytest.mark.parametrize("up", [False, True])
@pytest.mark.parametrize("op", OPS)
def test_two_fx16_tensors(device, op, up):
    a, b, out = FRACTIONS[OPS.index(op) % 3]
    check(device, binary(op, Quant(16, a), Quant(16, b), Quant(16, out), up))


@pytest.mark.parametrize(
    ("op", "fracs"),
    [("max", (6, 0, 9)), ("max", (7, 7, 5)), ("mul", (0, 0, 20)), ("mul", (3, 0, -60))],
)
def test_two_fx8_tensors(device, op, fracs):
    check(device, binary(op, *(Quant(8, f) for f in fracs), True))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("quants", "up"),
    [
        ((SA8, LOW, HIGH), True),
        ((COARSE, FINE, SA8), False),
        pytest.param((FINE, FINE, COARSE), True, marks=pytest.mark.exhaustive),
    ],
)
def test_two_sa8_tensors(device, op, quants, up):
    check(device, binary(op, *quants, up))


@pytest.mark.parametrize("up", [False, True])
def test_leaky_relus(device, up):
    check(device, fixed_leaky(Quant(16, 11), Quant(16, 14), Quant(16, 11), up))
    value, scaled = normalised_slope(Quant(16, 11), Quant(16, 17), 333, Quant(16, 11), up)
    check(device, scaled, np.full(SHAPE[1], value, np.int16))
    slopes = [(v, LOW) for v in range(-18, 19)]
    for given, out in ((SA8, HIGH), (COARSE, FINE), (FINE, COARSE)):
        check(device, *affine_leaky(given, slopes, out, up))


def test_clips(device):
    check(device, clip(Quant(16, 11), *relu_limits(RELU_6, Quant(16, 11))))
    check(device, clip(SA8, *relu_limits(RELU_1, SA8)))


@pytest.mark.parametrize("up", [False, True])
def test_look_ups(device, up):
    for frac in (-3, 3, 5, 11, 30):
        check(device, activation(TANH, Quant(16, frac), up))
    check(device, activation(SIGMOID, Quant(16, 12), up))
    check(device, tabled(activation(SIGMOID, Quant(16, 10), up)))
    check(device, activation(SIGMOID, COARSE, up))
    check(device, activation(TANH, Quant(8, 6), up))


QUANTS = {
    "sa8": [SA8],
    "sa8_axis": [Quant(8, 20 + k % 5, 16384 + 99 * k, k - 18, True) for k in range(37)],
    "fx8": [Quant(8, 5)],
    "fx16": [Quant(16, 11)],
    "sa32": [Quant(32, 29, 23134, 7, True)],
    "sa32_axis": [Quant(32, 20 + k, 17000 + k, 1 - k, True) for k in range(37)],
}
PAIRS = [
    ("sa8", "fx16"),
    ("sa8_axis", "fx8"),
    ("fx16", "sa8"),
    ("fx8", "sa8_axis"),
    ("sa8", "sa32"),
    ("sa32_axis", "sa8"),
    ("sa32", "fx16"),
    ("fx16", "sa32_axis"),
]


@pytest.mark.parametrize("names", PAIRS, ids="-".join)
def test_conversions(device, names):
    function, rows = convert(*(QUANTS[n] for n in names), PAIRS.index(names) % 2 == 0)
    check(device, function, *rows)


@pytest.mark.parametrize("name", ["sa8", "fx16", "sa32_axis"])
def test_conversions_of_floats(device, name):
    for given, wanted in ((None, QUANTS[name]), (QUANTS[name], None)):
        function, rows = convert(given, wanted, False)
        check(device, function, *rows)


def test_what_is_not_a_number_becomes_the_zero_point(device):
    function, rows = convert(None, [SA8], False)
    x = np.array([[np.nan, np.inf, -np.inf, 3e38, -3e38, -0.0, 0.5]], np.float32)
    check_op(device, FixedMap(function), [x, *(r.reshape(1, 1) for r in rows)])


@pytest.mark.parametrize("quant", [SA8, COARSE, Quant(16, 11), Quant(16, 22)])
def test_parts_of_softmax(device, quant):
    rule = SoftmaxRule(quant, quant.affine)
    x, top = operands(SoftmaxPower(rule))
    check_op(device, FixedMap(SoftmaxPower(rule)), [np.minimum(x, top), np.maximum(x, top)])
    total = np.array([[1, 2, 3, 32767, 32768, 32769, 65535, 2**20 + 511, 2**31 - 1]], np.int32)
    check_op(device, FixedMap(SoftmaxScale(rule)), [total])


@pytest.mark.parametrize("up", [False, True])
def test_parts_of_l2(device, up):
    rule = L2Rule(Quant(16, 11), up)
    total = np.array([[0, 1, 2, 3, 255, 2**15 + 1, 2**31 - 1, 2**33 + 3, 2**60 + 2**44]], np.int64)
    check_op(device, FixedMap(L2Scale(rule)), [total])
    packed = L2Scale(rule).reference(total).reshape(-1, 1)
    x = operands(L2Finish(rule), shape=(9, 37))[0]
    check_op(device, FixedMap(L2Finish(rule)), [x, packed])


GATES16, GATES8 = Quant(16, 10), Quant(8, 4, 1, 0, True)


@pytest.mark.parametrize("long", [False, True])
def test_cells_in_fx16(device, long):
    state = Quant(16, 13)
    check(device, mli_fused.lstm_cell(GATES16, state, long, long))
    check(device, mli_fused.lstm_out(GATES16, state, Quant(16, 16), 1, long, long))
    check(device, mli_fused.gru_new_state(GATES16, state, Quant(16, 14), 1, long, long))


@pytest.mark.parametrize("act", [0, 1, 2])
def test_cells_in_sa8(device, act):
    check(device, mli_fused.lstm_cell(GATES8, SA8, False, False))
    check(device, mli_fused.lstm_out(GATES8, SA8, HIGH, act, False, True))
    check(device, mli_fused.gru_reset(GATES8, LOW, False, True))
    check(device, mli_fused.gru_new_state(GATES8, SA8, LOW, act, False, False))


WINDOWS = {
    "padded": Window((3, 4), (2, 1), (1, 1), (2, 1), (2, 3)),
    "corner": Window((4, 4), (2, 2), (1, 1), (3, 3), (3, 3)),
    "whole": Window((7, 9), (1, 1), (1, 1), (0, 0), (0, 0)),
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("padded", "sa8"),
        ("padded", "fx16"),
        ("corner", "sa8_wide"),
        ("corner", "fx8"),
        ("whole", "sa8"),
    ],
)
def test_averages(device, name, kind):
    up = name == "corner"
    rule = {
        "fx8": AverageRule(Quant(8, 3), Quant(8, 6), up=up),
        "fx16": AverageRule(Quant(16, 11), Quant(16, 13), up=up),
        "sa8": AverageRule(LOW, COARSE if name == "whole" else SA8, up=up),
        "sa8_wide": AverageRule(SA8, HIGH, True, up),
    }[kind]
    dtype = np.int16 if kind == "fx16" else np.int8
    ends = np.iinfo(dtype)
    x = rng(3).choice(np.array([ends.min, ends.min, ends.max, 1], dtype), (1, 19, 7, 9))
    ran = check_op(device, Pool(WINDOWS[name], "average", rule=rule), [x], border=1)
    assert len(ran) > 1


def test_averages_take_only_their_type():
    spec = Pool(WINDOWS["whole"], "average", rule=AverageRule(SA8, SA8))
    with pytest.raises(DTypeError, match="average pooling of float32"):
        check_op("none", spec, [np.zeros((1, 1, 7, 9), np.float32)])


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("kind", ["fx16", "fx8", "sa8"])
def test_dense_products(device, kind, full):
    scales = ((1, 13),) * 2 if kind == "fx16" else ((1, 9),) * 2
    scales = ((29307, 24), (22222, 9)) if kind == "sa8" else scales
    given = SA8 if kind == "sa8" else Quant(16, 14)
    w_type = np.int16 if kind == "fx16" else np.int8
    wanted = GATES8 if kind == "sa8" else GATES16
    rule = DenseRule(given, 8 * np.dtype(w_type).itemsize, scales, wanted, 3, full, full)
    x_type, b_type = (np.int8, np.int32) if kind == "sa8" else (np.int16, w_type)
    data = [
        rng(k).integers(np.iinfo(t).min, np.iinfo(t).max, shape, t, endpoint=True)
        for k, (t, shape) in enumerate(
            [(x_type, (3, 20, 1, 1)), (w_type, (38, 20, 1, 1)), (b_type, (38,))]
        )
    ]
    check_op(
        device,
        Conv2d(Window((1, 1), (1, 1), (1, 1), (0, 0), (0, 0)), arith=MliDense(rule, 2)),
        data,
        consts=(1, 2),
    )


@pytest.mark.parametrize("count", [1, 2, 5, 23])
def test_heaps_with_many_ties(device, count):
    check_op(device, MliTopK(count), [rng(count).integers(-3, 3, (11, 23)).astype(np.int8)])


def test_a_heap_gives_way_to_equal_elements():
    assert MliTopK(1).reference(np.array([[5, 5, 5]], np.int8))[0].tolist() == [[2]]


@pytest.mark.parametrize(
    ("kind", "quant", "limits"),
    [
        (RELU_NONE, SA8, (-128, 127)),
        (RELU_GEN, SA8, (-42, 127)),
        (RELU_GEN, Quant(16, 3), (0, 32767)),
        (RELU_6, Quant(16, 11), (0, 12288)),
        (RELU_6, Quant(16, 28), (0, 32767)),
        (RELU_6, Quant(8, -2), (0, 1)),
        (RELU_6, Quant(8, -3), (0, 0)),
        (RELU_1, Quant(8, 5), (-32, 32)),
        (RELU_1, Quant(8, 7), (-128, 127)),
        (RELU_1, Quant(8, -1), (0, 0)),
        (RELU_1, Quant(8, 20, 24590, -42, True), (-84, 0)),
        (RELU_6, Quant(8, 18, 16499, 100, True), (100, 127)),
    ],
)
def test_limits_of_relus(kind, quant, limits):
    assert relu_limits(kind, quant) == limits


@pytest.mark.parametrize(
    ("x", "n", "bits", "up", "wanted"),
    [
        (5, 1, 32, False, 2),
        (5, 1, 32, True, 3),
        (7, 1, 32, False, 4),
        (-5, 1, 32, False, -2),
        (-5, 1, 32, True, -2),
        (-1, 32, 32, True, 0),
        (-1, 31, 32, False, 0),
        (3, -2, 8, False, 12),
        (100, -2, 8, False, 127),
        (127, 1, 8, True, 63),
        (127, 1, 8, False, 64),
        (2**62, -1, 64, False, 2**63 - 1),
    ],
)
def test_rounding_shifts(x, n, bits, up, wanted):
    assert round_shift(x, n, bits, up) == wanted


def test_shifts_and_casts_saturate():
    assert shift_left(1, 40, 32) == 2**31 - 1 and shift_left(-1, 40, 32) == -(2**31)
    assert shift_left(0, 99, 32) == 0 and shift_left(-9, -40, 32) == -1
    assert cast(2**20, 4, 32, 16, False) == 32767


@pytest.mark.parametrize(
    ("table", "first", "last"),
    [(SIGMOID, 1, 32766), (TANH, -32767, 32767), (EXP, 0, 32767), (INVERSE_ROOT, 23170, 11585)],
)
def test_tables_are_their_functions(table, first, last):
    values = table.values
    assert len(values) == table.length and values.dtype == np.int16
    assert (int(values[0]), int(values[-1])) == (first, last)

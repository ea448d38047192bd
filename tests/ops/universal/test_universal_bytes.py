"""Functions of the universal set for bytes against the references of ops, to the bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from harness import check_universal, normal, rng, single_node

from clnn.arith.quantised import Quantisation, QuantisedAverage, Requantised, Sums, Written
from clnn.arith.quantised_maps import (
    ByteLine,
    ByteTable,
    Dequantise,
    Quantise,
    QuantisedProduct,
    QuantisedSum,
    WrittenBinary,
)
from clnn.ops.conv.spec import Conv2d
from clnn.ops.elementwise.cast import Cast
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.elementwise.fixed_map import FixedMap
from clnn.ops.elementwise.logic import Logic
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.gather import Gather
from clnn.ops.movement.pad import Pad
from clnn.ops.movement.views import Concat, Transpose
from clnn.ops.pool.spec import Pool
from clnn.ops.quantised.softmax import byte_softmax
from clnn.ops.quantised.steps import WrittenSteps
from clnn.ops.resize.sampling import Sampling
from clnn.ops.resize.spec import Resize
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.ops.universal.byte_steps import BINARY, CODES
from clnn.ops.universal.functions import is_universal
from clnn.options import Options
from clnn.plan.layouts import Hints
from clnn.runtime.device.device import select
from clnn.runtime.device.target import target_of
from clnn.runtime.run import planning
from clnn.runtime.run.session import Session
from clnn.types import BOOL, F32, I8, I16, I32, U8, U16

NHWC, NCHW = (0, 2, 3, 1), (0, 1, 2, 3)
F = np.float32
STEPS = {
    "none": None,
    "sum": PostOp("byte_sum", (0.6, 0.8, -41.5, 0, 255), 3),
    "shifted": PostOp("shifted_byte_sum", (0.6, 0.8, -41.5, -128, 127), 3),
    "written": PostOp("written_sum", (11, 0.02, 133, 0.03, 120, 0.04, 5, 250), 3),
    "line": PostOp("byte_line", (0.4375, -12.5, 33, 0, 255)),
    "table": PostOp("byte_table", operand=3),
}


def orders(order):
    return {"i0": order, "o0": order}


def window(kernel, strides=(1, 1), dilations=(1, 1), before=(0, 0), after=(0, 0), ceil=False):
    return Window(kernel, strides, dilations, before, after, ceil)


def integers(shape, dtype, seed=0, extreme=False):
    """Return random integers of a type; extreme: its ends and what is next to them."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    if extreme:
        return rng(seed).choice(np.array([low, low + 1, high - 1, high], dtype), shape)
    return rng(seed).integers(low, high, shape, dtype, endpoint=True)


def requantised(kind, made, zero):
    low, high = (5, 250) if kind == U8 else (-120, 127)
    factors = tuple(map(float, rng(5).choice([0.5, 0.25, 0.0123, 0.0071], made) / 30))
    return Requantised(zero, False, 255, False, factors, kind, 3, low, high)


def written(kind, made, zero):
    low, high = (5, 250) if kind == U8 else (-120, 127)
    factors = tuple(map(float, rng(5).choice([0.0003, 0.0011], made)))
    return Written(zero, False, 255, False, factors, kind, 3, low, high, (0.5,), 0.037)


CONVOLUTIONS = {
    "point": (window((1, 1)), 1, 24, 20),
    "stride": (window((3, 3), (2, 1), before=(1, 1), after=(1, 1)), 1, 9, 33),
    "dilated": (window((3, 2), (1, 2), (2, 3), (2, 0), (2, 3)), 1, 70, 5),
    "pieces": (window((3, 3), before=(1, 1), after=(1, 1)), 1, 136, 34),
    "groups": (window((3, 3), before=(1, 1), after=(1, 1)), 3, 12, 51),
    "filters": (window((3, 3), (2, 2), before=(0, 1), after=(1, 1)), 37, 37, 37),
    "few_filters": (window((5, 3), (1, 1), (1, 2), (2, 2), (2, 2)), 5, 5, 5),
    "far_filters": (window((1, 9), (1, 1), (1, 5), (0, 20), (0, 20)), 18, 18, 18),
    "stem": (window((7, 7), (2, 2), before=(3, 3), after=(3, 3)), 1, 3, 16),
}


def conv_inputs(case, x, weights=np.int8, extreme=False, size=(11, 13)):
    win, group, channels, made = CONVOLUTIONS[case]
    return [
        integers((2, channels, *size), x, 1, extreme),
        integers((made, channels // group, *win.kernel), weights, 2, extreme),
        rng(3).integers(-(2**12), 2**12, made, np.int32),
    ]


@pytest.mark.parametrize("arith", (requantised, written), ids=("requantised", "written"))
@pytest.mark.parametrize("x", (U8, I8), ids=repr)
@pytest.mark.parametrize("order", (NHWC, NCHW), ids=("nhwc", "nchw"))
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions(device, case, order, x, arith):
    win, group, _, made = CONVOLUTIONS[case]
    kind, zero = (I8, 77) if x == U8 else (U8, -5)
    given = conv_inputs(case, x.numpy)
    spec = Conv2d(win, group, (), arith(kind, made, zero))
    check_universal(device, spec, given, consts=(1, 2), orders=orders(order))


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("case", ("stride", "filters"))
def test_steps_behind_sums(device, case, step):
    win, group, _, made = CONVOLUTIONS[case]
    x = conv_inputs(case, np.uint8)
    kind = I8 if step == "shifted" else U8
    arith = requantised(kind, made, 12)
    op = STEPS[step]
    spec = Conv2d(win, group, (op,) if op else (), arith)
    if op and op.operand:
        shape = (256,) if step == "table" else (2, made, *win.output((11, 13)))
        x.append(integers(shape, kind.numpy, 7))
    consts = (1, 2, 3) if step == "table" else (1, 2)
    check_universal(device, spec, x, consts=consts, orders=orders(NHWC))


@pytest.mark.parametrize("x", (np.uint8, np.int8))
def test_sums_and_their_ends(device, x):
    """Sums as they are, weights of nine bits, and results beyond 32 bits."""
    win, _, _, made = CONVOLUTIONS["stride"]
    zero = 128 if x == np.uint8 else 0
    given = conv_inputs("stride", x, extreme=True)
    check_universal(device, Conv2d(win, 1, (), Sums(zero)), given, consts=(1, 2))
    arith = Requantised(zero, False, 255, False, (3e7,), U8, 3, 0, 255)
    check_universal(device, Conv2d(win, 1, (), arith), given, consts=(1, 2))
    nine = np.array([-255, -254, -129, 0, 128, 253, 254], np.int16)
    given[1] = rng(4).choice(nine, given[1].shape)
    wide = replace(requantised(I8, made, zero), nine_bits=True)
    check_universal(device, Conv2d(win, 1, (), wide), given, consts=(1, 2))
    given[2] = np.full(made, 2**31 - 1, np.int32)
    check_universal(device, Conv2d(win, 1, (), Sums(zero)), given, consts=(1, 2))


@pytest.mark.parametrize("features", (frozenset(), frozenset(("x86_madd",))), ids=("plain", "madd"))
def test_processors_without_vnni(device, monkeypatch, features):
    info = select(device)
    if not features <= target_of(info).features:
        pytest.skip(f"no {', '.join(features)}")
    narrow = replace(target_of(info), features=features)
    monkeypatch.setattr(planning, "target_of", lambda info: narrow)
    win, _, _, made = CONVOLUTIONS["stride"]
    for x, zero in ((np.uint8, 200), (np.int8, -128)):
        given = conv_inputs("stride", x, extreme=True)
        check_universal(
            device, Conv2d(win, 1, (), requantised(U8, made, zero)), given, consts=(1, 2)
        )
        given[1] = rng(4).choice(np.array([-255, -129, 128, 254], np.int16), given[1].shape)
        wide = replace(requantised(I8, made, zero), nine_bits=True)
        check_universal(device, Conv2d(win, 1, (), wide), given, consts=(1, 2))


@pytest.mark.parametrize("kind", (I8, U8), ids=repr)
@pytest.mark.parametrize("channels", (5, 16, 37))
def test_windows(device, kind, channels):
    x = integers((2, channels, 9, 11), kind.numpy)
    win = window((3, 3), (2, 1), (1, 2), (1, 1), (1, 1))
    for order in (NHWC, NCHW):
        check_universal(device, Pool(win, "max"), [x], border=1, orders=orders(order))
    rule = QuantisedAverage(kind, (7, 9), (0.3, 0.21))
    for counted in (False, True):
        check_universal(device, Pool(win, "average", counted, rule=rule), [x], border=1)
    check_universal(device, Pool(window((9, 11)), "average", rule=rule), [x])


@pytest.mark.parametrize("kind", (I8, U8, I16, U16), ids=repr)
def test_there_and_back(device, kind):
    x = np.concatenate([np.arange(-600, 600) / 4, [np.inf, -np.inf, np.nan, 3e38, -0.0, 1e-45]])
    x = x.astype(F).reshape(2, 3, -1)
    for late, step, zero in ((False, 0.1, 3), (False, 0.5, 3), (True, 0.5, 3), (True, 0.1, 0)):
        given = [x, np.array(step, F), np.array(zero, kind.numpy)]
        check_universal(device, FixedMap(Quantise(kind, late)), given, consts=(1, 2))
    along, zeros = rng(4).uniform(0.01, 1, (3, 1)).astype(F), integers((3, 1), kind.numpy, 5)
    check_universal(device, FixedMap(Quantise(kind)), [x, along, zeros])
    check_universal(device, FixedMap(Quantise(kind, limits=(2, 100))), [x, along, zeros])
    whole = rng(6).integers(-(2**31), 2**31 - 1, (2, 3, 37), np.int32)
    for sums in (whole, np.trunc(x[..., :37] * 1000)):
        check_universal(device, FixedMap(Quantise(kind, whole=True)), [sums, along, zeros])
    q = integers((2, 3, 301), kind.numpy)
    check_universal(device, FixedMap(Dequantise()), [q, along, zeros])
    check_universal(device, FixedMap(Dequantise()), [whole, along, None])


def test_int8_rounded_as_uint8(device):
    x = normal((2, 3, 37)) * 40
    spec = FixedMap(Quantise(I8, True, shifted=True))
    check_universal(device, spec, [x, np.array(0.25, F), np.array(-3, np.int8)], consts=(1, 2))
    a, b = integers((2, 3, 37), np.int8), integers((3, 1), np.int8, 1)
    sums = QuantisedSum(I8, (0.6, 0.8), 86.5, True)
    check_universal(device, FixedMap(sums), [a, b])
    product = QuantisedProduct(I8, (3, -4, 5), 0.0131, True)
    check_universal(device, FixedMap(product), [a, b])


@pytest.mark.parametrize("kind", (I8, U8), ids=repr)
def test_functions_of_bytes(device, kind):
    a, b = integers((2, 3, 301), kind.numpy), integers((3, 1), kind.numpy, 1)
    for fn in (QuantisedSum(kind, (0.6, 0.8), -41.5), QuantisedProduct(kind, (3, 4, 5), 0.0131)):
        check_universal(device, FixedMap(fn), [a, b])
    table = tuple(map(float, integers((256,), np.int8, 3)))
    check_universal(device, FixedMap(ByteTable(kind, I8, table)), [a])
    check_universal(device, FixedMap(ByteLine(kind, U8, 33, 0.4375, -12.5)), [a])
    ops = PostOp("mul", operand=1), PostOp("add", operand=2), PostOp("relu")
    spec = FixedMap(WrittenSteps((kind, U8), (11, 9), (0.02, 0.031), ops))
    check_universal(device, spec, [a, normal((3, 1)), normal((3, 1), 1)])


@pytest.mark.parametrize("fn", ("add", "sub", "mul", "div"))
def test_written_functions(device, fn):
    a, b = integers((2, 3, 37), np.int8), integers((2, 1, 37), np.uint8, 1)
    b[b == 133] = 134
    spec = WrittenBinary(fn, (I8, U8, U8), (11, 133, 120), (0.02, 0.03, 0.04), 5, 250)
    check_universal(device, FixedMap(spec), [a, b])


def test_what_dynamic_quantisation_takes(device):
    """Casts, comparisons, choices, and integers that wrap."""
    x = np.array([-3e9, -7.5, -0.5, 0.0, 0.5, 254.7, 300.0, 3e9, np.nan], F)
    for kind in (U8, I8, U16, I16, I32):
        check_universal(device, Cast(kind), [x])
    q = integers((3, 37), np.uint8)
    for kind in (I32, I16, F32):
        check_universal(device, Cast(kind), [q])
    wide = rng(2).integers(-(2**31), 2**31 - 1, (3, 37), np.int32)
    check_universal(device, Cast(F32), [wide])
    for fn in ("equal", "greater", "greater_or_equal", "less", "less_or_equal"):
        check_universal(device, Logic(fn), [normal((3, 37)).round(), normal((37,), 1).round()])
    chosen = q > 100
    for kind in (np.uint8, np.int16, np.float32, np.int64):
        a, b = (rng(k).integers(0, 99, (3, 37)).astype(kind) for k in (3, 4))
        check_universal(device, Logic("where"), [chosen, a, b])
    for fn in ("add", "sub", "mul"):
        column = rng(5).integers(-(2**31), 2**31 - 1, (3, 1), np.int32)
        check_universal(device, Eltwise((PostOp(fn, operand=1),)), [wide, column])


def test_elements_that_move(device):
    x = integers((2, 19, 5, 6), np.int8)
    check_universal(device, Transpose((0, 2, 3, 1)), [x])
    check_universal(device, Concat(1), [x, integers((2, 4, 5, 6), np.int8, 1)])
    for order in (NHWC, NCHW):
        for size in ((10, 18), (8, 9)):
            scales = (1.0, 1.0, size[0] / 5, size[1] / 6)
            spec = Resize((2, 19, *size), scales, Sampling("nearest"))
            check_universal(device, spec, [x], orders=orders(order))
        constant = Pad((0, 2, 1, 0), (0, 3, 0, 2), "constant", -7.0)
        reflected = Pad((0, 0, 1, 2), (0, 0, 2, 1), "reflect")
        for pad in (constant, reflected):
            check_universal(device, pad, [x], orders=orders(order))
    check_universal(device, constant, [x.astype(np.int32) * 9999991])


@pytest.mark.parametrize("kind", (I8, U8), ids=repr)
@pytest.mark.parametrize("length", (1, 12, 33, 1001))
def test_softmax(device, kind, length):
    y = Quantisation(kind, (1 / 256,), (int(np.iinfo(kind.numpy).min),))
    for step in (0.05, 0.2):
        spec = byte_softmax(Quantisation(kind, (step,), (3,)), y)
        check_universal(device, spec, [integers((3, length), kind.numpy)])


def test_codes():
    assert len(set(CODES)) == len(CODES) and set(CODES) > BINARY


@pytest.mark.parametrize("arith", (requantised, written), ids=("requantised", "written"))
@pytest.mark.parametrize("case", ("stride", "groups", "filters", "dilated"))
def test_inputs_without_a_border_are_copied(device, monkeypatch, case, arith):
    monkeypatch.setattr(Conv2d, "padding_needs", lambda self, inputs: {})
    win, group, _, made = CONVOLUTIONS[case]
    for x, order in ((np.uint8, NHWC), (np.int8, NCHW)):
        spec = Conv2d(win, group, (), arith(U8, made, 9))
        given = conv_inputs(case, x)
        name = check_universal(device, spec, given, consts=(1, 2), orders=orders(order))
        assert name.endswith("_bordered")


@pytest.mark.parametrize("how", ("linear", "cubic"))
def test_floats_resized_in_turn(device, how):
    """Products and sums are rounded one by one: to the bit, whichever axis is walked."""
    x = normal((2, 19, 5, 7))
    for order in (NHWC, NCHW, (0, 3, 2, 1)):
        spec = Resize((2, 19, 10, 11), (1.0, 1.0, 2.0, 1.6), Sampling(how, in_turn=True))
        options = Options(fuse=False, specialise="never")
        hints = Hints(orders=dict.fromkeys(("i0", "o0"), order))
        with Session(single_node(spec, [x]), select(device), options, hints=hints) as session:
            assert all(is_universal(one.launch) for one in session.plan.launches)
            np.testing.assert_array_equal(session({"i0": x})["o0"], *spec.reference(x))


@pytest.mark.parametrize("order", (NHWC, NCHW), ids=("nhwc", "nchw"))
@pytest.mark.parametrize("case", ("stride", "groups", "few_filters"))
def test_sums_of_shorts(device, monkeypatch, case, order):
    """Inputs of 16 bits, to their ends, as two bytes; with the border in memory, and without."""
    win, group, *_ = CONVOLUTIONS[case]
    given = conv_inputs(case, np.uint8)
    given[0] = rng(8).choice(np.array([-32768, -256, -1, 0, 255, 32767], np.int16), given[0].shape)
    for _ in range(2):
        spec = Conv2d(win, group, (), Sums(most=32768))
        check_universal(device, spec, given, consts=(1, 2), orders=orders(order))
        monkeypatch.setattr(Conv2d, "padding_needs", lambda self, inputs: {})


def test_integers_made_smaller(device):
    wide = rng(2).integers(-(2**31), 2**31 - 1, (3, 37), np.int32)
    for kind in (U8, I8, U16, I16, I32):
        check_universal(device, Cast(kind), [wide])


def test_weights_beyond_two_bytes(device):
    win, _, _, made = CONVOLUTIONS["stride"]
    given = conv_inputs("stride", np.int8, extreme=True)
    given[1] = rng(4).choice(np.array([-300, -256, 255, 300], np.int16), given[1].shape)
    check_universal(device, Conv2d(win, 1, (), requantised(I8, made, 3)), given, consts=(1, 2))


PRODUCTS = {
    "plain": ((7, 70), (70, 33), {}),
    "turned": ((29, 9), (40, 9), {"trans_b": True}),
    "heads": ((2, 3, 15, 20), (2, 3, 20, 37), {}),
    "shared": ((4, 3, 15, 8), (1, 3, 8, 16), {"trans_a": False}),
    "column": ((2, 30, 65), (2, 65, 1), {}),
}


@pytest.mark.parametrize("case", PRODUCTS)
def test_products_of_integers(device, case):
    left, right, about = PRODUCTS[case]
    a, b = (rng(k).integers(-(2**31), 2**31 - 1, s, np.int32) for k, s in enumerate((left, right)))
    check_universal(device, Gemm(**about), [a, b])


def test_truth_values(device):
    a, b = (rng(k).integers(0, 2, (3, 37)).astype(bool) for k in (1, 2))
    for fn in ("and", "or", "xor"):
        check_universal(device, Logic(fn), [a, b[:1]])
    check_universal(device, Logic("not"), [a])
    check_universal(device, Logic("is_nan"), [np.where(a, F("nan"), normal((3, 37)))])
    for kind in (np.int64, np.int32, np.uint8):
        check_universal(device, Cast(BOOL), [rng(3).choice(np.array([0, 1, 64], kind), (3, 37))])
    for kind in (F32, I32, U8):
        check_universal(device, Cast(kind), [a])


@pytest.mark.parametrize("axis", (0, 1, 2))
@pytest.mark.parametrize("kind", (np.float32, np.int8, np.int64))
def test_elements_picked_along_an_axis(device, kind, axis):
    """Places count from the end where they are negative."""
    x = rng(1).integers(-99, 99, (4, 5, 19)).astype(kind)
    index = rng(2).integers(-x.shape[axis], x.shape[axis], (2, 3))
    for at in (index.astype(np.int64), index.astype(np.int32)):
        check_universal(device, Gather(axis), [x, at])
        check_universal(device, Gather(axis), [x, at[:1, :1]])


@pytest.mark.parametrize(
    "how, kind",
    [
        *((how, kind) for how in ("linear", "cubic", "outside") for kind in (np.uint8, np.int16)),
        *(("bits", kind) for kind in (np.uint8, np.int8)),
    ],
)
def test_integers_resized_by_weights(device, kind, how):
    """Sums rounded one by one, or exact ones of weights of ten bits, towards zero, and within the type."""
    x = integers((2, 19, 5, 7), kind, extreme=True)
    about = {
        "cubic": {"mode": "cubic"},
        "outside": {"coordinates": "tf_crop_and_resize", "extrapolation": -7.5},
        "bits": {"bits": 10},
    }.get(how, {})
    spec = Resize((2, 19, 10, 11), (1.0, 1.0, 2.0, 1.6), Sampling(**{"mode": "linear", **about}))
    if how == "outside":
        spec = replace(spec, roi=((0, 1), (0, 1), (-0.2, 1.1), (0.1, 1.3)))
    for order in (NHWC, NCHW):
        check_universal(device, spec, [x], orders=orders(order))

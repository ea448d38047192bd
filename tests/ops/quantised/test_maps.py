"""Elementwise functions, averages and softmax of quantised tensors against numpy, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_op, normal, of_cpus, rng

from clnn.arith.quantised import Quantisation, QuantisedAverage, quantised
from clnn.arith.quantised_maps import (
    ByteLine,
    ByteTable,
    Dequantise,
    Quantise,
    QuantisedProduct,
    QuantisedSum,
    fused,
    line_through,
)
from clnn.errors import DTypeError, ShapeError
from clnn.ops.elementwise.fixed_map import FixedMap
from clnn.ops.pool.spec import Pool
from clnn.ops.quantised import build
from clnn.ops.quantised.softmax import ByteSoftmax, byte_softmax
from clnn.ops.quantised.steps import WrittenSteps
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.types import F32, I8, I16, I32, U8, U16

KINDS = [I8, U8, I16, U16]
F = np.float32


def integers(shape, kind, seed=0):
    info = np.iinfo(kind.numpy)
    return rng(seed).integers(info.min, info.max, shape, kind.numpy, endpoint=True)


@pytest.mark.parametrize("kind", [*KINDS, I32], ids=repr)
@pytest.mark.parametrize("axis", [None, 0, 2])
def test_dequantise(device, kind, axis):
    x, shape = integers((3, 5, 16), kind), () if axis is None else (x_axis := (3, 5, 16)[axis],)
    wide = shape and (x_axis, *(1,) * (2 - axis))
    scale, zero = rng(1).uniform(0.01, 2, wide).astype(F), integers(wide, kind, 2)
    if kind == I32:
        zero = np.zeros_like(zero)
    check_op(device, FixedMap(Dequantise()), [x, scale, zero], consts=(1, 2))
    check_op(device, FixedMap(Dequantise()), [x, scale, None])


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_quantise_ties_ends_and_special_values(device, kind, late):
    x = np.concatenate([np.arange(-600, 600) / 4, [np.inf, -np.inf, np.nan, 3e38, -0.0, 1e-45]])
    x = x.astype(F).reshape(2, 3, -1)
    for scale, zero in ((0.5, 3), (0.1, 0), (1e-3, 100)):
        step, begin = np.array(scale, F), np.array(zero, kind.numpy)
        check_op(device, FixedMap(Quantise(kind, late)), [x, step, begin], consts=(1, 2))
    along = rng(4).uniform(0.01, 1, (3, 1)).astype(F)
    check_op(device, FixedMap(Quantise(kind)), [x, along, integers((3, 1), kind, 5)])


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", [I8, U8], ids=repr)
@pytest.mark.parametrize("border", [0, 2])
def test_pixels_of_planes(device, kind, channels, border):
    """Images as they are fed become bytes whose channels are neighbours, within borders."""
    step, zero = np.array(0.05, F), np.array(9, kind.numpy)
    for width in (3, 16, 37):
        x = normal((2, channels, 6, width)) * F(5)
        x[0, 0, 0, :3] = [np.nan, np.inf, -np.inf]
        spec, orders = FixedMap(Quantise(kind)), {"i0": (0, 1, 2, 3), "o0": (0, 2, 3, 1)}
        ran = check_op(device, spec, [x, step, zero], consts=(1, 2), border=border, orders=orders)
        assert ran[0] == "map_quantise_planes" or channels == 1 or not of_cpus(device)


def test_quantise_whole_numbers(device):
    x = rng(0).integers(-(2**30), 2**30, (4, 24), np.int32)
    ratios, zero = rng(1).uniform(1e-9, 1e-6, 24).astype(F), np.array(9, np.uint8)
    for sums in (x, np.trunc(x / 128).astype(F)):
        check_op(device, FixedMap(Quantise(U8, whole=True)), [sums, ratios, zero], consts=(1, 2))


@pytest.mark.parametrize("kind", [I8, U8], ids=repr)
def test_sums_and_products(device, kind):
    a, b = integers((2, 8, 5, 7), kind, 1), integers((2, 8, 5, 7), kind, 2)
    x = Quantisation(kind, (0.3,), (5,))
    for step in (0.1, 0.7, 0.15):
        other, y = Quantisation(kind, (step,), (9,)), Quantisation(kind, (0.2,), (21,))
        check_op(device, build.total(x, other, y), [a, b])
        check_op(device, build.product(x, other, y), [a, b[:, :, :1, :1]])


def test_int8_as_uint8(device):
    """Sums and products are those of bytes 128 more, less 128, near ties as well, and so are averages."""
    kinds = [[Quantisation(k, (s,), (z + 128 * (k == U8),)) for k in (I8, U8)] for s, z in SHIFTED]
    every = np.arange(-128, 128, dtype=np.int8)
    a, b = (np.ascontiguousarray(v) for v in np.broadcast_arrays(every[:, None], every))
    over = [(v.astype(np.int16) + 128).astype(np.uint8) for v in (a, b)]
    different = 0
    for make in (build.total, build.product):
        (signed, unsigned) = (make(*(k[i] for k in kinds), shifted=not i) for i in (0, 1))
        want = unsigned.function.reference(*over).astype(np.int16) - 128
        np.testing.assert_array_equal(signed.function.reference(a, b), want)
        check_op(device, signed, [a, b])
        plain = make(*(k[0] for k in kinds))
        different += int((plain.function.reference(a, b) != want).sum())
    assert different
    x = (np.arange(-3000, 3000) / 9).astype(F).reshape(60, 100) * F(0.7)
    spec = FixedMap(Quantise(I8, late=True, shifted=True))
    case = [x, np.array(0.7, F), np.array(5, np.int8)]
    late = FixedMap(Quantise(U8, late=True)).reference(x, case[1], np.array(133, np.uint8))[0]
    np.testing.assert_array_equal(spec.reference(*case)[0], late.astype(np.int16) - 128)
    check_op(device, spec, case, consts=(1, 2))


SHIFTED = [(0.9, 3), (0.15, -20), (0.7, -3)]  # scales and zero points of a, b and the result


@pytest.mark.parametrize("fn", ["add", "sub", "mul", "div"])
def test_functions_as_they_are_written(device, fn):
    a, b = integers((2, 6, 9), I8, 1), integers((2, 6, 9), U8, 2)
    x, other = Quantisation(I8, (0.3,), (5,)), Quantisation(U8, (0.7,), (131,))
    y = Quantisation(I8, (0.2,), (-3,))
    check_op(device, build.written(fn, x, other, y, (-3, 100)), [a, b])


@pytest.mark.parametrize("kind", [I8, U8, U16], ids=repr)
@pytest.mark.parametrize("channels", [1, 6, 32])
def test_steps_as_they_are_written(device, kind, channels):
    """A scale and a shift of each channel, then a clip, with ends that results reach."""
    steps = (PostOp("mul", operand=1), PostOp("add", operand=2), PostOp("clip", (-3.0, 4.0)))
    x = integers((2, channels, 5, 7), kind, 1)
    factor, shift = (rng(k).normal(0, 1, (channels, 1, 1)).astype(F) for k in (2, 3))
    for result, zero, last in ((I8, -3, 0.05), (U8, 131, 0.01), (U16, 30000, 0.0002)):
        step = 0.03 if kind != U16 else 0.0001
        function = WrittenSteps((kind, result), (9, zero), (step, last), steps)
        check_op(device, FixedMap(function), [x, factor, shift], consts=(1, 2))
        check_op(device, FixedMap(function), [x, factor, normal((2, channels, 5, 7))], consts=(1,))


def test_a_fused_sum_is_rounded_once():
    """1 * 1 + 2**-24 + 2**-48 lies above a tie, which float64 still tells from it, just."""
    a, b = np.array([1.0, 255.0, -3.0]), np.array(1.0 + 2.0**-23, F)
    from fractions import Fraction

    for c in (2.0**-24, -(2.0**-26), 0.3):
        want = [Fraction(float(v)) * Fraction(float(b)) + Fraction(float(F(c))) for v in a]
        got = fused(a.astype(F), b, F(c))
        for exact, value in zip(want, got, strict=True):
            near = [Fraction(float(np.nextafter(value, F(s)))) for s in (-np.inf, np.inf)]
            assert all(abs(Fraction(float(value)) - exact) <= abs(n - exact) for n in near)


@pytest.mark.parametrize(("kind", "result"), [(I8, I8), (U8, I8), (I8, U8), (U8, U8)])
def test_tables(device, kind, result):
    entries = integers((256,), result, 3)
    spec = FixedMap(ByteTable(kind, result, tuple(entries.tolist())))
    check_op(device, spec, [np.arange(256, dtype=np.uint8).view(kind.numpy).reshape(16, 16)])
    check_op(device, spec, [integers((3, 5, 7), kind)])


@pytest.mark.parametrize(("kind", "result"), [(I8, I8), (U8, I8), (I8, U8), (U8, U8)])
def test_other_scales(device, kind, result):
    """A line gives what dequantising and quantising all bytes gives; where none does, a table."""
    lines, x = 0, np.arange(256, dtype=np.uint8).view(kind.numpy).reshape(16, 16)
    for seed in range(40):
        steps, zeros = rng(seed).uniform(0.01, 0.1, 2), integers((2,), kind, seed)
        given = Quantisation(kind, (float(F(steps[0])),), (int(zeros[0]),))
        begin = int(integers((), result, seed + 100))
        wanted = Quantisation(result, (float(F(steps[seed % 2])),), (begin,))
        if given == wanted:
            continue
        spec = build.moved(0, given, wanted).spec
        lines += isinstance(spec.function, ByteLine)
        want = wanted.quantise(given.dequantise(x))
        np.testing.assert_array_equal(spec.reference(x)[0], want)
        if seed < 2:
            check_op(device, spec, [x])
    assert lines > 30


def test_entries_that_no_line_gives():
    given, wanted = Quantisation(U8, (0.5,), (1,)), Quantisation(U8, (1.0,), (3,))
    entries = wanted.quantise(given.dequantise(np.arange(256, dtype=np.uint8)))
    assert line_through(given, wanted, entries) is not None
    entries[7] += 2
    assert line_through(given, wanted, entries) is None


@pytest.mark.parametrize("kind", [I8, U8], ids=repr)
@pytest.mark.parametrize("size", [(8, 8), (3, 5)])
def test_averages(device, kind, size):
    a, y = (
        Quantisation(kind, (0.3,), (7,)),
        Quantisation(kind, (0.15,), (-2 if kind == I8 else 90,)),
    )
    spec = build.image_average(0, size, a, y).spec
    check_op(device, spec, [integers((2, 19, *size), kind)])
    win = Window((3, 3), (2, 2), (1, 1), (1, 1), (1, 1))
    rule = QuantisedAverage(kind, (7, 9), (0.3, 0.21))
    check_op(device, Pool(win, "average", rule=rule), [integers((1, 16, 7, 9), kind)], border=1)


def test_sums_of_windows_in_order(device):
    win = Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
    x = normal((1, 16, 7, 9))
    ran = check_op(device, Pool(win, "average", order="rows"), [x])
    assert not any("_b" in name for name in ran)
    check_op(device, Pool(win, "average", order="columns"), [x])
    for size in ((7, 9), (1, 3), (3, 4, 5)):
        ones, zeros = (1,) * len(size), (0,) * len(size)
        spec = Pool(Window(size, ones, ones, zeros, zeros), "average", order="quads")
        check_op(device, spec, [normal((2, 11, *size))], border=1)


@pytest.mark.parametrize("kind", [I8, U8], ids=repr)
@pytest.mark.parametrize("size", [(7, 9), (1, 3), (3, 4, 5), (8,)])
def test_averages_of_real_numbers_that_bytes_stand_for(device, kind, size):
    a = Quantisation(kind, (0.11,), (7 if kind == I8 else 130,))
    y = Quantisation(kind, (0.055,), (-2 if kind == I8 else 90,))
    spec = build.real_average(0, size, a, y).spec
    for border in (0, 1):
        check_op(device, spec, [integers((2, 19, *size), kind)], border=border)


@pytest.mark.parametrize("kind", [I8, U8], ids=repr)
@pytest.mark.parametrize("length", [1, 12, 31, 32, 1001])
def test_softmax(device, kind, length):
    y = Quantisation(kind, (1 / 256,), (int(np.iinfo(kind.numpy).min),))
    for step in (0.05, 0.2):
        spec = byte_softmax(Quantisation(kind, (step,), (3,)), y)
        check_op(device, spec, [integers((3, length), kind)])


@pytest.mark.parametrize("kind", [I8, U8], ids=repr)
@pytest.mark.parametrize("length", [1, 2, 3, 6, 10, 14, 40])
def test_softmax_between_two_bytes(device, kind, length):
    """Shares of one half, a third and so on of steps whose number makes them ties, or all but ties."""
    low = int(np.iinfo(kind.numpy).min)
    for odd, step in ((1, 0.0151), (3, 0.002), (35, 0.3), (1001, 0.0078)):
        spec = ByteSoftmax(kind.name, step, float(max(length * odd // 2, 1)), low + odd % 7)
        few = rng(odd).integers(low + 90, low + 93, (40, length))
        rows = np.concatenate([np.full((1, length), low + 5), few]).astype(kind.numpy)
        check_op(device, spec, [rows])


def test_softmax_rounds_quotients_once():
    """Half of 401 steps is a tie; one of them, and of the double, lies between whole numbers of steps."""
    x = np.array([[7, 7]], np.uint8)
    for scale, want in ((401.0, 200), (403.0, 202), (301.0, 150)):
        assert ByteSoftmax("uint8", 0.01, scale).reference(x)[0].tolist() == [[want, want]]


def test_softmax_saturates_where_one_element_is_all():
    x = np.array([[127, -128, -128]], np.int8)
    spec = byte_softmax(Quantisation(I8, (0.5,), (0,)), Quantisation(I8, (1 / 256,), (-128,)))
    assert spec.reference(x)[0].tolist() == [[127, -128, -128]]


def test_real_numbers_come_back_through_their_quantisation():
    x = normal((50,))
    given = Quantisation(U8, (0.04,), (128,))
    near = given.dequantise(given.quantise(x))
    assert np.abs(near - x).max() <= 0.02 + 1e-6
    assert quantised(np.array([np.nan], F), F(1), np.int64(3), U8).tolist() == [0]


def test_operands_that_do_not_fit_are_refused():
    with pytest.raises(DTypeError, match="dequantise of float32"):
        Dequantise().output([F32, F32])
    with pytest.raises(DTypeError, match="quantise of float32, float32, int8"):
        Quantise(U8).output([F32, F32, I8])
    for function in (QuantisedSum(I8, (1, 1), 0), QuantisedProduct(I8, (0, 0, 0), 1)):
        with pytest.raises(DTypeError, match="int8, uint8"):
            function.output([I8, U8])
    with pytest.raises(DTypeError, match="byte_table of int8"):
        ByteTable(U8, U8, (0.0,) * 256).output([I8])
    from clnn.types import TensorType

    with pytest.raises(ShapeError, match="rows with elements"):
        ByteSoftmax("int8", 1.0, 256.0).infer([TensorType((2, 3, 4), I8)])
    with pytest.raises(DTypeError, match="it needs int8"):
        ByteSoftmax("int8", 1.0, 256.0).infer([TensorType((2, 3), U8)])

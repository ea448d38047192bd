"""Winograd's products along rows: what comes out, its errors, and where the estimate takes them."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_op, normal
from targets import CPU

from clnn.ops.conv import winograd_rows
from clnn.ops.conv.spec import Conv2d
from clnn.ops.conv.tiles import Extents, conv_tiles
from clnn.ops.conv.winograd_rows import ERRORS, LANES, SIZES, Lines, RowsPlan, pack, parts_of, plans
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window

NHWC, NCHW = (0, 2, 3, 1), (0, 1, 2, 3)
STEPS = (PostOp("add", operand=3), PostOp("relu"), PostOp("mul", operand=4))


def window(kernel, strides, pads=(0, 0, 0, 0)):
    """Return a window without dilation; pads: (top, left, bottom, right)."""
    return Window(
        kernel, strides, (1,) * len(kernel), pads[: len(pads) // 2], pads[len(pads) // 2 :]
    )


def only(monkeypatch, *plan):
    """Let one plan (m, tiles, vw, band) be the only one, and so whatever it saves."""
    monkeypatch.setenv("CLNN_CPU_VECTOR", "16")
    monkeypatch.setattr(winograd_rows, "plans", lambda *_: (RowsPlan(*plan),))


@pytest.mark.parametrize(
    ("kernel", "strides", "plan", "ic", "oc"),
    [
        ((7, 7), (2, 2), (4, 4, 16, 3), 3, 64),
        ((7, 7), (2, 2), (4, 3, 16, 2), 3, 37),  # the last vector begins earlier
        ((7, 7), (1, 1), (4, 2, 8, 2), 4, 8),  # parts of 4 and 3 taps
        ((7, 7), (3, 1), (2, 3, 16, 1), 1, 16),
        ((5, 5), (1, 1), (4, 3, 16, 5), 3, 48),  # one part
        ((5, 5), (2, 2), (3, 2, 4, 2), 2, 5),
        ((3, 3), (1, 1), (4, 5, 16, 4), 4, 32),
        ((3, 3), (2, 2), (4, 2, 16, 4), 3, 24),  # the odd taps are one
        ((2, 9), (1, 2), (4, 3, 16, 2), 3, 16),  # parts of 5 and 4 taps
        ((1, 9), (1, 1), (2, 2, 8, 3), 3, 11),
        ((7, 1), (1, 1), (4, 3, 16, 5), 2, 19),  # columns
        ((5, 3), (2, 1), (3, 2, 16, 4), 3, 16),
    ],
)
@pytest.mark.parametrize("order", [NHWC, NCHW])
def test_tiles(device, monkeypatch, kernel, strides, plan, ic, oc, order):
    only(monkeypatch, *plan)
    win = window(kernel, strides, (kernel[0] // 2, kernel[1] // 2, kernel[0] // 2, kernel[1] // 2))
    high, wide = win.output((12, 31))
    bias = normal((oc,), 2) if oc % 16 else None
    inputs = [normal((2, ic, 12, 31), 0), normal((oc, ic, *kernel), 1), bias]
    inputs += [normal((2, oc, high, wide), 7), normal((oc, 1, 1), 8)]
    (name,) = check_op(
        device,
        Conv2d(win, 1, STEPS),
        inputs,
        consts=(1, 2),
        orders={"i0": order, "i3": NHWC, "o0": NHWC},
        only="winograd_rows",
    )
    assert "_f{}_t{}x{}_b{}".format(*plan) in name


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("order", [NCHW, (0, 3, 1, 2), (3, 2, 1, 0)])
@pytest.mark.parametrize(
    ("kernel", "plan", "oc"), [((7, 7), (4, 4, 16, 3), 37), ((7, 1), (4, 3, 16, 5), 19)]
)
def test_operands_in_any_order(device, monkeypatch, kernel, plan, oc, order, dtype):
    only(monkeypatch, *plan)
    pads = (kernel[0] // 2, kernel[1] // 2) * 2
    inputs = [normal((2, 3, 12, 31), 0), normal((oc, 3, *kernel), 1), None]
    inputs += [normal((2, oc, 12, 31), 7), normal((oc, 1, 1), 8)]
    spec, orders = Conv2d(window(kernel, (1, 1), pads), 1, STEPS), {"i3": order, "o0": NHWC}
    check_op(device, spec, inputs, consts=(1, 2), orders=orders, only="winograd_rows", dtype=dtype)


@pytest.mark.parametrize(
    ("size", "pads"),
    [
        ((16, 32), (3, 3, 3, 3)),
        ((7, 7), (0, 0, 0, 0)),
        ((8, 27), (1, 4, 0, 2)),
        ((9, 40), (3, 0, 2, 6)),
    ],
)
def test_borders(device, monkeypatch, size, pads):
    """Whole tiles and parts of them, in a border as wide as the pads and in a wider one."""
    only(monkeypatch, 4, 2, 16, 2)
    inputs = [normal((1, 3, *size), 0), normal((32, 3, 7, 7), 1), normal((32,), 2)]
    for border in (0, 2):
        check_op(
            device,
            Conv2d(window((7, 7), (2, 2), pads)),
            inputs,
            consts=(1, 2),
            border=border,
            orders={"o0": NHWC},
            only="winograd_rows",
        )


def test_long_steps_stand_in_a_loop(device, monkeypatch):
    only(monkeypatch, 4, 3, 16, 2)
    for oc, kernel, stride in ((19, 7, 2), (32, 5, 1)):
        inputs = [normal((1, 3, 9, 30), 0), normal((oc, 3, kernel, kernel), 1), normal((oc,), 2)]
        spec = Conv2d(window((kernel, kernel), (stride, stride)), 1, (PostOp("swish", (1.0,)),))
        check_op(device, spec, inputs, consts=(1, 2), orders={"o0": NHWC}, only="winograd_rows")


def test_lines(device, monkeypatch):
    """A convolution of sequences is one of images of one row."""
    only(monkeypatch, 4, 3, 8, 1)
    inputs = [normal((2, 2, 50), 0), normal((8, 2, 7), 1), normal((8,), 2)]
    spec = Conv2d(window((7,), (2,), (3, 3)))
    check_op(device, spec, inputs, consts=(1, 2), orders={"o0": (0, 2, 1)}, only="winograd_rows")


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_operands_of_16_bits(device, monkeypatch, dtype):
    only(monkeypatch, 4, 4, 16, 4)
    inputs = [normal((1, 3, 16, 32), 0), normal((32, 3, 7, 7), 1), normal((32,), 2)]
    spec = Conv2d(window((7, 7), (2, 2), (3, 3, 3, 3)))
    check_op(
        device, spec, inputs, consts=(1, 2), orders={"o0": NHWC}, only="winograd_rows", dtype=dtype
    )


def test_every_size_of_tiles_without_a_patch(device, monkeypatch):
    """Those that the estimate yields, of an input in planes and of many channels."""
    monkeypatch.setenv("CLNN_CPU_VECTOR", "16")
    for ic, oc, kernel, stride in ((3, 32, 7, 2), (18, 20, 5, 1)):
        pad = kernel // 2
        win = window((kernel, kernel), (stride, stride), (pad,) * 4)
        inputs = [normal((1, ic, 14, 23), 0), normal((oc, ic, kernel, kernel), 1), normal((oc,), 2)]
        how = {"consts": (1, 2), "orders": {"o0": NHWC}, "every": True, "only": "winograd_rows"}
        names = check_op(device, Conv2d(win), inputs, **how)
        assert {name.split("_f")[2][0] for name in names} == {"4", "3", "2"}


@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize(
    ("taps", "stride"), [(7, 2), (7, 1), (5, 1), (5, 2), (3, 1), (3, 2), (9, 1)]
)
def test_parts_give_the_same(m, taps, stride):
    """In double precision, the parts of a line are its plain sums."""
    weights = normal((taps,), 1).astype(np.float64)
    x = normal(((m - 1) * stride + taps,), 2).astype(np.float64)
    there, met = np.zeros(m), set()
    for part in parts_of(taps, stride, m):
        assert part.places == m + part.taps - 1 <= LANES
        mine = part.first + stride * np.arange(part.taps)
        met |= set(mine.tolist())
        inputs = x[part.first :: stride][: part.places]
        there += np.array(part.at) @ ((part.g @ weights[mine]) * (np.array(part.bt) @ inputs))
    assert met == set(range(taps))
    plain = [x[i * stride : i * stride + taps] @ weights for i in range(m)]
    np.testing.assert_allclose(there, plain, rtol=1e-11, atol=1e-11)


def single(x, weights, stride, m):
    """Return one tile's outputs in single precision; x: (terms, inputs), weights: (oc, terms, taps)."""
    made = np.zeros((len(weights), m), np.float32)
    for part in parts_of(weights.shape[2], stride, m):
        mine = weights[..., part.first :: stride][..., : part.taps].astype(np.float64)
        g = np.einsum("pk,ock->ocp", part.g, mine).astype(np.float32)
        inputs = x[:, part.first :: stride][:, : part.places]
        spread = inputs @ np.array(part.bt, np.float32).T
        sums = np.zeros((len(weights), part.places), np.float32)
        for term in range(len(x)):
            sums += spread[term] * g[:, term]
        made += sums @ np.array(part.at, np.float32).T
    return made


@pytest.mark.parametrize(
    "kind", ["normal", "positive", "signs", "spread", "far from 0", "alternating"]
)
@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize(
    ("taps", "stride", "terms"), [(7, 2, 21), (5, 1, 320), (7, 1, 160), (3, 1, 9)]
)
def test_errors_stay_within_what_is_stated(kind, m, taps, stride, terms):
    """Of the largest sum of magnitudes, which is what plain sums' errors follow, too."""
    shape, given = (terms, (m - 1) * stride + taps), np.random.default_rng(7)
    for _ in range(8):
        x = given.standard_normal(shape)
        weights = given.standard_normal((16, terms, taps))
        if kind == "positive":
            x, weights = np.abs(x), np.abs(weights)
        elif kind == "signs":
            x, weights = np.sign(x), np.sign(weights)
        elif kind == "spread":
            x *= np.exp(3 * given.standard_normal(shape))
        elif kind == "far from 0":
            x, weights = x / 100 + 10, weights - weights.mean(axis=2, keepdims=True)
        elif kind == "alternating":
            x = x / 100 + 3 * (-1.0) ** np.arange(shape[1])
        x, weights = x.astype(np.float32), weights.astype(np.float32)
        lines = np.stack([x[:, i * stride : i * stride + taps] for i in range(m)]).astype(
            np.float64
        )
        plain = np.einsum("ict,oct->oi", lines, weights)
        largest = np.einsum("ict,oct->oi", np.abs(lines), np.abs(weights)).max()
        assert np.abs(single(x, weights, stride, m) - plain).max() <= ERRORS[m] * largest


def lines(ic, size, oc, kernel, stride=1):
    """Return a layer of square windows whose outputs are `size` a side, in lines."""
    return Lines(1, ic, oc, size, kernel, stride, size, kernel, stride)


@pytest.mark.parametrize(
    ("layer", "m"),
    [
        (lines(3, 112, 64, 7, 2), 4),
        (lines(3, 224, 32, 5), 4),
        (lines(3, 224, 64, 3), 4),
        (lines(48, 35, 64, 5), 4),
    ],
)
def test_layers_that_gain(layer, m):
    """Measured beside the direct kernel: 1.78, 1.59, 1.43 and 2.19 times as fast."""
    assert plans(layer, CPU)[0].m == m
    assert plans(layer, CPU)[0].cycles < direct(layer)


@pytest.mark.parametrize("layer", [lines(3, 112, 32, 3, 2), lines(3, 149, 32, 3, 2)])
def test_first_layers_of_3x3_with_a_stride_of_2_stay_direct_sums(layer):
    """Measured: 0.93 and 0.89 of the direct kernel's speed."""
    assert all(plan.cycles > direct(layer) for plan in plans(layer, CPU))


def direct(layer):
    """Return the direct kernel's estimate."""
    cycles = conv_tiles(Extents(layer.count, layer.length, layer.oc, 16))[0][0]
    return cycles * layer.height * layer.taps * layer.ic / CPU.compute_units


def test_windows_of_one_tap_save_nothing():
    assert not plans(lines(64, 56, 64, 1), CPU)


def test_packed_weights():
    """Parts, lines of the window, channels and places of vectors, the last of which begins earlier."""
    weights = normal((21, 3, 5, 7), 3)
    packed, (even, odd) = pack(weights, 1, 4, 2, 16), parts_of(7, 2, 4)
    assert packed.shape == (2, 5 * 3 * (even.places + odd.places) * 16)
    split = 5 * 3 * even.places * 16
    first = packed[:, :split].reshape(2, 5, 3, even.places, 16)
    second = packed[:, split:].reshape(2, 5, 3, odd.places, 16)
    np.testing.assert_allclose(first[0, 2, 1, :, 3], even.g @ weights[3, 1, 2, ::2], rtol=1e-6)
    np.testing.assert_allclose(second[1, 4, 2, :, 15], odd.g @ weights[20, 2, 4, 1::2], rtol=1e-6)
    assert not first[1, ..., :11].any() and first[1, ..., 11:].any()
    columns = pack(weights.swapaxes(2, 3).copy(), 0, 4, 2, 16)
    assert np.array_equal(packed, columns)

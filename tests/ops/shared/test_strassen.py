"""Strassen's products: what comes out, its errors, what other rows do to a row, and where the estimate takes them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from harness import check_op, normal, picks, single_node, variant_names

from clnn.ops.conv.spec import Conv2d
from clnn.ops.conv.tiles import Extents, conv_tiles
from clnn.ops.gemm.spec import Gemm
from clnn.ops.shared import strassen
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.matrices import gemm_tiles
from clnn.ops.shared.strassen import ERROR, PRODUCTS, StrassenPlan, factors, pack, plans
from clnn.ops.shared.window import Window
from clnn.options import Options
from clnn.runtime.device.device import select
from clnn.runtime.run.session import Session
from clnn.target import Target

NHWC = (0, 2, 3, 1)
FULL = Target("cpu", 16, 2, 256, 2**20, frozenset({"prefetch"}))
HALF = replace(FULL, features=frozenset({"prefetch", "half_rate"}))


def only(monkeypatch, mr, nv, panels=1, per=1, vector=16):
    """Let one plan be the only one, whatever it saves."""

    def one(m, n, k, target):
        va = target.vector
        while (k // 2) % va:
            va //= 2
        return (StrassenPlan(mr, nv, target.vector, va, panels, per),)

    monkeypatch.setenv("CLNN_CPU_VECTOR", str(vector))
    monkeypatch.setattr(strassen, "plans", one)


PLANS = [(4, 1), (5, 2, 1, 2), (8, 3), (14, 2, 2), (4, 1, 4, 3), (6, 2, 1, 1, 8)]


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize(
    ("m", "k", "n"), [(29, 32, 64), (7, 40, 70), (64, 96, 97), (1, 8, 16), (113, 64, 33)]
)
def test_rows_by_columns(device, monkeypatch, plan, m, k, n):
    only(monkeypatch, *plan)
    inputs = [normal((m, k)), normal((k, n), 1), normal((n,), 2), normal((m, n), 3)]
    steps = (PostOp("relu"), PostOp("sub", operand=3))
    check_op(device, Gemm(post_ops=steps), inputs, consts=(1, 2), only="strassen")


@pytest.mark.parametrize("addend", [(), (1,), (21, 1), (1, 37), (21, 37)], ids=str)
@pytest.mark.parametrize("steps", [(), (PostOp("gelu"),)], ids=["", "in a loop"])
def test_addends_of_any_shape(device, monkeypatch, addend, steps):
    only(monkeypatch, 4, 1)
    inputs = [normal((21, 24)), normal((24, 37), 1), normal(addend, 2)]
    spec = Gemm(0.5, -1.5, post_ops=steps)
    check_op(device, spec, inputs, consts=(1,), only="strassen")


@pytest.mark.parametrize(
    ("a", "b", "spec", "orders"),
    [
        ((2, 3, 9, 32), (32, 50), Gemm(), {}),
        ((2, 3, 9, 32), (32, 50), Gemm(), {"i0": (1, 0, 2, 3)}),
        ((19, 32), (50, 32), Gemm(trans_b=True), {}),
        ((2, 9, 32), (1, 32, 50), Gemm(), {"o0": (1, 0, 2)}),
    ],
)
def test_matrices_that_share_the_constant(device, monkeypatch, a, b, spec, orders):
    only(monkeypatch, 5, 1, 1, 2)
    check_op(
        device, spec, [normal(a), normal(b, 1), None], consts=(1,), orders=orders, only="strassen"
    )


@pytest.mark.parametrize(
    ("a", "b", "how"),
    [
        ((3, 9, 32), (3, 32, 50), {"consts": (1,)}),  # each its own
        ((19, 32), (32, 50), {}),  # no constant
        ((19, 36), (36, 50), {"consts": (1,)}),  # terms that no vector divides
        ((19, 32), (32, 50), {"consts": (1,), "orders": {"o0": (1, 0)}}),
        ((32, 19), (32, 50), {"consts": (1,), "spec": Gemm(trans_a=True)}),
    ],
)
def test_products_that_are_left_to_others(device, monkeypatch, a, b, how):
    only(monkeypatch, 5, 1)
    how = {"spec": Gemm(), **how, "every": True}
    names = check_op(device, inputs=[normal(a), normal(b, 1), None], **how)
    assert not any("strassen" in name for name in names)


STEPS = (PostOp("add", operand=3), PostOp("relu"), PostOp("mul", operand=4))


@pytest.mark.parametrize("steps", [STEPS, (*STEPS, PostOp("swish", (1.0,)))], ids=["", "in a loop"])
@pytest.mark.parametrize("strides", [(1, 1), (2, 2), (1, 3)])
@pytest.mark.parametrize("border", [0, 1])
@pytest.mark.parametrize("oc", [64, 41])
def test_windows_of_one_place(device, monkeypatch, steps, strides, border, oc):
    only(monkeypatch, 5, 1, 2, 1)
    win = Window((1, 1), strides, (1, 1), (0, 0), (0, 0))
    high, wide = win.output((7, 10))
    bias = normal((oc,), 2) if oc % 16 else None
    inputs = [normal((2, 32, 7, 10), 0), normal((oc, 32, 1, 1), 1), bias]
    inputs += [normal((2, oc, high, wide), 7), normal((oc, 1, 1), 8)]
    check_op(
        device,
        Conv2d(win, 1, steps),
        inputs,
        consts=(1, 2),
        border=border,
        orders={"i0": NHWC, "i3": NHWC, "o0": NHWC},
        only="strassen",
    )


def test_kernels_of_the_estimate(device, monkeypatch):
    """All that it offers, for a product and for a convolution of sequences."""
    monkeypatch.setenv("CLNN_CPU_VECTOR", "16")
    inputs = [normal((130, 64)), normal((64, 160), 1), None]
    names = check_op(device, Gemm(), inputs, consts=(1,), every=True, only="strassen")
    assert len(names) == strassen.PLANS
    inputs = [normal((2, 64, 60)), normal((96, 64, 1), 1), normal((96,), 2)]
    spec, how = Conv2d(Window((1,), (1,), (1,), (0,), (0,))), {"i0": (0, 2, 1), "o0": (0, 2, 1)}
    names = check_op(device, spec, inputs, consts=(1, 2), orders=how, every=True, only="strassen")
    assert len(names) == strassen.PLANS


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_numbers_of_16_bits_are_left_to_others(device, monkeypatch, dtype):
    only(monkeypatch, 5, 1)
    graph = single_node(Gemm(), [normal((19, 32)), normal((32, 50), 1), None], (1,))
    assert any("strassen" in name for name in variant_names(graph, device, every=True))
    inputs = [normal((19, 32)), normal((32, 50), 1), None]
    names = check_op(device, Gemm(), inputs, consts=(1,), every=True, dtype=dtype)
    assert not any("strassen" in name for name in names)


def test_the_option_takes_them_out():
    target = replace(HALF, winograd=False)
    assert strassen.fits(HALF, (1024, 768), 768, (1, 1))
    assert not strassen.fits(target, (1024, 768), 768, (1, 1))
    assert not strassen.fits(HALF, (1024, 768), 2 * strassen.MOST_TERMS, (1, 1))
    assert not strassen.fits(replace(HALF, kind="gpu"), (1024, 768), 768, (1, 1))


def multiplied(device, a, b):
    """Return a b, as the only plan computes it."""
    graph = single_node(Gemm(), [a, b, None], (1,))
    (name,) = (n for n in variant_names(graph, device, every=True) if "strassen" in n)
    with Session(graph, select(device), Options(fuse=False), picks(name)) as session:
        return session({"i0": a})["o0"]


def test_rows_and_columns_keep_their_digits(device, monkeypatch):
    """However large their neighbours are: each error is relative to the row's and the column's own size."""
    only(monkeypatch, 5, 1)
    given = np.random.default_rng(3)
    a, b = normal((23, 64), 1), normal((64, 70), 2)
    a *= np.exp2(given.integers(-60, 60, (23, 1))).astype(np.float32)
    b *= np.exp2(given.integers(-40, 40, 70)).astype(np.float32)
    want = a.astype(np.float64) @ b
    sizes = np.abs(a).max(axis=1, keepdims=True).astype(np.float64) * np.abs(b).max(axis=0)
    assert (np.abs(multiplied(device, a, b) - want) / sizes).max() < 64 * 2e-7


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_stays_in_its_row(device, monkeypatch, value):
    """Others stay what they are; the row itself is as plain sums make it."""
    only(monkeypatch, 5, 1, 2)
    a, b = normal((23, 32), 1), normal((32, 75), 2)
    b[3, 10:14] = 0
    clean = multiplied(device, a, b)
    for row, column in ((0, 3), (7, 20), (22, 31)):
        spoilt = a.copy()
        spoilt[row, column] = value
        got = multiplied(device, spoilt, b)
        others = np.arange(23) != row
        np.testing.assert_allclose(got[others], clean[others], rtol=0, atol=2e-5)
        with np.errstate(invalid="ignore"):
            want = spoilt[row] @ b
        assert np.array_equal(np.isnan(got[row]), np.isnan(want))
        assert np.array_equal(got[row][~np.isnan(want)], want[~np.isnan(want)])


def test_huge_and_tiny_numbers(device, monkeypatch):
    only(monkeypatch, 4, 1)
    a, b = normal((16, 32), 1), normal((32, 64), 2)
    a[2] *= np.float32(1e37)
    a[3] *= np.float32(1e-38)
    a[4] = 0
    a[5] = np.float32(3e38)
    b[:, 5] = np.float32(1e-3)
    b[:, 9] = 0
    got, want = multiplied(device, a, b), a.astype(np.float64) @ b
    assert not got[4].any() and not got[:, 9].any()
    sums = np.abs(a).astype(np.float64) @ np.abs(b)
    fits = sums < 1e38
    assert (np.abs(got - want)[fits] <= 3e-5 * sums[fits] + 1e-37).all()
    assert np.isfinite(got[fits]).all()


@pytest.mark.parametrize("kind", ["normal", "positive", "signs", "spread", "far from 0"])
@pytest.mark.parametrize(("m", "k", "n"), [(40, 2048, 64), (56, 96, 128)])
def test_errors_stay_within_what_is_stated(device, monkeypatch, kind, m, k, n):
    """Of the largest sum of magnitudes, which is what plain sums' errors follow, too."""
    only(monkeypatch, 5, 2)
    given = np.random.default_rng(11)
    a, b = given.standard_normal((m, k)), given.standard_normal((k, n))
    if kind == "positive":
        a, b = np.abs(a), np.abs(b)
    elif kind == "signs":
        a, b = np.sign(a), np.sign(b)
    elif kind == "spread":
        a *= np.exp(2 * given.standard_normal(a.shape))
    elif kind == "far from 0":
        a, b = a / 100 + 10, b - b.mean(axis=0)
    a, b = a.astype(np.float32), b.astype(np.float32)
    largest = (np.abs(a).astype(np.float64) @ np.abs(b)).max()
    assert np.abs(multiplied(device, a, b) - a.astype(np.float64) @ b).max() <= ERROR * largest


def test_packed_sums_are_of_scaled_columns():
    b = normal((16, 50), 4) * np.exp2(np.arange(50) % 7 - 3).astype(np.float32)
    made = StrassenPlan(4, 1, 16, 8, 1, 1)
    packed, scaled = pack(b, made), np.zeros((16, 64), np.float32)
    scaled[:, :50] = b / factors(b)
    assert (np.abs(scaled).max(axis=0)[:50] >= 1).all() and np.abs(scaled).max() < 2
    assert packed.shape == (2, PRODUCTS, 8, 16) and packed.nbytes == made.packed_bytes(16, 50)
    for pair in range(2):
        left, right = scaled[:, 32 * pair :][:, :16], scaled[:, 32 * pair + 16 :][:, :16]
        t = right[:8] - left[:8]
        rest = right[8:] - t
        sums = left[:8], left[8:], right[8:], rest - left[8:], t, rest, right[8:] - right[:8]
        assert np.array_equal(packed[pair], np.stack(sums))


def test_layers_that_gain():
    """Measured beside register tiles: ConvMixer's 1.08, those of ViT-B/16 1.16 in batches of 8."""
    for m, k, n in ((1024, 768, 768), (8 * 197, 768, 3072), (8 * 197, 3072, 768)):
        assert plans(m, n, k, HALF)[0].cycles < gemm_tiles(m, n, 1, HALF)[0][0] * k / 2


@pytest.mark.parametrize(
    ("pixels", "k", "n"), [(56, 64, 256), (56, 64, 64), (28, 128, 512), (7, 512, 2048)]
)
def test_layers_that_do_not(pixels, k, n):
    """Measured: 0.9, 0.6, 1.0 and 0.97 of the direct kernel's speed."""
    cycles = conv_tiles(Extents(pixels, pixels, n, 16, flat=True))[0][0] * k / 2
    assert plans(pixels**2, n, k, HALF)[0].cycles > cycles


def test_the_whole_rate_is_left_to_register_tiles():
    for m, k, n in ((1024, 768, 768), (4096, 4096, 4096)):
        assert plans(m, n, k, FULL)[0].cycles > gemm_tiles(m, n, 1, FULL)[0][0] * k / 2

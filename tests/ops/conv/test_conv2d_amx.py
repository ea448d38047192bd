"""Convolutions by tiles of registers: every way in which tiles lie, of bytes to the bit and of bfloat16."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_op, normal, of_cpus, rng
from targets import with_tiles

from clnn.arith.quantised import Requantised
from clnn.ops.conv.spec import Conv2d
from clnn.ops.shared import amx
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.types import I8, U8

pytestmark = pytest.mark.dealt  # kernels that are slow to build

NHWC = {"i0": (0, 2, 3, 1), "o0": (0, 2, 3, 1), "i3": (0, 2, 3, 1)}
ENDS = {np.uint8: [0, 1, 254, 255], np.int8: [-128, -127, 126, 127]}


def window(k: int, s: int = 1, d: int = 1) -> Window:
    pad = (k - 1) // 2 * d
    return Window((k, k), (s, s), (d, d), (pad, pad), (pad, pad))


@pytest.fixture(params=["x86", "plain"])
def how(request, monkeypatch, device):
    with_tiles(monkeypatch, device, request.param)


def check(device, spec, inputs, consts=(1, 2), orders=NHWC, **how):
    """Check all kernels of tiles for operands in bfloat16, or of bytes where they are given."""
    dtype = "bf16" if inputs[0].dtype == np.float32 else "f32"
    how = {"dtype": dtype, "orders": orders, "every": True, "only": "_amx_"} | how
    return check_op(device, spec, inputs, consts=consts, **how)


def expect_all(device, ran, ways):
    """Expect kernels of these ways, and no others."""
    if of_cpus(device):
        found = {name.split("_")[-2] for name in ran if "_amx_" in name}
        assert found == set(ways), ran


# What images, channels and windows lead to which ways in which pixels of a tile lie; and the tiles of sums.
CASES = {
    "point": (window(1), (1, 64, 7, 9), 40, 1, {"flat"}, (2, 2)),
    "point_strided": (window(1, 2), (2, 32, 9, 42), 48, 1, {"row"}, (3, 1)),
    "square": (window(3), (2, 48, 9, 8), 70, 1, {"row", "wide"}, (2, 2)),
    "wide_image": (window(3), (1, 16, 3, 45), 16, 1, {"row", "wide"}, (1, 1)),
    "dilated": (window(3, 1, 2), (1, 80, 6, 9), 33, 1, {"row", "wide"}, (1, 3)),
    "strided": (window(5, 2), (2, 20, 13, 10), 17, 1, {"row"}, (1, 2)),
    "groups": (window(3), (1, 48, 6, 7), 60, 2, {"row", "wide"}, (2, 1)),
    "few": (window(3), (3, 4, 2, 2), 8, 1, {"row"}, (1, 1)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_bfloat16(device, how, case, monkeypatch):
    win, shape, oc, group, ways, sums = case
    monkeypatch.setattr(amx, "SUMS", (sums,))
    inputs = [normal(shape), normal((oc, shape[1] // group, *win.kernel), 1) / 4, normal((oc,), 2)]
    ran = check(device, Conv2d(win, group), inputs)
    expect_all(device, ran, ways)


FIRST = {
    "seven": (window(7, 2), (1, 3, 17, 47), 70, (2, 2)),
    "three": (window(3), (2, 3, 6, 20), 33, (1, 3)),
    "one_channel": (window(5), (1, 1, 7, 16), 16, (1, 1)),
    "two_channels": (window(2, 2), (1, 2, 8, 40), 20, (1, 2)),
    "four_channels": (window(3, 2), (1, 4, 9, 33), 17, (1, 2)),
}


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1)], ids=["planes", "pixels"])
@pytest.mark.parametrize("case", FIRST.values(), ids=FIRST)
def test_windows_that_are_gathered(device, how, case, order, monkeypatch):
    """Windows of few channels lie in local memory; what follows them is 0, whatever is in an image beside."""
    win, shape, oc, sums = case
    monkeypatch.setattr(amx, "SUMS", (sums,))
    inputs = [normal(shape), normal((oc, shape[1], *win.kernel), 1) / 4, normal((oc,), 2)]
    inputs[0][0, 0, 3, 5] = np.inf
    ran = check(device, Conv2d(win), inputs, orders=NHWC | {"i0": order})
    expect_all(device, ran, {"row"})


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1)], ids=["planes", "pixels"])
@pytest.mark.parametrize("channels", [1, 2, 4, 32])
def test_one_axis(device, how, channels, order):
    win = Window((5,), (2,), (1,), (2,), (2,))
    inputs = [normal((2, channels, 67)), normal((20, channels, 5), 1) / 4, normal((20,), 2)]
    only = None if channels == 32 and order == (0, 1, 2) else "_amx_"
    asked = {"i0": order, "o0": (0, 2, 1)}
    check(device, Conv2d(win), inputs, orders=asked, only=only, every=only is not None)


def arithmetic(oc, zero, kind=U8):
    low, high = (3, 240) if kind == U8 else (-120, 110)
    factors = tuple(map(float, rng(5).choice([0.0123, 0.0071, 0.0004], oc) / 4))
    return Requantised(zero, False, 255, False, factors, kind=kind, zero_out=11, low=low, high=high)


def given_bytes(x, shape, oc, group, kernel):
    """Return bytes at the ends of their types in part, which sums are largest of."""
    given = rng(1).integers(*(np.iinfo(x).min, np.iinfo(x).max + 1), shape).astype(x)
    ends = rng(2).choice(np.array(ENDS[x], x), shape)
    weights = rng(3).integers(-128, 128, (oc, shape[1] // group, *kernel)).astype(np.int8)
    given = np.where(rng(6).random(shape) < 0.5, given, ends)
    return [given, weights, rng(7).integers(-(2**12), 2**12, oc, np.int32)]


@pytest.mark.parametrize("x", [np.uint8, np.int8])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_bytes(device, how, case, x, monkeypatch):
    win, shape, oc, group, ways, sums = case
    monkeypatch.setattr(amx, "SUMS", (sums,))
    inputs = given_bytes(x, shape, oc, group, win.kernel)
    spec = Conv2d(
        win, group, (), arithmetic(oc, 77 if x == np.uint8 else -43, U8 if x == np.uint8 else I8)
    )
    ran = check(device, spec, inputs)
    expect_all(device, ran, ways)


STEPS = {
    "sum": PostOp("byte_sum", (0.61, 0.83, -41.5, 0, 255), 3),
    "line": PostOp("byte_line", (0.4375, -12.5, 33, 0, 255)),
    "table": PostOp("byte_table", operand=3),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_what_is_fused_behind_bytes(device, how, step):
    inputs = given_bytes(np.uint8, (2, 32, 6, 11), 48, 1, (3, 3))
    shape = {"byte_table": (256,), "byte_line": None}.get(step.fn, (2, 48, 6, 11))
    if shape:
        inputs.append(rng(8).integers(0, 256, shape).astype(np.uint8))
    spec = Conv2d(window(3), 1, (step,), arithmetic(48, 3))
    check(device, spec, inputs, orders=None)


def test_what_is_fused_behind_floats(device, how):
    spec = Conv2d(window(3), post_ops=(PostOp("add", operand=3), PostOp("relu")))
    inputs = [
        normal((1, 64, 9, 11)),
        normal((40, 64, 3, 3), 1) / 8,
        normal((40,), 2),
        normal((1, 40, 9, 11), 3),
    ]
    check(device, spec, inputs)


@pytest.mark.parametrize("sums", amx.SUMS, ids=str)
def test_tiles_of_sums(device, how, sums, monkeypatch):
    """Each of those that kernels may have, where the last block of channels has fewer vectors."""
    monkeypatch.setattr(amx, "SUMS", (sums,))
    inputs = [normal((1, 64, 9, 9)), normal((72, 64, 1, 1), 1) / 4, normal((72,), 2)]
    check(device, Conv2d(window(1)), inputs)


def test_border_kept(device, how):
    spec = Conv2d(window(3))
    inputs = [normal((1, 32, 5, 6)), normal((20, 32, 3, 3), 1) / 8]
    check(device, spec, inputs, consts=(1,), orders=None, border=2)

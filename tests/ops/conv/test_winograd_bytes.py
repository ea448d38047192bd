"""Winograd's convolution of bytes: its matrices, what sums it holds, and its kernels to the bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from harness import check_op, rng
from onnx import TensorProto
from onnx import helper as make
from onnx_models import model, tensor, value
from targets import without

import clnn
from clnn.arith.quantised import Requantised, Written
from clnn.ops.conv import winograd_bytes
from clnn.ops.conv.spec import Conv2d
from clnn.ops.conv.winograd import TileGrid, matrices
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.runtime.device.device import select
from clnn.target import Target
from clnn.types import I8, U8

pytestmark = pytest.mark.dealt  # kernels that are slow to build

SAME = Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
UNEVEN = Window((3, 3), (1, 1), (1, 1), (0, 2), (1, 0))
DIVISORS = np.array([24, 12, 6, 6])  # of the rows of the output's matrix
ENDS = {np.uint8: [0, 1, 254, 255], np.int8: [-128, -127, 126, 127]}


def arithmetic(oc, zero, kind=U8, **changes):
    low, high = (3, 240) if kind == U8 else (-120, 110)
    ratios = rng(5).choice([0.0123, 0.0071, 0.0004], oc) / 4
    fields = {"kind": kind, "zero_out": 11, "low": low, "high": high}
    factors = tuple(map(float, ratios))
    return Requantised(zero, False, 255, False, factors, **(fields | changes))


def inputs(x, ic, oc, size=(9, 14), batch=1):
    """Return bytes at the ends of their types in part, which sums are largest of."""
    given = rng(1).integers(*(np.iinfo(x).min, np.iinfo(x).max + 1), (batch, ic, *size)).astype(x)
    ends = rng(2).choice(np.array(ENDS[x], x), given.shape)
    weights = rng(3).integers(-128, 128, (oc, ic, 3, 3)).astype(np.int8)
    weights[oc // 2 :] = rng(4).choice(np.array(ENDS[np.int8], np.int8), weights[oc // 2 :].shape)
    given = np.where(rng(6).random(given.shape) < 0.5, given, ends)
    return [given, weights, rng(7).integers(-(2**12), 2**12, oc, np.int32)]


def check(device, case, arith, win=SAME, steps=()):
    """Check all kernels; those of this family are among them where the processor has the instruction."""
    spec = Conv2d(win, 1, steps, arith)
    given = [k for k in (1, 2) if case[k] is not None]
    ran = check_op(device, spec, case, consts=given)
    caps = select(device).caps
    wanted = bool(caps.x86_vnni or caps.x86_madd)
    assert any("winograd_bytes" in name for name in ran) == wanted, ran


@pytest.mark.parametrize("x", [np.uint8, np.int8])
@pytest.mark.parametrize(("ic", "oc"), [(64, 32), (32, 48), (96, 80), (16, 16), (128, 64)])
def test_channels(device, x, ic, oc):
    """Whole and half blocks, words of 16, 8 and 4 at once; rows and columns that no tile fills."""
    check(device, inputs(x, ic, oc), arithmetic(oc, 77 if x == np.uint8 else -43))


@pytest.mark.parametrize("kind", [U8, I8], ids=lambda kind: kind.name)
@pytest.mark.parametrize("size", [(2, 1), (4, 4), (7, 23), (8, 8)], ids=str)
def test_sizes_and_batches(device, size, kind):
    check(device, inputs(np.uint8, 32, 32, size, 3), arithmetic(32, 201, kind), UNEVEN)


STEPS = {
    "sum": PostOp("byte_sum", (0.61, 0.83, -41.5, 0, 255), 3),
    "written": PostOp("written_sum", (11, 0.02, 133, 0.03, 120, 0.04, 5, 250), 3),
    "line": PostOp("byte_line", (0.4375, -12.5, 33, 0, 255)),
    "table": PostOp("byte_table", operand=3),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_what_is_fused_behind(device, step):
    case = inputs(np.uint8, 32, 48, (6, 11), 2)
    shape = {"byte_table": (256,), "byte_line": None}.get(step.fn, (2, 48, 6, 11))
    if shape:
        case.append(rng(8).integers(0, 256, shape).astype(np.uint8))
    spec, caps = Conv2d(SAME, 1, (step,), arithmetic(48, 3)), select(device).caps
    ran = check_op(device, spec, case, consts=(1, 2))
    wanted = caps.x86_vbmi if step.fn == "byte_table" else caps.x86_vnni or caps.x86_madd
    assert any("winograd_bytes" in name for name in ran) == bool(wanted), ran


def test_products_as_they_are_written(device):
    steps = tuple(map(float, rng(7).uniform(1e-6, 1e-4, 32)))
    offsets = tuple(map(float, rng(8).normal(0, 1, 32)))
    arith = Written(-128, False, 255, False, steps, I8, -7, -128, 127, offsets, 0.0371)
    case = [*inputs(np.int8, 32, 32)[:2], None]
    check(device, case, arith)


@pytest.mark.parametrize(("ic", "oc"), [(64, 40), (32, 24)])
def test_processors_without_vnni(device, monkeypatch, ic, oc):
    """Products of shorts are added by vpmaddwd, vectors of 8 of them."""
    without(monkeypatch, "x86_vnni")
    arith = arithmetic(oc, 77)
    ran = check_op(device, Conv2d(SAME, 1, (), arith), inputs(np.uint8, ic, oc), consts=(1, 2))
    known = select(device).caps.x86_madd
    assert any("winograd_bytes" in name for name in ran) == bool(known), ran


@pytest.mark.parametrize("x", [np.uint8, np.int8])
def test_largest_sums(device, x):
    """Sums at both ends of 26 bits, and the same with one more, which other kernels take."""
    ic, oc, most = 240, 16, winograd_bytes.LARGEST_SUM // winograd_bytes.FARTHEST - 1
    case = inputs(x, ic, oc, (5, 5))
    flat = np.full(ic * 9, 121, np.int8)
    assert most - 121 * ic * 9 < ic * 9 * 6
    rest = most - 121 * ic * 9
    flat[: abs(rest)] += np.int8(np.sign(rest))
    case[1][:] = flat.reshape(ic, 3, 3)
    case[1][: oc // 2] *= -1
    case[0][0, :, :3] = np.iinfo(x).max
    case[0][0, :, 3:] = np.iinfo(x).min
    assert np.abs(case[1][0].astype(int)).sum() == most
    arith = replace(arithmetic(oc, 0), factors=(2.0**-18,) * oc)
    check(device, case, arith)
    case[1][3, 0, 0, 0] -= 1
    assert not winograd_bytes.holds(case[1])
    ran = check_op(device, Conv2d(SAME, 1, (), arith), case, consts=(1, 2))
    assert not any("winograd_bytes" in name for name in ran)


def test_matrices_are_those_of_floats_undivided():
    """at scaled by its divisors, times g and bt, are F(4, 3)'s; all are integers that 16 bits hold."""
    known = matrices(4)
    norms = np.array([4, -6, -6, 24, 24, 1])
    assert np.allclose(np.array(winograd_bytes.G) / norms[:, None], known.g)
    assert np.array_equal(winograd_bytes.BT, known.bt)
    assert np.allclose(np.array(winograd_bytes.AT) * norms / DIVISORS[:, None], known.at)
    largest = np.abs(winograd_bytes.G).sum(1).max() ** 2 * 128
    assert largest < 2**15 and np.abs(winograd_bytes.BT).sum(1).max() ** 2 * 128 < 2**15
    assert 9 * 954437177 % 2**32 == 1


def test_plans_fit_local_memory():
    target = Target("cpu", 16, 2, 256, 2**18, frozenset({"x86_vnni"}))
    tiles = TileGrid(4, 256, 256, 28, 28, 1)
    found = list(winograd_bytes.plans(tiles, target))
    assert found
    for plan in found:
        words = plan.mr * plan.sets * (winograd_bytes.pitch_of(256) + 16 * plan.nv)
        assert 36 * 4 * words <= 2**18


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_each_channel_is_in_one_pair(lanes):
    pairs = winograd_bytes.pairs_of(16 * lanes, lanes)
    assert sorted(pairs.ravel()) == list(range(16 * lanes))
    assert (pairs[:, 1] == pairs[:, 0] + 2).all()


def quantised_convolution(ic, oc):
    """Return a model of one convolution of bytes whose batch, height and width are open."""
    consts = {
        "xs": np.float32(0.02),
        "xz": np.uint8(77),
        "w": rng(3).integers(-128, 128, (oc, ic, 3, 3)).astype(np.int8),
        "ws": rng(4).uniform(0.001, 0.01, oc).astype(np.float32),
        "wz": np.zeros(oc, np.int8),
        "ys": np.float32(0.9),
        "yz": np.uint8(131),
    }
    nodes = [make.make_node("QLinearConv", ["x", *consts], ["y"], pads=[1] * 4)]
    x = value("x", ("batch", ic, "height", "width"), TensorProto.UINT8)
    weights = [tensor(name, array) for name, array in consts.items()]
    return model(nodes, [x], ("y",), weights).SerializeToString()


def test_one_session_at_other_extents(device):
    """One text serves images that tiles fill or do not, and fewer tiles than a work-item takes."""
    made = quantised_convolution(64, 64)
    plain = clnn.Options(winograd=False)
    with clnn.compile_model(made, device) as mine, clnn.compile_model(made, device, plain) as other:
        for shape in [(1, 64, 56, 56), (2, 64, 31, 45), (1, 64, 3, 1), (1, 64, 54, 53)]:
            x = rng(9).integers(0, 256, shape).astype(np.uint8)
            assert np.array_equal(mine({"x": x})["y"], other({"x": x})["y"]), shape
        caps = select(device).caps
        wanted = bool(caps.x86_vnni or caps.x86_madd)
        assert ("winograd_bytes" in str(mine.placement)) == wanted
        assert "winograd_bytes" not in str(other.placement)

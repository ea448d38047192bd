"""Convolution of quantised integers: every kernel against the numpy reference, to the bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from dp4a import dp4a_in_c
from harness import check_op, rng, single_node

from clnn.arith.quantised import Requantised, Sums, Written
from clnn.codegen import render as codegen
from clnn.codegen.render import render
from clnn.errors import DTypeError, PlanError
from clnn.ops.conv.row_packing import reach_beyond, takes_rows
from clnn.ops.conv.spec import Conv2d
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.plan.layouts import Hints
from clnn.plan.schedule import make_plan
from clnn.runtime.device.device import select
from clnn.runtime.device.target import target_of
from clnn.runtime.run import planning
from clnn.target import Target
from clnn.types import F32, I8, I16, U8, TensorType

pytestmark = pytest.mark.dealt  # kernels that are slow to build

SAME = Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
DOWN = Window((3, 3), (2, 2), (1, 1), (0, 1), (1, 0))
POINT = Window((1, 1), (1, 1), (1, 1), (0, 0), (0, 0))
KINDS = {I8: np.int8, U8: np.uint8, I16: np.int16}


def integers(shape, dtype, seed=0, extreme=False):
    """Return random integers of a type; extreme: its ends and what is next to them."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    if extreme:
        return rng(seed).choice(np.array([low, low + 1, high - 1, high], dtype), shape)
    return rng(seed).integers(low, high, shape, dtype, endpoint=True)


def requantised(oc, x_zero, kind=I8, zero=3, products=72, nine_bits=False, **changes):
    """Return an arithmetic whose results fill the range of `kind`, many of them ties."""
    limits = np.iinfo(KINDS[kind])
    ratios = rng(5).choice([0.5, 0.25, 0.0123, 0.0071], oc) / products**0.5 / 4
    fields = {"kind": kind, "zero_out": zero, "low": int(limits.min), "high": int(limits.max)}
    return Requantised(
        x_zero, False, 255, nine_bits, tuple(map(float, ratios)), **(fields | changes)
    )


def inputs(x, weights, ic, oc, win, group=1, size=(5, 7), extreme=False, batch=1):
    return [
        integers((batch, ic, *size), x, 1, extreme),
        integers((oc, ic // group, *win.kernel), weights, 2, extreme),
        rng(3).integers(-(2**12), 2**12, oc, np.int32),
    ]


def of_nine_bits(names):
    """Whether a kernel packs weights that may be -255 to 254 with bytes of input."""
    return any("halves4" in name or "maddpairs4" in name for name in names)


@pytest.mark.parametrize("weights", [np.int8, np.int16])
@pytest.mark.parametrize("x", [np.uint8, np.int8])
def test_zero_points_of_a_padded_3x3(device, x, weights):
    zero = 77 if x == np.uint8 else -43
    arith = requantised(21, zero, U8 if x == np.int8 else I8, nine_bits=weights == np.int16)
    case = inputs(x, np.int8, 8, 21, SAME)
    if weights == np.int16:  # uint8 weights above their zero point
        case[1] = rng(4).integers(-200, 255, case[1].shape, np.int16)
    ran = check_op(device, Conv2d(SAME, 1, (), arith), case, consts=(1, 2), border=1)
    assert any("direct" in name for name in ran) and any("reference" in name for name in ran)
    if weights == np.int16:
        assert of_nine_bits(ran)


@pytest.mark.parametrize("oc", [16, 40, 48, 64, 100])
@pytest.mark.parametrize("kind", [U8, I8], ids=lambda k: k.name)
def test_results_of_whole_and_broken_blocks(device, kind, oc):
    """Four vectors become bytes together, which are parts of one to four pixels."""
    arith = requantised(oc, 77, kind, -3 if kind == I8 else 131, products=32)
    case = inputs(np.uint8, np.int8, 32, oc, POINT, size=(3, 11))
    assert arith.refine(*case[1:]).bounded
    check_op(device, Conv2d(POINT, 1, (), arith), case, consts=(1, 2), border=1)
    arith = replace(arith, low=arith.low + 7, high=arith.high - 9)
    check_op(device, Conv2d(POINT, 1, (), arith), case, consts=(1, 2))


SUMS = {
    "fused": PostOp("byte_sum", (0.61, 0.83, -41.5, 0, 255), 3),
    "fused_second": PostOp("byte_sum", (0.61, 1.37, -41.5, 0, 255), 3, swapped=True),
    "written": PostOp("written_sum", (11, 0.02, 133, 0.03, 120, 0.04, 5, 250), 3),
    "written_second": PostOp(
        "written_sum", (133, 0.03, 11, 0.02, 120, 0.04, 0, 255), 3, swapped=True
    ),
    "line": PostOp("byte_line", (0.4375, -12.5, 33, 0, 255)),
    "shifted": PostOp("shifted_byte_sum", (0.61, 0.83, -41.5, 0, 255), 3),
    "far": PostOp("byte_sum", (3e38, -3e38, 0.0, 0, 255), 3),
}


@pytest.mark.parametrize("step", SUMS.values(), ids=SUMS)
@pytest.mark.parametrize(
    ("ic", "oc", "group", "win"),
    [(16, 40, 1, POINT), (8, 64, 1, SAME), (18, 18, 18, DOWN), (6, 5, 1, SAME)],
    ids=["point", "same", "depthwise", "plain"],
)
def test_sum_of_bytes_behind(device, ic, oc, group, win, step):
    """The other operand's bytes are added to the rounded, clipped result, which is rounded again."""
    arith = requantised(oc, 77, U8, 11, products=ic, low=3, high=240)
    case = inputs(np.uint8, np.int8, ic, oc, win, group, size=(7, 10), batch=2)
    case.append(integers((2, oc, *win.output((7, 10))), np.uint8, 8))
    check_op(device, Conv2d(win, group, (step,), arith), case, consts=(1, 2))


@pytest.mark.parametrize("kind", [I8, U8], ids=repr)
@pytest.mark.parametrize(
    ("ic", "oc", "group", "win"),
    [
        (16, 40, 1, POINT),
        (8, 64, 1, SAME),
        (3, 33, 1, SAME),
        (18, 18, 18, DOWN),
        (72, 72, 72, SAME),
        (36, 36, 36, DOWN),
        (6, 5, 1, SAME),
    ],
    ids=["point", "same", "rows", "few", "bytes", "narrow", "plain"],
)
def test_table_behind(device, ic, oc, group, win, kind):
    """The rounded, clipped result is looked up, whatever kernel makes it."""
    low, high = (-120, 110) if kind == I8 else (3, 240)
    arith = requantised(oc, 77, kind, 11, products=ic, low=low, high=high)
    case = inputs(np.uint8, np.int8, ic, oc, win, group, size=(7, 10), batch=2)
    case.append(integers((256,), kind.numpy, 8))
    spec = Conv2d(win, group, (PostOp("byte_table", operand=3),), arith)
    check_op(device, spec, case, consts=(1, 2, 3))
    check_op(device, spec, case, consts=(1, 2))


@pytest.mark.parametrize("factor", [3e7, 1e30], ids=["int32", "float32"])
def test_results_beyond_32_bits(device, factor):
    """Sums that leave 32 bits in steps of the result saturate on their own side."""
    arith = Requantised(0, False, 255, False, (factor,), U8, 3, 0, 255)
    case = inputs(np.uint8, np.int8, 16, 32, POINT)
    assert not arith.refine(*case[1:]).bounded
    check_op(device, Conv2d(POINT, 1, (), arith), case, consts=(1, 2))


@pytest.mark.parametrize("x", [np.uint8, np.int8])
def test_weights_of_nine_bits_at_their_ends(device, x):
    """-255 to 254 are sums of two bytes; 255 is not, and takes products one by one."""
    arith = requantised(18, 128 if x == np.uint8 else 0, products=500, nine_bits=True)
    case = inputs(x, np.int8, 32, 18, SAME, extreme=True)
    case[1] = rng(4).choice(np.array([-255, -254, -129, 0, 128, 253, 254], np.int16), case[1].shape)
    ran = check_op(device, Conv2d(SAME, 1, (), arith), case, consts=(1, 2))
    assert of_nine_bits(ran)
    case[1][3, 2, 1, 0] = 255
    with pytest.raises(PlanError, match="up to 255"):
        arith.refine(*case[1:])
    arith = replace(arith, nine_bits=False)
    ran = check_op(device, Conv2d(SAME, 1, (), arith), case, consts=(1, 2))
    assert not of_nine_bits(ran)


@pytest.mark.parametrize("x", [np.uint8, np.int8])
def test_sums_beyond_what_float32_holds(device, x):
    arith = requantised(19, int(np.iinfo(x).min), products=2**17)
    case = inputs(x, np.int8, 64, 19, SAME, extreme=True)
    case[2] = rng(3).integers(-(2**30), 2**30, 19, np.int32)
    assert not arith.refine(*case[1:]).floats
    check_op(device, Conv2d(SAME, 1, (), arith), case, consts=(1, 2))


def test_sums_wrap_as_those_of_int32(device):
    arith = requantised(17, 0)
    case = inputs(np.uint8, np.int8, 16, 17, SAME, extreme=True)
    case[2] = np.full(17, 2**31 - 1, np.int32)
    check_op(device, Conv2d(SAME, 1, (), arith), case, consts=(1, 2))


def test_one_factor_and_clipped_results(device):
    arith = Requantised(128, False, 255, False, (0.0071,), U8, 9, 9, 200)
    check_op(
        device,
        Conv2d(DOWN, 1, (), arith),
        inputs(np.uint8, np.int8, 3, 16, DOWN, batch=2),
        consts=(1, 2),
    )


LARGE = Window((5, 5), (1, 2), (1, 1), (2, 2), (2, 2))
SPREAD = Window((3, 2), (1, 1), (2, 2), (2, 1), (2, 1))


@pytest.mark.parametrize("x", [np.uint8, np.int8])
@pytest.mark.parametrize("channels", [32, 44, 64, 100, 192])
@pytest.mark.parametrize(
    "win", [SAME, DOWN, LARGE, SPREAD], ids=["same", "down", "large", "spread"]
)
def test_depthwise_of_many_channels(device, win, channels, x):
    """Four rows of a window at a time, where the processor adds four products; blocks that overlap."""
    zero, kind = (77, U8) if x == np.uint8 else (-43, I8)
    arith = requantised(channels, zero, kind, 11, 9, low=3 - 128 * (kind == I8), high=120)
    case = inputs(x, np.int8, channels, channels, win, group=channels, size=(8, 15), batch=2)
    ran = check_op(device, Conv2d(win, channels, (), arith), case, consts=(1, 2))
    known = select(device).caps.x86_vnni
    assert any("depthwise_bytes" in name for name in ran) == bool(known)


@pytest.mark.parametrize("weights", [np.int8, np.int16])
@pytest.mark.parametrize("win", [SAME, DOWN], ids=["same", "down"])
def test_depthwise(device, win, weights):
    arith = requantised(24, 11, U8, 131, 9)
    case = inputs(np.uint8, weights, 24, 24, win, group=24)
    if weights == np.int16:
        case[1] = rng(4).integers(-255, 256, case[1].shape, np.int16)
    ran = check_op(device, Conv2d(win, 24, (), arith), case, consts=(1, 2))
    assert any("depthwise" in name for name in ran)


def test_groups(device):
    arith = requantised(24, -5, products=18)
    check_op(
        device, Conv2d(SAME, 2, (), arith), inputs(np.int8, np.int8, 8, 24, SAME, 2), consts=(1, 2)
    )


@pytest.mark.parametrize("x", [np.uint8, np.int8, np.int16])
def test_sums_as_they_are(device, x):
    arith = Sums(most=2**15) if x == np.int16 else Sums(17)
    case = inputs(x, np.int8, 8, 18, SAME)[:2]
    check_op(device, Conv2d(SAME, 1, (), arith), [*case, None], consts=(1,))


@pytest.mark.parametrize("group", [1, 16])
def test_products_as_they_are_written(device, group):
    steps = tuple(map(float, rng(7).uniform(1e-4, 1e-3, 16)))
    offsets = tuple(map(float, rng(8).normal(0, 1, 16)))
    arith = Written(-128, False, 255, False, steps, I8, -7, -128, 127, offsets, 0.0371)
    case = inputs(np.int8, np.int8, 16, 16, SAME, group)
    check_op(device, Conv2d(SAME, group, (), arith), [*case[:2], None], consts=(1,))


def test_points_of_a_matrix_product(device):
    arith = requantised(10, 3, products=40)
    check_op(
        device, Conv2d(POINT, 1, (), arith), inputs(np.uint8, np.int8, 40, 10, POINT), consts=(1, 2)
    )


def test_operands_of_other_types_are_refused():
    with pytest.raises(DTypeError, match="it takes int8, uint8 or int16"):
        Sums().output(F32, I8)
    with pytest.raises(DTypeError, match="it takes int8, uint8 or int16"):
        requantised(1, 0).output(U8, U8)


@pytest.mark.parametrize("x", [np.uint8, np.int8])
@pytest.mark.parametrize(
    ("channels", "window"),
    [
        (1, Window((10, 4), (2, 2), (1, 1), (4, 1), (5, 1))),
        (3, Window((3, 3), (2, 2), (1, 1), (0, 1), (1, 0))),
        (3, Window((7, 7), (2, 2), (2, 1), (3, 3), (3, 3))),
        (2, Window((5,), (1,), (1,), (2,), (2,))),
    ],
    ids=["kws", "3x3", "7x7", "1d"],
)
def test_rows_of_few_channels(device, channels, window, x):
    """Their bytes are multiplied four at a time, beyond the window's row with weights of 0."""
    zero = 77 if x == np.uint8 else -43
    arith = requantised(18, zero, products=channels * int(np.prod(window.kernel)))
    size = (13, 11) if len(window.kernel) == 2 else (23,)
    case = inputs(x, np.int8, channels, 18, window, size=size, batch=2, extreme=True)
    orders = {"i0": (0, *range(2, len(size) + 2), 1)}
    ran = check_op(device, Conv2d(window, 1, (), arith), case, consts=(1, 2), orders=orders)
    assert any(name.endswith("4_blocks") or "4_pixels" in name for name in ran), ran


@pytest.mark.parametrize("x", [np.uint8, np.int8])
@pytest.mark.parametrize("window", [Window((7, 7), (2, 2), (1, 1), (3, 3), (3, 3)), SAME])
def test_rows_are_packed_where_single_products_take_two_steps(window, x):
    """With AVX2 whole numbers are multiplied in two steps, pairs of shorts in one."""
    arith = requantised(64, 77, products=3 * int(np.prod(window.kernel)))
    case = inputs(x, np.int8, 3, 64, window, size=(56, 56))
    graph = single_node(Conv2d(window, 1, (), arith), case, consts=(1, 2))
    hints = Hints(orders={"i0": (0, 2, 3, 1)})
    names = {}
    for features in (frozenset({"x86_madd"}), frozenset()):
        plan = make_plan(graph, Target("cpu", 8, features=features), hints=hints)
        convs = [step.variant.name for step in plan.scheduled if "conv2d" in step.variant.name]
        (names[features],) = convs
    assert "_row_madd4_" in names[frozenset({"x86_madd"})], names
    assert "madd" not in names[frozenset()], names


def test_rows_that_are_not_packed():
    """Dilated columns, groups and four channels have no rows of neighbouring bytes to fill up."""
    x = TensorType((1, 3, 9, 9), U8)
    assert takes_rows(x, SAME, 1)
    assert not takes_rows(x, Window((3, 3), (1, 1), (1, 2), (1, 2), (1, 2)), 1)
    assert not takes_rows(x, SAME, 3)
    assert not takes_rows(TensorType((1, 4, 9, 9), U8), SAME, 1)
    assert not takes_rows(TensorType((1, 3, 9, 9)), SAME, 1)
    assert reach_beyond(SAME, 3) == 1 and reach_beyond(POINT, 1) == 3 and reach_beyond(SAME, 4) == 0


@pytest.mark.parametrize("kind", [U8, I8], ids=repr)
@pytest.mark.parametrize("win", [SAME, POINT], ids=["same", "point"])
def test_nvidias_instruction(device, kind, win, monkeypatch):
    """The kernels with dp4a, a function of what the instruction does in its place."""
    met, whole = [], []

    def without_ptx(template, params):
        text, count = dp4a_in_c(render(template, params))
        met.append(count)
        if count:
            whole.append("int v; } __attribute__((packed))" not in text)
            whole.append(("0x80808080" in text) == (kind == I8))
        return text

    def target(info):
        found = target_of(info)
        return replace(found, features=found.features - {"x86_vnni", "x86_madd"} | {"ptx_dp4a"})

    monkeypatch.setattr(codegen, "render", without_ptx)
    monkeypatch.setattr(planning, "target_of", target)
    arith = requantised(21, 77 if kind == U8 else -5, kind)
    case = inputs(KINDS[kind], np.int8, 8, 21, win)
    ran = check_op(device, Conv2d(win, 1, (), arith), case, consts=(1, 2), only="_dp4a4_")
    assert ran and any(met) and all(whole)

"""Rows, samples and transposed convolutions of the universal set against the references of ops."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_universal, normal

from clnn.ops.conv.transpose import ConvTranspose
from clnn.ops.movement.pad import MODES as PADS
from clnn.ops.movement.pad import Pad
from clnn.ops.resize.sampling import Sampling
from clnn.ops.resize.spec import Resize
from clnn.ops.rows.norm import Normalise
from clnn.ops.rows.reduce import FOLDS, Reduce
from clnn.ops.rows.softmax import Softmax
from clnn.ops.shared.functions import PostOp
from clnn.ops.universal.rows import MODES

NHWC, NCHW = (0, 2, 3, 1), (0, 1, 2, 3)
ORDERS = pytest.mark.parametrize("order", (NHWC, NCHW), ids=("nhwc", "nchw"))
SCALED = (PostOp("mul", operand=1), PostOp("add", operand=2), PostOp("relu"))


def orders(order):
    return {"i0": order, "o0": order}


@ORDERS
@pytest.mark.parametrize("axes", ((1,), (3,), (2, 3), (0, 1, 2, 3), (0, 2)))
@pytest.mark.parametrize("log", (False, True))
def test_softmax(device, axes, log, order):
    spec = Softmax(axes, log, (PostOp("mul", (0.5,)),))
    check_universal(device, spec, [normal((2, 19, 5, 13)) * 9], orders=orders(order))


def test_softmax_of_what_is_no_number(device):
    x = normal((7, 33))
    x[0, 3], x[1, 4], x[2], x[3, 1:] = np.nan, np.inf, -np.inf, -np.inf
    x[4, 5] = 1e30
    check_universal(device, Softmax((1,)), [x])


@ORDERS
@pytest.mark.parametrize("axes", ((1,), (3,), (2, 3), (1, 2, 3), (0,)))
@pytest.mark.parametrize("centre", (True, False))
def test_norms(device, axes, centre, order):
    x = normal((2, 19, 5, 13)) * 3 + 5
    spec = Normalise(axes, 1e-3, centre=centre, post_ops=SCALED)
    check_universal(
        device, spec, [x, normal((19, 1, 1), 1), normal((2, 1, 5, 1), 2)], orders=orders(order)
    )


@ORDERS
@pytest.mark.parametrize("groups", (1, 3, 18))
def test_norms_of_groups(device, groups, order):
    spec = Normalise((2, 3), groups=groups, post_ops=(PostOp("mul", operand=1),))
    inputs = [normal((2, 18, 5, 7)) + 3, normal((18, 1, 1), 1)]
    check_universal(device, spec, inputs, orders=orders(order))


def test_long_rows_keep_their_precision(device):
    x = normal((3, 70_000)) + 100
    check_universal(device, Normalise((1,)), [x])
    check_universal(device, Reduce("mean", (1,)), [x])


@pytest.mark.parametrize("fn", sorted(FOLDS.keys() & MODES.keys()))
@pytest.mark.parametrize("axes", ((1,), (2, 3), (0, 1, 2, 3), (0, 3)))
def test_reductions(device, fn, axes):
    x = normal((2, 9, 5, 13)) / 3
    if fn == "log_sum":
        x = np.abs(x) + 0.1
    if fn == "prod":
        x = 1 + x / 50
    for order, keep in ((NHWC, True), (NCHW, False)):
        spec = Reduce(fn, axes, keep, post_ops=(PostOp("add", (1.0,)),))
        how = orders(order) if keep and len(axes) < 4 else {"i0": order}
        check_universal(device, spec, [x], orders=how)


def test_reductions_of_what_is_no_number(device):
    x = normal((4, 21))
    x[0, 3], x[1, 4], x[2, 5], x[3, :2] = np.nan, np.inf, -np.inf, (np.inf, -np.inf)
    for fn in ("max", "min", "sum", "log_sum_exp"):
        check_universal(device, Reduce(fn, (1,)), [x])
    check_universal(device, Reduce("log_sum_exp", (1,)), [np.full((3, 5), -np.inf, np.float32)])


SAMPLES = {
    "repeat": (Sampling("nearest", "asymmetric", "floor"), (10, 21)),
    "nearest": (Sampling("nearest"), (8, 5)),
    "linear": (Sampling("linear"), (11, 4)),
    "corners": (Sampling("linear", "align_corners"), (70, 9)),
    "in_turn": (Sampling("linear", in_turn=True), (11, 17)),
    "cubic": (Sampling("cubic", cubic_a=-0.5), (8, 13)),
    "antialias": (Sampling("linear", antialias=True), (3, 2)),
    "crops": (Sampling("linear", "tf_crop_and_resize", extrapolation=-7.5), (9, 12)),
}


@ORDERS
@pytest.mark.parametrize("name", SAMPLES)
def test_resizing(device, name, order):
    how, result = SAMPLES[name]
    x = normal((2, 21, 5, 7))
    scales = (1.0, 1.0, result[0] / 5, result[1] / 7)
    roi = ((0.0, 1.0), (0.0, 1.0), (-0.2, 1.1), (0.1, 0.9)) if how.crops else ()
    spec = Resize((2, 21, *result), scales, how, roi, (PostOp("add", operand=1),))
    check_universal(device, spec, [x, normal((21, 1, 1), 1)], orders=orders(order))


def test_resizing_of_lines(device):
    check_universal(device, Resize((3, 150), (1.0, 3.0), Sampling("linear")), [normal((3, 50))])


@ORDERS
@pytest.mark.parametrize("mode", PADS)
@pytest.mark.parametrize("before", ((0, 0, 2, 1), (0, 5, 0, 0), (1, -2, 3, -1)))
def test_pads(device, mode, before, order):
    after = (0, 4, 1, 0)
    if mode == "reflect" and before[0]:
        before = (0, *before[1:])
    spec = Pad(before, after, mode, 1.5 if mode == "constant" else 0.0)
    x = normal((2, 19, 7, 9))
    x[0, 3, 4, 5] = np.nan
    x[1, 2, 3, 4] = np.inf
    check_universal(device, spec, [x], orders=orders(order))


TRANSPOSED = {
    "doubled": ((2, 2), (2, 2), (1, 1), (0, 0), (10, 14), 1, 20, 11),
    "overlapping": ((3, 3), (2, 2), (1, 1), (1, 1), (9, 13), 1, 6, 17),
    "behind": ((3, 4), (2, 3), (1, 1), (1, 0), (11, 22), 1, 5, 8),
    "dilated": ((3, 2), (2, 1), (2, 3), (1, 2), (11, 6), 1, 7, 9),
    "even": ((3, 3), (2, 2), (2, 2), (0, 0), (13, 17), 1, 4, 9),
    "plain": ((3, 5), (1, 1), (1, 1), (1, 2), (5, 7), 1, 9, 21),
    "sparse": ((1, 1), (3, 2), (1, 1), (0, 0), (13, 13), 1, 6, 5),
    "groups": ((4, 4), (2, 2), (1, 1), (1, 1), (10, 14), 3, 12, 5),
    "filters": ((3, 3), (2, 2), (1, 1), (1, 1), (10, 14), 19, 19, 1),
}


@ORDERS
@pytest.mark.parametrize("case", TRANSPOSED)
def test_transposed_convolutions(device, case, order):
    kernel, strides, dilations, before, extents, group, channels, made = TRANSPOSED[case]
    ops = (PostOp("add", operand=3), PostOp("leaky_relu", (0.1,)))
    spec = ConvTranspose(kernel, strides, dilations, before, extents, group, ops)
    oc = made * group
    inputs = [normal((2, channels, 5, 7)), normal((channels, made, *kernel), 1)]
    inputs += [normal((oc,), 2), normal((2, oc, *extents), 3)]
    check_universal(device, spec, inputs, consts=(1, 2), orders=orders(order))


def test_a_transposed_convolution_of_a_line(device):
    spec = ConvTranspose((5,), (3,), (1,), (1,), (31,))
    inputs = [normal((2, 6, 10)), normal((6, 9, 5), 1), None]
    check_universal(device, spec, inputs, consts=(1,))


@pytest.mark.parametrize("axis", (2, 3))
def test_pads_of_volumes(device, axis):
    """Axes that stay are joined, so that no more than four are walked."""
    before, after = [0] * 5, [0] * 5
    before[axis], after[axis] = 1, 2
    x = normal((2, 5, 3, 4, 6))
    check_universal(device, Pad(tuple(before), tuple(after), "constant", -7.0), [x])
    whole = (x * 99).astype(np.int32)
    check_universal(device, Pad(tuple(before), tuple(after), "constant", -7.0), [whole])

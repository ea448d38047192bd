from __future__ import annotations

import itertools

import numpy as np
import pytest
from harness import check_op, normal, rng

from clnn.errors import DTypeError, ShapeError
from clnn.ops._functions import Step
from clnn.ops._window import Window
from clnn.ops.pool import Pool
from clnn.types import I32, TensorType


def window(kernel, strides=(1, 1), dilations=(1, 1), before=(0, 0), after=(0, 0), ceil=False):
    return Window(kernel, strides, dilations, before, after, ceil)


WINDOWS = {
    "plain": window((2, 2), (2, 2)),
    "padded": window((3, 3), (2, 2), before=(1, 1), after=(1, 1)),
    "uneven": window((3, 2), (1, 2), before=(2, 0), after=(0, 1)),
    "dilated": window((2, 3), (2, 1), (3, 2), (1, 2), (2, 1)),
    "ceil": window((3, 3), (2, 3), before=(1, 0), after=(0, 1), ceil=True),
    "large": window((6, 7), (1, 1), before=(3, 3), after=(2, 3)),
}
KINDS = {
    "max": {"how": "max"},
    "avg": {"how": "avg"},
    "avg_pad": {"how": "avg", "count_pad": True},
    "lp1": {"how": "lp", "p": 1},
    "lp2": {"how": "lp"},
    "lp3": {"how": "lp", "p": 3},
}


@pytest.mark.parametrize("win", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("how", ["max", "avg", "avg_pad"])
def test_windows(device, win, how):
    check_op(device, Pool(window=win, **KINDS[how]), [normal((2, 24, 9, 10))], border=1)


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("channels", [1, 4, 7, 32])
def test_channel_tails(device, how, channels):
    spec = Pool(window=WINDOWS["padded"], **KINDS[how])
    check_op(device, spec, [normal((1, channels, 7, 6))])


@pytest.mark.parametrize("how", ["max", "avg"])
def test_row_major_images(device, how):
    spec = Pool(window=WINDOWS["padded"], **KINDS[how])
    orders = {"i0": (0, 1, 2, 3), "o0": (0, 1, 2, 3)}
    assert len(check_op(device, spec, [normal((2, 8, 7, 6))], orders=orders)) == 1


def test_one_spatial_axis(device):
    win = Window((3,), (2,), (1,), (1,), (1,))
    check_op(device, Pool("max", win), [normal((2, 8, 11))])
    check_op(device, Pool("avg", win), [normal((2, 8, 11))])


@pytest.mark.parametrize("order", ["row", "column"])
def test_indices_of_maxima(device, order):
    spec = Pool("max", WINDOWS["padded"], indices=order)
    check_op(device, spec, [normal((2, 3, 7, 6))])
    ties = rng().integers(0, 3, (1, 2, 6, 6)).astype(np.float32)
    check_op(device, spec, [ties])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_bytes(device, dtype):
    info = np.iinfo(dtype)
    x = rng().integers(info.min, info.max, (1, 16, 7, 6), dtype=dtype, endpoint=True)
    check_op(device, Pool("max", WINDOWS["padded"]), [x])


def test_nan_and_infinity_come_out(device):
    x = normal((1, 16, 6, 6))
    x[0, 3, 2, 2], x[0, 5, 1, 1], x[0, 6] = np.nan, np.inf, -np.inf
    check_op(device, Pool("max", WINDOWS["padded"]), [x])


def test_fused_steps(device):
    spec = Pool("max", WINDOWS["plain"], steps=(Step("add", operand=1), Step("relu")))
    check_op(device, spec, [normal((2, 16, 6, 8)), normal((1, 16, 1, 1), 1)])
    check_op(device, spec, [normal((2, 16, 6, 8)), normal((2, 16, 3, 4), 1)])


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "kernel,stride,dilation", list(itertools.product((1, 2, 3, 5), (1, 2, 3), (1, 2)))
)
def test_every_small_shape(device, kernel, stride, dilation):
    reach = dilation * (kernel - 1) + 1
    for pad, size, ceil in itertools.product((0, 1, 2), (reach, reach + 1, 9), (False, True)):
        if pad >= kernel:
            continue
        win = window((kernel,) * 2, (stride,) * 2, (dilation,) * 2, (pad,) * 2, (pad,) * 2, ceil)
        for how in ("max", "avg", "avg_pad"):
            check_op(device, Pool(window=win, **KINDS[how]), [normal((1, 16, size, size))])


def test_bad_inputs_name_the_values():
    with pytest.raises(ShapeError, match=r"kernel \(2, 2\)"):
        Pool("max", WINDOWS["plain"]).infer([TensorType((1, 2, 8))])
    with pytest.raises(DTypeError, match="avg pooling of int32"):
        Pool("avg", WINDOWS["plain"]).infer([TensorType((1, 2, 8, 8), I32)])
    with pytest.raises(ShapeError, match="does not fit"):
        Pool("max", WINDOWS["plain"]).infer([TensorType((1, 2, 1, 8))])

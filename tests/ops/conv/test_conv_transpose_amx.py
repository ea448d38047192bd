"""Transposed convolutions of bfloat16 by tiles of registers."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_op, normal, of_cpus
from targets import with_tiles

from clnn.ops.conv.transpose import ConvTranspose
from clnn.ops.shared.functions import PostOp

pytestmark = pytest.mark.dealt  # kernels that are slow to build
TILES = "_amx_"  # in names of kernels


@pytest.fixture(params=["x86", "plain"])
def how(request, monkeypatch, device):
    with_tiles(monkeypatch, device, request.param)


def case(ic, oc, spatial, kernel, post_ops=(), strides=None, extra=0, group=1):
    """A spec whose windows lie side by side, and its inputs."""
    strides = strides or kernel
    extents = tuple(
        (i - 1) * s + k + extra for i, k, s in zip(spatial, kernel, strides, strict=True)
    )
    rank = len(kernel)
    spec = ConvTranspose(kernel, strides, (1,) * rank, (0,) * rank, extents, group, post_ops)
    return spec, [
        normal((2, ic, *spatial)),
        normal((ic, oc // group, *kernel), 1),
        normal((oc,), 2),
    ]


def innermost(x):
    """Channels side by side, in the input and in the output."""
    return {n: (0, *range(2, x.ndim), 1) for n in ("i0", "o0")}


CASES = {
    "2x2": case(8, 40, (5, 9), (2, 2)),
    "3x1": case(34, 17, (3, 20), (3, 1), (PostOp("relu"),)),
    "1x1": case(12, 33, (4, 4), (1, 1)),
    "line": case(64, 20, (20,), (2,)),
}
OTHERS = {
    "overlapping": case(8, 40, (5, 9), (3, 3), strides=(2, 2)),
    "gaps": case(8, 40, (5, 9), (2, 2), strides=(3, 3)),
    "wider": case(8, 40, (5, 9), (2, 2), extra=1),
    "groups": case(8, 40, (5, 9), (2, 2), group=2),
    "many_taps": case(8, 20, (2, 20), (1, 17)),
    "odd": case(7, 40, (5, 9), (2, 2)),
}


@pytest.mark.parametrize("border", [0, 2])
@pytest.mark.parametrize("given", CASES.values(), ids=CASES)
def test_taps_side_by_side(device, how, given, border):
    spec, inputs = given
    more = {"consts": (1, 2), "dtype": "bf16", "border": border}
    orders = innermost(inputs[0])
    ran = check_op(device, spec, inputs, orders=orders, **more)
    assert (TILES in ran[0]) == of_cpus(device), ran
    check_op(device, spec, [*inputs[:2], None], orders=orders, **more)


@pytest.mark.parametrize("given", OTHERS.values(), ids=OTHERS)
def test_others_are_left(device, how, given):
    spec, inputs = given
    orders = innermost(inputs[0])
    ran = check_op(device, spec, inputs, consts=(1, 2), dtype="bf16", orders=orders)
    assert not any(TILES in name for name in ran), ran


def test_operands_of_steps_and_infinite_weights_are_left(device, how):
    spec, inputs = case(8, 20, (4, 5), (2, 2), (PostOp("add", operand=3),))
    given = [*inputs, normal((2, 20, 8, 10), 3)]
    how_given = {"consts": (1, 2), "dtype": "bf16", "orders": innermost(inputs[0])}
    ran = check_op(device, spec, given, **how_given)
    spec, inputs = CASES["2x2"]
    weights = inputs[1].copy()
    weights[0, 0, 0, 0] = np.inf
    ran += check_op(device, spec, [inputs[0], weights, inputs[2]], **how_given)
    assert not any(TILES in name for name in ran), ran


def test_values_that_are_no_numbers_stay_where_taps_reach(device, how):
    spec, inputs = CASES["2x2"]
    x = inputs[0].copy()
    x[0, 1, 2, 2], x[1, 0, 4, 8] = np.nan, np.inf
    given = {"consts": (1, 2), "dtype": "bf16", "orders": innermost(x)}
    check_op(device, spec, [x, *inputs[1:]], only=TILES, **given)

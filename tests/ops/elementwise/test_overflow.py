"""Integers wrap as numpy's do, in every operator that computes with them; nothing stops the device."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_op
from together import check_together

from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.elementwise.logic import Logic
from clnn.ops.gemm.spec import Gemm
from clnn.ops.rows.cumsum import CumSum
from clnn.ops.rows.reduce import Reduce
from clnn.ops.shared.functions import PostOp

DTYPES = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
ARITHMETIC = ("add", "sub", "mul", "pow", "div", "neg", "abs", "square")


def extremes(dtype, shape, seed):
    """Numbers at both ends of a type, around zero, and of any size."""
    limits, chance = np.iinfo(dtype), np.random.default_rng(seed)
    ends = [limits.min, limits.min + 1, limits.max, limits.max - 1, 0, 1, 2, 3]
    ends += [limits.max // 2 + 1, limits.max // 3] + [-1, -2] * (limits.min < 0)
    some = chance.choice(np.array(ends, dtype), shape)
    some.reshape(-1)[0] = limits.min
    return some


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [48, 7], ids=["vectors", "elements"])
def test_arithmetic_wraps(device, dtype, count):
    a, b = extremes(dtype, (3, count), 1), extremes(dtype, (3, count), 2)
    signed = np.dtype(dtype).kind == "i"
    if signed:
        a[0, 1], b[0, 1] = np.iinfo(dtype).min, -1  # whose quotient is none, and stops processors
        a[0, 2], b[0, 2] = np.iinfo(dtype).min, 0
    specs = {}
    for fn in ARITHMETIC:
        if fn in ("neg", "abs", "square"):
            specs[fn] = Eltwise((PostOp(fn),))
        else:
            specs[fn] = Eltwise((PostOp(fn, operand=1),))
    specs |= {"mod": Logic("mod"), "rest": Logic("rest")}
    if not signed:
        specs |= {"left": Logic("shift_left"), "right": Logic("shift_right")}
    if not signed:
        del specs["neg"]
    check_together(device, specs, [a, b])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [0, 1])
def test_sums_and_products_wrap(device, dtype, axis):
    x = extremes(dtype, (37, 70), 3)
    names = ["sum", "prod", "l1", "sum_square"] + ["mean"] * (x.dtype.itemsize >= 4)
    specs = {name: Reduce(name, (axis,)) for name in names}
    specs["l1 and more"] = Reduce("l1", (axis,), post_ops=(PostOp("at_least", (3,)), PostOp("neg")))
    if np.dtype(dtype).kind == "u":
        del specs["l1 and more"]
    check_together(device, specs, [x])


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64"])
def test_running_sums_and_matrix_products_wrap(device, dtype):
    x = extremes(dtype, (9, 33), 4)
    check_together(device, {str(a): CumSum(a, reverse=bool(a)) for a in (0, 1)}, [x])
    check_op(device, Gemm(), [x, extremes(dtype, (33, 5), 5)])

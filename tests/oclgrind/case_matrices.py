"""Cases of matrix products."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
from harness import check_op, normal
from simulator import DEVICE
from table import NHWC, add, put

from clnn.ops.conv.spec import Conv2d
from clnn.ops.gemm.spec import Gemm
from clnn.ops.shared import strassen
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.strassen import StrassenPlan
from clnn.ops.shared.window import Window
from clnn.ops.spec import OpSpec
from clnn.ops.transformer.attend import Attention
from clnn.ops.transformer.rotate import Rotate
from clnn.target import Target


def multiply(
    name: str,
    a: Sequence[int],
    b: Sequence[int],
    *,
    spec: Gemm | None = None,
    c: Sequence[int] = (),
    fixed: bool = False,
    **how: Any,
) -> None:
    """Add a matrix product; c: shape of the addend; fixed: b is a constant."""
    inputs: list[np.ndarray | None] = [normal(a), normal(b, 1), normal(c, 2) if c else None]
    add(name, spec or Gemm(), inputs, consts=(1,) if fixed else (), **how)


TANH = (PostOp("tanh"),)
multiply("gemm_fixed", (5, 9), (9, 21), fixed=True, c=(21,))
multiply("gemm_ahead", (20, 410), (410, 40), fixed=True, every=True, targets=("cpu",))
multiply("gemm_moving", (5, 9), (9, 20))
multiply("gemm_uneven", (19, 3), (3, 21))
multiply("gemm_row", (1, 40), (40, 37), c=(1, 37), spec=Gemm(0.5, 2.0))
multiply("gemm_dot", (3, 35), (6, 35), spec=Gemm(trans_b=True), c=(3, 1))
multiply("gemm_turned", (9, 5), (9, 18), spec=Gemm(trans_a=True, post_ops=TANH))
multiply("gemm_turned_panels", (4, 6), (21, 6), spec=Gemm(trans_b=True))
multiply(
    "gemm_columns", (4, 6), (20, 6), spec=Gemm(trans_b=True), orders={"o0": (1, 0)}, fixed=True
)
multiply("gemm_scattered", (4, 6), (6, 5), orders={"o0": (1, 0), "i1": (1, 0)}, c=(4, 5))
multiply("gemm_staged", (19, 4), (4, 37), spec=Gemm(post_ops=TANH))
multiply("gemm_staged_fixed", (7, 4), (4, 3), spec=Gemm(post_ops=TANH), fixed=True)
multiply("gemm_batch", (2, 3, 4, 6), (3, 6, 5))
multiply("gemm_vector", (7, 6), (6,))
multiply("gemm_parts", (2, 70), (70, 9), targets=("gpu",))
multiply(
    "gemm_parts_steps",
    (3, 65),
    (65, 40),
    spec=Gemm(post_ops=(PostOp("relu"),)),
    fixed=True,
    targets=("gpu",),
)
add(
    "gemm_int",
    Gemm(2.0),
    [np.arange(12, dtype=np.int32).reshape(3, 4), np.arange(8, dtype=np.int32).reshape(4, 2), None],
)
for _m, _k, _n in itertools.product((1, 3, 8), (1, 7, 33), (1, 4, 17)):
    multiply(f"gemm_{_m}x{_k}x{_n}", (_m, _k), (_k, _n), long=True)
    multiply(f"gemm_fixed_{_m}x{_k}x{_n}", (_m, _k), (_k, _n), fixed=True, long=True)
    multiply(f"gemm_turned_{_m}x{_k}x{_n}", (_m, _k), (_n, _k), spec=Gemm(trans_b=True), long=True)


def in_seven(
    spec: OpSpec, inputs: list[np.ndarray | None], consts: tuple[int, ...], panels: int
) -> None:
    """Check Strassen's products of blocks of 4 rows by one vector, whatever they save.

    A row of the input holds an infinity.
    """

    def plans(m: int, n: int, k: int, target: Target) -> tuple[StrassenPlan, ...]:
        return (StrassenPlan(4, 1, target.vector, 4, panels, 1),)

    assert inputs[0] is not None
    inputs[0][0, ..., 1] = np.inf
    with (
        mock.patch.object(strassen, "plans", plans),
        mock.patch.object(strassen, "LEAST_VECTOR", 1),
        mock.patch.object(strassen, "NEAR_BYTES", 0),
    ):
        orders = {f"{kind}0": NHWC for kind in "io"} if isinstance(spec, Conv2d) else {}
        check_op(DEVICE, spec, inputs, consts=consts, orders=orders, only="strassen")


_relu = (PostOp("relu"), PostOp("mul", operand=3))
for _name, _spec, _inputs, _panels in (
    (
        "rows",
        Gemm(post_ops=_relu),
        [normal((11, 8)), normal((8, 37), 1), normal((37,), 2), normal((11, 37), 3)],
        1,
    ),
    ("steps_in_a_loop", Gemm(post_ops=TANH), [normal((5, 8)), normal((8, 21), 1), None], 2),
    (
        "pixels",
        Conv2d(Window((1, 1), (2, 1), (1, 1), (0, 0), (0, 0)), 1, _relu[:1]),
        [normal((2, 8, 3, 3)), normal((32, 8, 1, 1), 1), normal((32,), 2)],
        1,
    ),
):
    _consts = (1, 2) if _inputs[2] is not None else (1,)
    put(f"strassen_{_name}", partial(in_seven, _spec, _inputs, _consts, _panels), targets=("cpu",))

# The rows of all matrices walk a panel of what they share before the next one.
_inputs = [normal((2, 3, 5, 12)), normal((12, 40), 1), None, normal((2, 3, 5, 40), 2)]
_spec = Gemm(post_ops=(PostOp("add", operand=3),))
_how = {"consts": (1,), "border": 1, "every": True, "only": "_rows", "targets": ("cpu",)}
add("gemm_shared", _spec, _inputs, **_how)

MASK = np.where(np.arange(37) > 30, -np.inf, 0).astype(np.float32)
MASKED = Gemm(0.3, trans_b=True, post_ops=(PostOp("add", operand=3),))
for _name, _spec, _keys, _columns in (
    ("attention", Attention(MASKED, turned=True), 37, 20),
    ("attention_zeros", Attention(MASKED, zeros_for_nan=True), 37, 3),
):
    _q, _k, _v = (normal((1, 2, n, d), d) for n, d in ((9, 5), (_keys, 5), (_keys, _columns)))
    add(_name, _spec, [_q, _k, None, MASK, _v])
_q, _k, _v = (normal((1, 2, n, 16), n) for n in (8, 32, 32))
add("attention_even", Attention(Gemm(trans_b=True)), [_q, _k, None, _v])
# Several blocks of keys, the last one narrower, and tiles of rows of which the last two overlap; then
# a single block that is not full, whatever vectors hold.
for _name, _rows in (("blocks", 37), ("block", 9)):
    _q, _k, _v = (normal((n, 3), n) for n in (_rows, 19, 19))
    _spec = Attention(Gemm(0.3, trans_b=True))
    add(f"attention_{_name}", _spec, [_q, _k, None, _v], targets=("cpu",))
_q, _k, _v = normal((2, 3, 9, 8)), normal((2, 1, 21, 8), 1), normal((2, 1, 21, 16), 2)
add("attention_groups", Attention(Gemm(0.3, trans_b=True), turned=2), [_q, _k, None, _v])
for _beside in (False, True):
    _label = "pairs" if _beside else "halves"
    for _size in (6, 40):
        _x = normal((2, 3, 5, _size), _size)
        _tables = [normal((5, _size), k) for k in (1, 2)]
        add(f"rotate_{_label}_{_size}", Rotate(_beside), [_x, *_tables])
    add(f"rotate_{_label}_both", Rotate(_beside), [_x, normal((5, 20), 1), normal((20,), 2)])

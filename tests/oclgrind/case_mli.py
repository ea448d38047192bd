"""Cases of embARC MLI's elementwise functions, averages, dense layers and transposed convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
from harness import rng
from table import add

from clnn.arith import mli_fused
from clnn.arith._base import Arithmetic
from clnn.arith.mli import MliAffine, MliFixed
from clnn.arith.mli_convert import convert
from clnn.arith.mli_dense import DenseRule, MliDense
from clnn.arith.mli_maps import MliMap, affine_leaky, binary, clip, fixed_leaky
from clnn.arith.mli_pool import AverageRule
from clnn.arith.mli_quant import Quant
from clnn.arith.mli_rows import (
    L2Finish,
    L2Rule,
    L2Scale,
    L2Square,
    SoftmaxFinish,
    SoftmaxPower,
    SoftmaxRule,
    SoftmaxScale,
)
from clnn.arith.mli_tables import SIGMOID, TANH, activation
from clnn.ops.conv.spec import Conv2d
from clnn.ops.conv.transpose import ConvTranspose
from clnn.ops.elementwise.fixed_map import FixedMap
from clnn.ops.pool.spec import Pool
from clnn.ops.rows.mli_argmax import MliTopK
from clnn.ops.shared.window import Window

FX8, FX16 = Quant(8, 5), Quant(16, 11)
SA8 = Quant(8, 20, 24590, -42, True)
SA8_OUT = Quant(8, 18, 16499, 7, True)
SA32 = Quant(32, 29, 23134, 0, True)


def operands(function: MliMap, shape: tuple[int, ...], seed: int = 0) -> list[np.ndarray]:
    """Return operands of a function; wide ones stay where their sums do not matter."""
    found = []
    for k, dtype in enumerate(function.types[:-1]):
        if dtype.is_float:
            found.append(rng(seed + k).normal(0, 9, shape).astype(np.float32))
            continue
        bits = min(8 * dtype.itemsize, 24) - 1
        found.append(rng(seed + k).integers(-(1 << bits), 1 << bits, shape).astype(dtype.numpy))
    return found


def function(name: str, made: MliMap, rows: list[np.ndarray] | None = None, **how: Any) -> None:
    """Add an elementwise function; rows: its last operands."""
    given = operands(made, (3, 19))
    if rows is not None:
        given = [given[0], *(row.reshape(1, -1) for row in rows)]
    add(f"mli_{name}", FixedMap(made), given, **how)


for _op, _up in (("add", False), ("sub", True), ("mul", False), ("max", True), ("min", False)):
    function(f"fx16_{_op}", binary(_op, FX16, Quant(16, 12), Quant(16, 9), _up), quick=("cpu",))
    function(f"sa8_{_op}", binary(_op, SA8, SA8_OUT, SA8, _up), quick=("cpu",))
function("fx8_max_left", binary("max", FX8, FX8, Quant(8, 7), True), quick=("cpu",))
function("clip", clip(FX16, -100, 3000), quick=("cpu",))
function("fx16_leaky", fixed_leaky(FX16, Quant(16, 14), FX16, True))
_leaky, *_rows = affine_leaky(SA8, [(k - 9, SA8_OUT) for k in range(19)], SA8_OUT, False)
function("sa8_leaky", _leaky, _rows)
function("fx16_sigmoid", activation(SIGMOID, FX16, False))
function("fx16_tanh_direct", activation(TANH, Quant(16, 3), True), quick=("cpu",))
function("sa8_tanh", activation(TANH, SA8, False))
function("short", *convert([SA8], [FX16], False), quick=("cpu",))
function("long", *convert([SA32] * 19, [SA8], True), quick=("cpu",))
function("from_float", *convert(None, [SA8], False), quick=("cpu",))
function("to_float", *convert([SA8], None, False), quick=("cpu",))
function("softmax_power", SoftmaxPower(SoftmaxRule(SA8)), quick=("cpu",))
function("softmax_scale", SoftmaxScale(SoftmaxRule(FX16, True)), quick=("cpu",))
_packed = [np.array([20000 | s << 16 for s in range(19)], np.int32)]
add(
    "mli_softmax_finish",
    FixedMap(SoftmaxFinish(SoftmaxRule(FX16))),
    [rng().integers(0, 32767, (3, 19), np.int32), *_packed],
    quick=("cpu",),
)
function("l2_square", L2Square(L2Rule(SA8)), quick=("cpu",))
add(
    "mli_l2_scale",
    FixedMap(L2Scale(L2Rule(FX16, True))),
    [np.array([0, 1, 5, 2**33 + 7, 2**46], np.int64)],
    quick=("cpu",),
)
_shifted = np.array([20000 | 60 + s << 16 for s in range(19)], np.int32)
add(
    "mli_l2_finish",
    FixedMap(L2Finish(L2Rule(FX16))),
    [rng().integers(-32768, 32767, (3, 19), np.int16), _shifted],
    quick=("cpu",),
)
_gates = Quant(16, 10)
function("lstm_cell", mli_fused.lstm_cell(_gates, FX16, False, False))
function("lstm_cell_wide", mli_fused.lstm_cell(_gates, FX16, True, True), quick=("cpu",))
function("gru_sa8", mli_fused.gru_new_state(Quant(8, 9, 21, 0, True), SA8, SA8, 1, False, False))

_WINDOW = Window((3, 2), (2, 1), (1, 1), (1, 1), (1, 0))
for _kind, _quant, _type in (("sa8", SA8, np.int8), ("fx16", FX16, np.int16)):
    _out = SA8_OUT if _kind == "sa8" else Quant(16, 12)
    add(
        f"mli_average_{_kind}",
        Pool(_WINDOW, "average", rule=AverageRule(_quant, _out)),
        [rng().integers(-120, 120, (1, 9, 5, 6)).astype(_type)],
        border=1,
    )

add("mli_topk", MliTopK(3), [rng().integers(-9, 9, (2, 17)).astype(np.int8)])
add("mli_topk_pair", MliTopK(2), [rng().integers(-9, 9, (3, 5)).astype(np.int16)], quick=("cpu",))

POINT = Window((1, 1), (1, 1), (1, 1), (0, 0), (0, 0))


def dense(name: str, rule: DenseRule, types: str) -> None:
    """Add the scaled products of two gates of 9 units."""
    shapes = ((2, 7, 1, 1), (18, 7, 1, 1), (18,))
    data = [
        rng(k).integers(-99, 99, shape).astype(dtype)
        for k, (shape, dtype) in enumerate(zip(shapes, types.split(), strict=True))
    ]
    add(f"mli_dense_{name}", Conv2d(POINT, arith=MliDense(rule, 2)), data, consts=(1, 2))


dense("fx16", DenseRule(FX16, 16, ((1, 13),) * 2, _gates, 15), "int16 int16 int16")
dense("fx8", DenseRule(FX16, 8, ((1, 9),) * 2, _gates, 5), "int16 int8 int8")
dense(
    "sa8", DenseRule(SA8, 8, ((29307, 24), (22222, 23)), Quant(8, 4, 1, 0, True)), "int8 int8 int32"
)


def transposed(name: str, arith: Arithmetic, types: str, before: tuple[int, int]) -> None:
    """Add a transposed convolution with strides."""
    spec = ConvTranspose((3, 2), (2, 2), (1, 1), before, (6, 7), arith=arith)
    shapes = ((1, 3, 3, 4), (3, 5, 3, 2), (5,))
    data = [
        rng(k).integers(-99, 99, shape).astype(dtype)
        for k, (shape, dtype) in enumerate(zip(shapes, types.split(), strict=True))
    ]
    add(f"mli_transposed_{name}", spec, data, consts=(1, 2))


transposed("fx16", MliFixed(16, 4, 9), "int16 int16 int16", (0, 0))
transposed(
    "sa8",
    MliAffine(24494, 21, 20291, 16, (17000,) * 5, (22,) * 5, -43, 16),
    "int8 int8 int32",
    (1, 0),
)

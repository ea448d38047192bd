"""Cases of the OpenVX extension's arithmetic: sums of products, elementwise functions, own kernels."""

from __future__ import annotations

import numpy as np
from harness import rng
from table import MODES, NHWC, add

from clnn.arith.openvx import Format, Scale
from clnn.arith.openvx_device import (
    VxAverage,
    VxClamp,
    VxMac,
    VxMatrix,
    VxProduct,
    VxSum,
    VxTable,
)
from clnn.ops.conv.spec import Conv2d
from clnn.ops.elementwise.fixed_map import FixedMap
from clnn.ops.rows.openvx_norm import OpenVxNorm
from clnn.ops.rows.openvx_softmax import OpenVxSoftmax
from clnn.ops.shared.window import Window
from clnn.types import I16, U8

CPU = ("cpu",)
Q78, BYTE = Format(I16, 8), Format(U8)
NINE = Window((2, 2), (1, 1), (1, 1), (1, 0), (0, 1))
POINT = Window((1, 1), (1, 1), (1, 1), (0, 0), (0, 0))


def numbers(shape, form=Q78, seed=0):
    """Return elements over the whole range."""
    found = rng(seed).integers(form.low, form.high + 1, shape)
    return found.astype(form.dtype.numpy)


X, W = numbers((1, 3, 3, 4)), numbers((5, 3, 2, 2), seed=1)
B = numbers((5,), seed=2).astype(np.int32)
SUMS = {
    "suite": VxMac(Q78, 8, "biased", False, 16, channels=True),
    "even": VxMac(Q78, 8, "even", False, 40, bias_first=False, wide=True),
    "wrap": VxMac(Q78, 8, "zero", True, 32),
}
for _name, _arith in SUMS.items():
    add(
        f"openvx_conv_{_name}",
        Conv2d(NINE, arith=_arith),
        [X, W, B],
        consts=(1, 2),
        orders={"i0": NHWC, "o0": NHWC},
        quick=CPU,
    )
add(
    "openvx_conv_places",
    Conv2d(NINE, arith=SUMS["suite"]),
    [X, W, numbers((5, 3, 4), seed=3).astype(np.int32)],
    quick=CPU,
)
add(
    "openvx_average",
    Conv2d(NINE, 3, arith=VxAverage(Q78, 4)),
    [X, np.ones((3, 1, 2, 2), np.int8)],
    consts=(1,),
    orders={"i0": NHWC, "o0": NHWC},
    quick=CPU,
)
for _wide in (False, True):
    add(
        f"openvx_matrix_{_wide}",
        Conv2d(POINT, arith=VxMatrix(BYTE, 2, _wide)),
        [
            numbers((1, 6, 4, 1), BYTE),
            numbers((3, 6, 1, 1), BYTE, 1),
            numbers((3, 4, 1), BYTE, 2).astype(np.int32),
        ],
        quick=CPU,
    )

ONE, TWO = numbers((3, 8)), numbers((3, 8), seed=1)
FUNCTIONS = {
    "sum": VxSum(Q78, False),
    "difference": VxSum(Q78, True, -1),
    "product_rounded": VxProduct(Q78, Scale.of(1 / 255), 8, False, True, 53),
    "product_cut": VxProduct(Q78, Scale.of(0.7), 8, True, False),
    "product_large": VxProduct(Q78, Scale.of(2.0**20), 0, False, False),
    "product_huge": VxProduct(Q78, Scale.of(2.0**80), 0, False, False),
    "table": VxTable.of(I16, I16, -20000, np.arange(40000)),
}
for _name, _function in FUNCTIONS.items():
    _modes = ("unoptimised",) if _name == "product_rounded" else MODES
    add(f"openvx_{_name}", FixedMap(_function), [ONE, TWO], quick=CPU, modes=_modes)
# In the other mode Oclgrind counts leading zeros of vectors wrongly, but not of single numbers.
add(
    "openvx_product_one",
    FixedMap(FUNCTIONS["product_rounded"]),
    [ONE[:, :7], TWO[:, :7]],
    quick=CPU,
)
add("openvx_clamp", FixedMap(VxClamp(Q78, 0, 900, True)), [ONE], quick=CPU)
add(
    "openvx_table_whole",
    FixedMap(VxTable.of(U8, U8, 0, np.arange(256))),
    [numbers((9,), BYTE)],
    quick=CPU,
)

for _suite in (False, True):
    add(f"openvx_softmax_{_suite}", OpenVxSoftmax(1, BYTE, Q78, _suite), [numbers((2, 5, 3), BYTE)])
for _across in (False, True):
    for _sample, _beta in ((True, 0.75), (False, 0.75), (False, 0.5), (False, 1.0), (False, 0.3)):
        add(
            f"openvx_norm_{_across}_{_sample}_{_beta}",
            OpenVxNorm(3, 0.8, _beta, _across, Q78, Q78, _sample),
            [numbers((1, 3, 2, 3))],
            quick=CPU,
            long=_across and _beta != 0.75,
        )

"""Cases of ESP-DL: sums of products, elementwise functions, averages."""

from __future__ import annotations

from typing import Any

import numpy as np
from harness import rng
from table import add

from clnn.arith import espdl_maps as maps
from clnn.arith.espdl import FLOOR, GRAIN, HALF_EVEN, HALF_UP, EspLanes, EspProducts
from clnn.ops.conv.spec import Conv2d
from clnn.ops.elementwise.fixed_map import FixedMap
from clnn.ops.pool.spec import Pool
from clnn.ops.shared.window import Window

WINDOW = Window((3, 2), (1, 2), (1, 1), (1, 0), (1, 1))
SHIFTS = (9, 3, 0, -1, 12)


def products(name: str, arith: EspProducts, dtype: Any, bias: Any, **how: Any) -> None:
    """Add a convolution of five filters."""
    kind = np.int8 if arith.w_bits == 8 else dtype
    ends = np.iinfo(bias)
    data = [
        rng(0).integers(-120, 120, (1, 4, 4, 5)).astype(dtype),
        rng(1).integers(-120, 120, (5, 4, 3, 2)).astype(kind),
        np.array([0, 5, -9, ends.max, ends.min], bias),
    ]
    add(f"espdl_{name}", Conv2d(WINDOW, arith=arith), data, consts=(1, 2), **how)


products("s8_up", EspProducts(8, (7,), HALF_UP), np.int8, np.int32)
products("s8_late", EspProducts(8, (7,), FLOOR, late=True), np.int8, np.int32, quick=("cpu",))
products("s8_channels", EspProducts(8, SHIFTS, FLOOR, grain=GRAIN), np.int8, np.int32)
products("s8_left", EspProducts(8, (-3,), HALF_EVEN), np.int8, np.int32, quick=("cpu",))
products("lanes", EspLanes(8, (7,), HALF_UP), np.int8, np.int32)
products("s16_even", EspProducts(16, (9,), HALF_EVEN), np.int16, np.int64)
products("s16_late", EspProducts(16, SHIFTS, FLOOR, late=True), np.int16, np.int32, quick=("cpu",))
products("s16_w8", EspProducts(16, (7,), HALF_UP, w_bits=8), np.int16, np.int64, quick=("cpu",))


def function(name: str, made: Any, **how: Any) -> None:
    """Add an elementwise function."""
    data = [
        rng(k).normal(0, 99, (3, 19)).astype(np.float32)
        if kind.is_float
        else rng(k).integers(*_ends(kind), (3, 19)).astype(kind.numpy)
        for k, kind in enumerate(made.types[:-1])
    ]
    add(f"espdl_{name}", FixedMap(made), data, **how)


def _ends(kind: Any) -> tuple[int, int]:
    ends = np.iinfo(kind.numpy)
    return int(ends.min), int(ends.max)


function("sum", maps.total(8, (-5, -9), -4, False, HALF_UP))
function("difference", maps.total(16, (-1, -30), -9, True, HALF_EVEN), quick=("cpu",))
function("product", maps.product(8, (-7, -7), -7, HALF_EVEN), quick=("cpu",))
function("product_single", maps.product(16, (-12, -12), -12, HALF_UP))
function("slope", maps.EspSlope(16, 9, 2, HALF_EVEN))
function("slope_left", maps.EspSlope(8, -4), quick=("cpu",))
function("requantise", maps.EspRequantise((16, 8), 5, HALF_UP), quick=("cpu",))
function("quantise", maps.EspQuantise(8, -1, HALF_EVEN), quick=("cpu",))
function("table", maps.table_of(rng(3).integers(-9, 9, 257).astype(np.int16), HALF_EVEN))
function("whole_table", maps.tabulated(16, -12, -15, np.tanh, HALF_UP), quick=("cpu",))

for _name, _rounding in (("floor", FLOOR), ("up", HALF_UP)):
    for _bits, _type in ((8, np.int8), (16, np.int16)):
        add(
            f"espdl_average_{_name}_{_bits}",
            Pool(WINDOW, "average", rule=maps.EspAverage(_bits, 1, _rounding)),
            [rng().integers(-120, 120, (1, 9, 5, 6)).astype(_type)],
            border=1,
            quick=() if _bits == 8 else ("cpu",),
        )

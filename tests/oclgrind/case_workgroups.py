"""Cases of products whose work-groups share slices in local memory, tile by tile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
from harness import check_op, normal
from simulator import DEVICE
from table import orders_of, put

from clnn.ops.conv import depthwise, separable_workgroup, winograd_gpu
from clnn.ops.conv import workgroup as conv_workgroup
from clnn.ops.conv.depthwise import BandTile
from clnn.ops.conv.separable import Separable
from clnn.ops.conv.spec import Conv2d
from clnn.ops.gemm import workgroup as _gemm_groups
from clnn.ops.gemm.spec import Gemm
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.ops.shared.workgroup_tiles import GroupTile, SplitK
from clnn.ops.spec import OpSpec
from clnn.target import RegisterMode

TWO, ONE = GroupTile(8, 8, 2, 2, 8, 2, 4), GroupTile(8, 16, 4, 4, 8, 1, 0)
FLAT = GroupTile(16, 8, 1, 1, 8, 1, 4)
RESIDUAL = (PostOp("add", operand=3), PostOp("relu"))
HEAVY = (PostOp("tanh"), PostOp("mul", operand=3))


def only(tile: GroupTile, parts: int) -> Callable[..., list[SplitK]]:
    """Return what offers one tile in so many parts."""
    return lambda sums, target: [SplitK(0.0, tile, parts)]


def add(
    name: str,
    spec: OpSpec,
    inputs: Sequence[np.ndarray | None],
    tile: GroupTile,
    parts: int = 1,
    **how: Any,
) -> None:
    """Add a case that runs the kernel of one tile."""

    def run() -> None:
        with (
            mock.patch.object(_gemm_groups, "group_tiles", only(tile, parts)),
            mock.patch.object(conv_workgroup, "group_tiles", only(tile, parts)),
            mock.patch.object(separable_workgroup, "group_tiles", only(tile, parts)),
        ):
            check_op(DEVICE, spec, list(inputs), **{"only": "workgroup", **how})

    put(name, run, targets=("gpu",))


def multiply(
    name: str,
    m: int,
    k: int,
    n: int,
    tile: GroupTile,
    parts: int = 1,
    *,
    spec: Gemm | None = None,
    batch: tuple[int, ...] = (),
    extra: Sequence[np.ndarray] = (),
    **how: Any,
) -> None:
    """Add a product; how: arguments of check_op."""
    spec = spec or Gemm()
    a = normal((*batch, k, m) if spec.trans_a else (*batch, m, k))
    b = normal((n, k) if spec.trans_b else (k, n), 1)
    add(name, spec, [a, b, normal((n,), 2), *extra], tile, parts, **how)


def convolve(
    name: str,
    shape: tuple[int, ...],
    oc: int,
    win: Window,
    tile: GroupTile,
    parts: int = 1,
    *,
    group: int = 1,
    post_ops: tuple[PostOp, ...] = (),
    extra: Sequence[np.ndarray] = (),
    **how: Any,
) -> None:
    """Add a convolution; how: arguments of check_op."""
    weights = normal((oc, shape[1] // group, *win.kernel), 1)
    inputs = [normal(shape), weights, normal((oc,), 2), *extra]
    orders = {**orders_of(inputs, range(3, len(inputs))), **how.pop("orders", {})}
    add(
        name, Conv2d(win, group, post_ops), inputs, tile, parts, consts=(1, 2), orders=orders, **how
    )


SAME = Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
multiply("group_packed", 11, 12, 9, TWO, consts=(1, 2))
multiply(
    "group_packed_steps",
    9,
    5,
    20,
    ONE,
    consts=(1, 2),
    batch=(2,),
    spec=Gemm(0.5, 2.0, post_ops=RESIDUAL),
    extra=[normal((2, 9, 20), 4)],
)
multiply(
    "group_packed_heavy",
    5,
    9,
    7,
    ONE,
    consts=(1, 2),
    spec=Gemm(post_ops=HEAVY),
    extra=[normal((5, 1), 4)],
)
multiply("group_direct", 11, 8, 13, TWO, extra=[normal((11, 13), 4)], spec=Gemm(post_ops=RESIDUAL))
multiply("group_direct_small", 3, 9, 5, ONE)
multiply("group_turned", 12, 7, 16, TWO, spec=Gemm(trans_a=True, trans_b=True))
multiply("group_flat", 17, 10, 9, FLAT, consts=(1, 2))
multiply("group_columns", 11, 6, 9, TWO, consts=(1,), orders={"o0": (1, 0)})
multiply(
    "group_parts",
    11,
    26,
    9,
    TWO,
    2,
    consts=(1, 2),
    batch=(2,),
    spec=Gemm(post_ops=RESIDUAL),
    extra=[normal((2, 11, 9), 4)],
)
multiply("group_parts_scaled", 5, 30, 8, ONE, 4, spec=Gemm(beta=2.0))
for stored in ("f16", "bf16"):
    multiply(
        f"group_{stored}",
        11,
        12,
        20,
        TWO,
        consts=(1, 2),
        dtype=stored,
        spec=Gemm(post_ops=RESIDUAL),
        extra=[normal((11, 20), 4)],
    )
    multiply(
        f"group_{stored}_direct",
        11,
        9,
        13,
        TWO,
        dtype=stored,
        spec=Gemm(post_ops=RESIDUAL),
        extra=[normal((11, 13), 4)],
    )
    multiply(f"group_{stored}_parts", 11, 26, 9, TWO, 2, consts=(1, 2), dtype=stored)
    convolve(
        f"group_conv_{stored}",
        (1, 8, 4, 5),
        9,
        SAME,
        TWO,
        border=1,
        dtype=stored,
        post_ops=RESIDUAL,
        extra=[normal((1, 9, 4, 5), 4)],
    )
multiply(
    "group_asks_for_registers",
    11,
    12,
    9,
    replace(TWO, mode=RegisterMode(256, 16, True)),
    consts=(1, 2),
)
convolve("group_conv", (1, 8, 4, 5), 9, SAME, TWO, border=1)
convolve(
    "group_conv_terms",
    (2, 3, 4, 5),
    12,
    SAME,
    ONE,
    post_ops=RESIDUAL,
    extra=[normal((2, 12, 4, 5), 4)],
)
convolve(
    "group_conv_groups",
    (1, 6, 5, 6),
    8,
    Window((3, 2), (2, 1), (1, 2), (1, 0), (0, 2)),
    TWO,
    group=2,
)
convolve("group_conv_planes", (1, 3, 4, 5), 9, SAME, TWO, border=1, orders={"i0": (0, 1, 2, 3)})
convolve(
    "group_conv_heavy",
    (1, 8, 2, 3),
    9,
    Window((1, 1), (1, 1), (1, 1), (0, 0), (0, 0)),
    ONE,
    post_ops=HEAVY,
    extra=[normal((1, 9, 1, 1), 4)],
)
convolve(
    "group_conv_parts",
    (1, 8, 3, 4),
    9,
    SAME,
    TWO,
    3,
    post_ops=RESIDUAL,
    extra=[normal((1, 9, 3, 4), 4)],
)
convolve("group_conv_parts_groups", (2, 16, 3, 3), 8, SAME, TWO, 2, group=2)


def separate(
    name: str,
    shape: tuple[int, ...],
    oc: int,
    win: Window,
    tile: GroupTile,
    *,
    plain: bool = False,
    post_ops: tuple[PostOp, ...] = (),
    extra: Sequence[np.ndarray] = (),
    **how: Any,
) -> None:
    """Add a separable convolution; plain: without shift and bias. how: arguments of check_op."""
    channels = shape[1]
    inputs = [
        normal(shape),
        normal((channels, 1, *win.kernel), 1),
        None if plain else normal((channels,), 2),
        normal((oc, channels, 1, 1), 3),
        None if plain else normal((oc,), 4),
        *extra,
    ]
    orders = {**orders_of(inputs, range(5, len(inputs))), **how.pop("orders", {})}
    spec = Separable(win, (PostOp("relu"),), post_ops)
    add(name, spec, inputs, tile, consts=(1, 2, 3, 4), orders=orders, only="separable", **how)


separate("group_separable", (1, 8, 4, 5), 9, SAME, TWO, border=1)
separate(
    "group_separable_odd",
    (2, 5, 3, 4),
    12,
    Window((3, 2), (2, 1), (1, 2), (1, 0), (1, 2)),
    ONE,
    plain=True,
    post_ops=(PostOp("add", operand=5), PostOp("relu")),
    extra=[normal((2, 12, 2, 4), 5)],
)
separate(
    "group_separable_few", (1, 12, 3, 3), 7, Window((3, 3), (1, 1), (1, 1), (0, 0), (0, 0)), FLAT
)


def spread_depthwise() -> None:
    """Run the depthwise kernel with tiles of columns of which the last two overlap."""
    inputs = [normal((1, 6, 3, 5)), normal((6, 1, 3, 3), 1), normal((6,), 2)]
    with mock.patch.object(depthwise, "best_tile", lambda *_: BandTile(4, 2, 2)):
        check_op(DEVICE, Conv2d(SAME, 6), inputs, consts=(1, 2), only="depthwise", border=1)


put("depthwise_spread", spread_depthwise, targets=("gpu",))


def winograd(
    name: str,
    m: int,
    shape: tuple[int, ...],
    oc: int,
    tile: GroupTile,
    parts: int = 1,
    *,
    pads: tuple[int, int] = (1, 1),
    post_ops: tuple[PostOp, ...] = (),
    extra: Sequence[np.ndarray] = (),
    every: bool = False,
    share: int = 1 << 20,
    **how: Any,
) -> None:
    """Add a convolution by Winograd's products; share: bytes of scratch memory at a time."""

    def run() -> None:
        inputs = [normal(shape), normal((oc, shape[1], 3, 3), 1), normal((oc,), 2), *extra]
        spec = Conv2d(Window((3, 3), (1, 1), (1, 1), pads, pads[::-1]), 1, post_ops)
        orders = {**orders_of(inputs, range(3, len(inputs))), **how}
        with (
            mock.patch.object(winograd_gpu, "group_tiles", only(tile, parts)),
            mock.patch.object(winograd_gpu, "SIZES", (m,)),
            mock.patch.object(winograd_gpu, "SHARE_BYTES", share),
        ):
            check_op(
                DEVICE,
                spec,
                inputs,
                only="winograd",
                border=1,
                consts=(1, 2),
                orders=orders,
                every=every,
            )

    put(name, run, targets=("gpu",))


winograd("group_winograd", 2, (1, 4, 5, 4), 8, TWO, every=True)
winograd("group_winograd_four", 4, (1, 8, 5, 6), 6, TWO, pads=(0, 2))
winograd(
    "group_winograd_parts",
    2,
    (1, 16, 3, 3),
    5,
    TWO,
    2,
    post_ops=RESIDUAL,
    extra=[normal((1, 5, 3, 3), 4)],
)
winograd(
    "group_winograd_shares",
    2,
    (2, 3, 3, 3),
    4,
    ONE,
    post_ops=HEAVY,
    share=1,
    extra=[normal((1, 4, 1, 1), 4)],
    i0=(0, 1, 2, 3),
    o0=(0, 1, 2, 3),
)


def fused_winograd() -> None:
    """Run the kernel that keeps all of Winograd's convolution in local memory."""
    inputs = [normal((1, 5, 5, 4)), normal((34, 5, 3, 3), 1), normal((34,), 2)]
    inputs.append(normal((1, 34, 5, 4), 4))
    check_op(
        DEVICE, Conv2d(SAME, 1, RESIDUAL), inputs, only="fused", border=1, consts=(1, 2), every=True
    )


put("group_winograd_fused", fused_winograd, targets=("gpu",))

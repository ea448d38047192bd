"""Cases of ops over images: convolutions, pooling, resizing."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any
from unittest import mock

import numpy as np
from harness import check_op, normal, rng
from simulator import DEVICE
from table import NHWC, add, orders_of, put, steps_of

from clnn.codegen import render as codegen
from clnn.codegen import runtime_numbers
from clnn.ops.conv import streaming, winograd_cpu, winograd_rows, winograd_streamed
from clnn.ops.conv.pooled import PooledConv
from clnn.ops.conv.problem import ConvProblem
from clnn.ops.conv.separable import Separable
from clnn.ops.conv.spec import Conv2d
from clnn.ops.conv.streaming import Stream
from clnn.ops.conv.tiles import Tile
from clnn.ops.conv.transpose import ConvTranspose
from clnn.ops.conv.winograd_rows import Lines, RowsPlan
from clnn.ops.conv.winograd_streamed import StreamedPlan
from clnn.ops.pool.roi_align import RoiAlign
from clnn.ops.pool.roi_max import RoiMax
from clnn.ops.pool.spec import Pool
from clnn.ops.resize.deform_sample import DeformSample
from clnn.ops.resize.grid_sample import GridSample
from clnn.ops.resize.sampling import Sampling
from clnn.ops.resize.spec import Resize
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.runtime.run import planning
from clnn.target import Target


def window(
    kernel: Sequence[int],
    strides: Sequence[int] = (1, 1),
    dilations: Sequence[int] = (1, 1),
    before: Sequence[int] = (0, 0),
    after: Sequence[int] = (0, 0),
) -> Window:
    """Return a window; all arguments are per axis."""
    return Window(*(tuple(v) for v in (kernel, strides, dilations, before, after)))


SAME3 = window((3, 3), before=(1, 1), after=(1, 1))
RESIDUAL = (PostOp("add", operand=3), PostOp("relu"))


def convolve(
    name: str,
    shape: Sequence[int],
    oc: int,
    win: Window,
    *,
    group: int = 1,
    bias: bool = True,
    post_ops: tuple[PostOp, ...] = (),
    extra: Sequence[int] = (),
    dynamic: bool = False,
    **how: Any,
) -> None:
    """Add a convolution; extra: shape of the operand of `post_ops`; dynamic: weights are no constant."""
    inputs: list[np.ndarray | None] = [
        normal(shape),
        normal((oc, shape[1] // group, *win.kernel), 1),
    ]
    inputs += [normal((oc,), 2) if bias else None, *([normal(extra, 3)] if extra else [])]
    orders = {**orders_of(inputs, range(3, len(inputs))), **how.pop("orders", {})}
    consts = () if dynamic else (1, 2)
    add(name, Conv2d(win, group, post_ops), inputs, consts=consts, orders=orders, **how)


HEAVY = (PostOp("sigmoid"), PostOp("mul", operand=3))
convolve("conv_border", (2, 3, 4, 5), 9, SAME3, border=1)
convolve("conv_row", (1, 3, 2, 6), 8, window((1, 1)), post_ops=RESIDUAL, extra=(1, 8, 2, 6))
convolve("conv_blocks", (1, 3, 2, 3), 35, window((1, 1)), post_ops=RESIDUAL, extra=(1, 35, 1, 1))
convolve("conv_partial", (1, 3, 2, 3), 35, window((1, 1)), post_ops=RESIDUAL, extra=(1, 35, 2, 3))
convolve("conv_last_block", (1, 3, 2, 7), 70, window((1, 1)), only="direct", targets=("cpu",))
convolve("conv_across_rows", (1, 3, 2, 31), 35, window((1, 1)))
convolve("conv_staged", (1, 3, 3, 5), 19, window((1, 1)), post_ops=HEAVY, extra=(1, 19, 3, 5))
convolve("conv_staged_row", (1, 3, 2, 4), 4, window((1, 1)), post_ops=(PostOp("exp"),))
convolve("conv_groups", (1, 6, 6, 7), 8, window((3, 2), (2, 1), (1, 2), (1, 0), (0, 2)), group=2)
convolve("conv_lines", (1, 5, 9), 6, Window((3,), (2,), (1,), (1,), (1,)), border=1, bias=False)
convolve(
    "conv_dynamic", (1, 3, 4, 5), 4, SAME3, dynamic=True, post_ops=RESIDUAL, extra=(1, 4, 4, 5)
)
convolve(
    "conv_any_order",
    (2, 3, 4, 5),
    4,
    SAME3,
    dynamic=True,
    bias=False,
    orders={"i0": (3, 1, 0, 2), "o0": (0, 1, 2, 3)},
)
convolve("conv_heavy_weights", (1, 256, 1, 1), 257, window((1, 1)), only="direct", targets=("cpu",))
convolve(
    "conv_streams",
    (1, 512, 1, 3),
    130,
    window((1, 1)),
    post_ops=RESIDUAL,
    extra=(1, 130, 1, 3),
    only="direct",
    targets=("cpu",),
)
convolve(
    "winograd",
    (1, 16, 4, 5),
    48,
    SAME3,
    post_ops=RESIDUAL,
    extra=(1, 48, 4, 5),
    only="winograd_f32",
    targets=("cpu",),
)
convolve(
    "winograd_parts_of_vectors",
    (1, 17, 4, 5),
    37,
    SAME3,
    post_ops=RESIDUAL,
    extra=(1, 37, 4, 5),
    only="winograd_f32",
    targets=("cpu",),
)
for _channels, _kind in ((16, "f4"), (17, "f2"), (16, "shared")):
    convolve(
        f"winograd_groups_of_{_channels}_{_kind}",
        (1, 2 * _channels, 4, 5),
        2 * _channels + 2,
        SAME3,
        group=2,
        post_ops=RESIDUAL,
        extra=(1, 2 * _channels + 2, 4, 5),
        only=f"_{_kind}",
        every=True,
        targets=("cpu",),
    )


def read_ahead(stride: int) -> None:
    """Check a convolution whose images count as far from a core."""
    win = window((3, 3), (stride, stride), before=(1, 1), after=(1, 1))
    given = normal((2, 16, 9, 10)), normal((48, 16, 3, 3), 1), normal((48,), 2)
    with mock.patch.object(winograd_cpu, "NEAR_ELEMENTS", 0):
        check_op(DEVICE, Conv2d(win), given, consts=(1, 2), border=1, only="winograd_f32")


for _stride in (1, 2):
    put(f"winograd_ahead_{_stride}", partial(read_ahead, _stride), targets=("cpu",))
convolve("winograd_tiles_of_6", (1, 16, 6, 9), 16, SAME3, only="_f6_", every=True, targets=("cpu",))
convolve("winograd_sets", (1, 16, 6, 9), 32, SAME3, only="_p1_s2", every=True, targets=("cpu",))
convolve(
    "winograd_shared",
    (1, 16, 6, 9),
    32,
    SAME3,
    only="f4_t4x16_p1_shared_s2",
    every=True,
    targets=("cpu",),
)
convolve(
    "winograd_strided",
    (1, 16, 6, 9),
    32,
    window((3, 3), (2, 2), before=(1, 1), after=(0, 1)),
    only="winograd_f32",
    border=1,
    targets=("cpu",),
)
convolve(
    "winograd_border",
    (2, 16, 3, 9),
    16,
    window((3, 3), before=(1, 0), after=(0, 2)),
    border=2,
    bias=False,
    only="winograd_f32",
    targets=("cpu",),
)
for _mode, _size, _oc in (("max", (4, 7), 21), ("average", (5, 4), 16)):
    add(
        f"winograd_pooled_{_mode}",
        PooledConv(Conv2d(SAME3, 1, (PostOp("relu"),)), Pool(window((2, 2), (2, 2)), _mode)),
        [normal((1, 16, *_size)), normal((_oc, 16, 3, 3), 1), normal((_oc,), 2)],
        consts=(1, 2),
        orders={"i0": NHWC, "o0": NHWC},
        targets=("cpu",),
    )


def streamed(win: Window, plan: Sequence[int], shape: Sequence[int], oc: int, group: int) -> None:
    """Check a tile (my, mx, mr, nv) in so many sets and parts, where weights are few, too."""
    *tile, sets, parts = plan

    def plans(shape: tuple[int, ...], ic: int, target: Target, convs: int) -> list[StreamedPlan]:
        return [StreamedPlan(*tile, target.vector, 16, sets, parts)]

    spec = Conv2d(win, group, RESIDUAL)
    inputs = [normal(shape), normal((oc, shape[1] // group, 3, 3), 1), normal((oc,), 2)]
    inputs.append(normal((shape[0], oc, *win.output(shape[2:])), 3))
    with (
        mock.patch.object(winograd_streamed, "plans", plans),
        mock.patch.object(winograd_streamed, "_pays", lambda problem: True),
    ):
        check_op(
            DEVICE,
            spec,
            inputs,
            consts=(1, 2),
            orders=orders_of(inputs, (3,)),
            border=2,
            only="winograd_streamed",
        )


def in_steps(tile: Tile, chunk: int, shape: Sequence[int], oc: int) -> None:
    """Check streamed weights of which a line is asked for in every second step, where weights are few, too."""
    spec = Conv2d(window((1, 1)))
    inputs = [normal(shape), normal((oc, shape[1], 1, 1), 1), normal((oc,), 2)]
    with (
        mock.patch.object(ConvProblem, "weights_stay", False),
        mock.patch.object(streaming, "direct_tiles", lambda *_: [(0.0, tile)]),
        mock.patch.object(streaming, "streams", lambda *_: [Stream(chunk, 1, 0.9)]),
    ):
        check_op(DEVICE, spec, inputs, consts=(1, 2), only=f"_c{chunk}_b1")


put(
    "conv_streams_in_steps",
    partial(in_steps, Tile(8, 2, 16, "flat"), 8, (1, 16, 5, 8), 32),
    targets=("cpu",),
)

for _name, _plan, _shape, _oc, _group in (
    ("winograd_streamed", (2, 4, 4, 2, 1, 2), (1, 16, 3, 6), 80, 1),
    ("winograd_streamed_sets", (2, 2, 4, 1, 2, 1), (1, 16, 4, 5), 32, 1),
    ("winograd_streamed_groups", (4, 4, 4, 1, 1, 1), (2, 32, 3, 9), 64, 2),
):
    put(_name, partial(streamed, SAME3, _plan, _shape, _oc, _group), targets=("cpu",))


def along_lines(
    win: Window,
    plan: Sequence[int],
    size: Sequence[int],
    oc: int,
    bias: bool,
    steps: tuple[PostOp, ...],
) -> None:
    """Check tiles (m, tiles, band) of Winograd's products along lines, whatever they save.

    Lines of their results are asked for ahead, as those of large images are.
    """
    m, tiles, band = plan
    shape = 1, 3, *size

    def plans(lines: Lines, target: Target) -> tuple[RowsPlan, ...]:
        return (RowsPlan(m, tiles, target.vector, band),)

    inputs = [normal(shape), normal((oc, 3, *win.kernel), 1), normal((oc,), 2) if bias else None]
    inputs.append(normal((1, oc, *win.output(size)), 3))
    with (
        mock.patch.object(winograd_rows, "plans", plans),
        mock.patch.object(winograd_rows, "NEAR_ELEMENTS", 0),
    ):
        check_op(
            DEVICE,
            Conv2d(win, 1, steps),
            inputs,
            consts=(1, 2),
            orders=orders_of(inputs, (3,)),
            only="winograd_rows",
        )


for _name, _kernel, _stride, _plan, _size, _oc, _bias, _steps in (
    ("rows", (3, 5), 2, (4, 1, 2), (5, 8), 16, True, RESIDUAL),
    ("parts_of_tiles", (2, 5), 1, (3, 2, 2), (4, 12), 19, True, RESIDUAL),
    ("columns", (3, 1), 1, (2, 2, 1), (6, 2), 21, False, RESIDUAL),
    ("steps_in_a_loop", (1, 5), 2, (4, 1, 1), (2, 14), 32, True, HEAVY),
):
    _window = window(_kernel, (_stride, _stride), before=[k // 2 for k in _kernel])
    put(
        f"winograd_lines_{_name}",
        partial(along_lines, _window, _plan, _size, _oc, _bias, _steps),
        targets=("cpu",),
    )
convolve("depthwise_registers", (2, 16, 5, 7), 16, SAME3, group=16, only="depthwise")
convolve("depthwise_inside", (1, 5, 3, 22), 5, SAME3, group=5, only="depthwise", targets=("cpu",))
convolve("depthwise_unpadded", (1, 5, 3, 14), 5, window((2, 3)), group=5, only="depthwise")
convolve(
    "depthwise_memory",
    (1, 3, 6, 7),
    3,
    window((5, 3), (1, 2), (1, 1), (2, 1), (2, 1)),
    group=3,
    bias=False,
    border=2,
    only="depthwise",
)
convolve(
    "depthwise_near",
    (1, 5, 6, 17),
    5,
    window((5, 3), (2, 1), (1, 1), (2, 1), (2, 1)),
    group=5,
    border=1,
    only="_near",
    every=True,
    targets=("cpu",),
)
convolve(
    "depthwise_steps",
    (1, 8, 4, 9),
    8,
    SAME3,
    group=8,
    post_ops=RESIDUAL,
    extra=(1, 8, 4, 9),
    only="depthwise",
)
convolve(
    "winograd_operand",
    (1, 16, 5, 6),
    16,
    SAME3,
    post_ops=RESIDUAL,
    extra=(1, 16, 5, 6),
    only="winograd_f",
    orders={"i3": (0, 1, 2, 3)},
)
convolve(
    "depthwise_operand",
    (1, 9, 4, 9),
    9,
    SAME3,
    group=9,
    post_ops=RESIDUAL,
    extra=(1, 9, 4, 9),
    only="depthwise",
    orders={"i3": (0, 1, 2, 3)},
)
convolve(
    "depthwise_several",
    (1, 8, 5, 6),
    16,
    window((5, 3), (2, 1), (1, 1), (2, 1), (2, 1)),
    group=8,
    targets=("cpu",),
)
convolve(
    "depthwise_groups",
    (1, 16, 5, 7),
    16,
    window((3, 3), (2, 1), (1, 1), (1, 1), (1, 1)),
    group=4,
    only="depthwise",
    targets=("cpu",),
)
convolve(
    "depthwise_dilated",
    (1, 4, 7, 7),
    4,
    window((3, 3), (2, 2), (2, 2), (2, 2), (2, 2)),
    group=4,
    only="depthwise",
    long=True,
)


def separate(
    name: str,
    shape: Sequence[int],
    oc: int,
    win: Window,
    *,
    post_ops: tuple[PostOp, ...] = (),
    extra: Sequence[int] = (),
    first: tuple[PostOp, ...] = (PostOp("relu"),),
    **how: Any,
) -> None:
    """Add filters per channel with a 1 x 1 convolution behind them; extra: an operand's shape."""
    channels = shape[1]
    inputs: list[np.ndarray | None] = [
        normal(shape),
        normal((channels, 1, *win.kernel), 1),
        normal((channels,), 2),
        normal((oc, channels, 1, 1), 3),
        None,
        *([normal(extra, 5)] if extra else []),
    ]
    orders = orders_of(inputs, range(5, len(inputs)))
    spec = Separable(win, first, post_ops)
    add(name, spec, inputs, consts=(1, 2, 3), orders=orders, **how)


separate(
    "separable_bands",
    (1, 18, 5, 9),
    20,
    SAME3,
    only="separable",
    border=1,
    targets=("cpu",),
    post_ops=(PostOp("add", operand=5),),
    extra=(1, 20, 5, 9),
)
separate(
    "separable_last_block", (1, 18, 3, 9), 70, SAME3, only="separable", border=1, targets=("cpu",)
)
separate("separable_point", (1, 18, 3, 9), 20, window((1, 1)), only="separable")
separate(
    "separable_gate",
    (2, 18, 3, 9),
    20,
    window((1, 1)),
    only="separable",
    targets=("cpu",),
    first=(PostOp("mul", operand=5),),
    extra=(2, 18, 1, 1),
)
separate("separable_heavy_weights", (1, 600, 1, 9), 36, SAME3, only="separable", targets=("cpu",))
separate("separable_inside", (1, 18, 2, 23), 20, SAME3, only="separable", targets=("cpu",))
separate("separable_unpadded", (1, 16, 4, 16), 16, window((2, 3)), targets=("cpu",))
separate("separable_ahead", (1, 136, 2, 55), 64, SAME3, only="separable", targets=("cpu",))
separate("separable_far_ahead", (1, 264, 1, 30), 32, SAME3, only="separable", targets=("cpu",))
separate("separable_strides", (2, 4, 7, 9), 5, window((3, 3), (2, 2), (1, 1), (1, 1), (1, 1)))

for _k, _s, _p, _oc in itertools.product((1, 2, 3), (1, 2), (0, 1), (1, 9, 17)):
    _win = window((_k, _k), (_s, _s), (1, 1), (_p, _p), (_p, _p))
    convolve(f"conv_k{_k}_s{_s}_p{_p}_oc{_oc}", (1, 3, 5, 6), _oc, _win, long=True)
    convolve(f"depthwise_k{_k}_s{_s}_p{_p}_c{_oc}", (1, _oc, 5, 6), _oc, _win, group=_oc, long=True)

# Pooling

MAX = Pool(SAME3, "max")
add("pool_max", MAX, [normal((2, 5, 4, 5))])
add("pool_max_border", Pool(window((2, 2), (2, 2)), "max"), [normal((1, 8, 4, 6))], border=1)
add(
    "pool_max_steps",
    Pool(SAME3, "max", post_ops=(PostOp("add", operand=1),)),
    [normal((1, 4, 3, 4)), normal((1, 4, 3, 4), 1)],
    orders={"i1": NHWC},
)
add(
    "pool_max_index",
    Pool(window((2, 3), (2, 1), (1, 2), (0, 1), (1, 2)), "max", indices="row"),
    [normal((2, 3, 4, 6))],
)
add(
    "pool_max_column",
    Pool(SAME3, "max", indices="column"),
    [rng().integers(0, 9, (1, 2, 3, 4)).astype(np.uint8)],
)
add("pool_max_int8", Pool(SAME3, "max"), [rng().integers(-9, 9, (1, 3, 3, 4)).astype(np.int8)])
add(
    "pool_average",
    Pool(window((3, 2), (2, 2), (1, 1), (1, 1), (1, 0)), "average"),
    [normal((1, 4, 5, 6))],
)
add("pool_columns", Pool(SAME3, "average", order="columns"), [normal((1, 3, 4, 5))])
add("pool_quads", Pool(window((3, 5)), "average", order="quads"), [normal((2, 5, 3, 5))], border=1)
add("pool_rest", Pool(window((1, 3)), "max"), [normal((1, 4, 2, 11))])
add("pool_average_padded", Pool(SAME3, "average", True), [normal((1, 3, 4, 4))])
add(
    "pool_average_large",
    Pool(window((6, 5), (2, 2), (1, 1), (2, 2), (2, 2)), "average"),
    [normal((1, 3, 6, 7))],
)
for _p in (1.0, 2.0, 2.5):
    add(f"pool_lp{_p:g}", Pool(window((2, 2)), "lp", power=_p), [normal((1, 3, 3, 4))])
add("pool_lines", Pool(Window((3,), (2,), (1,), (1,), (1,)), "average"), [normal((1, 3, 8))])

# Samples at positions

for _mode, _padding, _corners in (
    ("linear", "zeros", False),
    ("linear", "border", True),
    ("nearest", "reflection", False),
    ("cubic", "reflection", True),
):
    _at = rng(1).uniform(-3, 3, (2, 3, 4, 2)).astype(np.float32)
    add(
        f"grid_sample_{_mode}_{_padding}",
        GridSample(_mode, _padding, _corners),
        [normal((2, 4, 5, 6)), _at],
    )

for _window, _groups, _masked in (
    (window((3, 2), before=(1, 0), after=(1, 1)), (1, 1), False),
    (window((2, 2), (2, 1), (1, 2), (0, 1)), (2, 4), True),
):
    _outs = _window.output((5, 6))
    _places = _groups[1] * prod(_window.kernel)
    _moves = rng(1).uniform(-3, 3, (2, _places * 2, *_outs)).astype(np.float32)
    add(
        f"deform_sample_{_groups[0]}_{_groups[1]}",
        DeformSample(_window, *_groups),
        [normal((2, 8, 5, 6)), _moves, normal((2, _places, *_outs)) if _masked else None],
    )

_regions = np.array([[0, 0, 0, 3, 2], [1, -3, 1, 9, 9], [1, 8, 8, 9, 9]], np.float32)
add("roi_max", RoiMax((2, 3), 0.75), [normal((2, 4, 5, 6)), _regions])

# Transposed convolution


def spread(
    name: str,
    shape: Sequence[int],
    oc: int,
    spec: ConvTranspose,
    *,
    bias: bool = True,
    extra: Sequence[int] = (),
    dynamic: bool = False,
    **how: Any,
) -> None:
    """Add a transposed convolution; oc: output channels per group; extra, dynamic: as convolve."""
    inputs: list[np.ndarray | None] = [normal(shape), normal((shape[1], oc, *spec.kernel), 1)]
    inputs += [normal((oc * spec.group,), 2) if bias else None]
    inputs += [normal(extra, 3)] if extra else []
    orders = {**orders_of(inputs, range(3, len(inputs))), **how.pop("orders", {})}
    add(name, spec, inputs, consts=() if dynamic else (1, 2), orders=orders, **how)


def transposed(
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    before: tuple[int, ...],
    extents: tuple[int, ...],
    group: int = 1,
    post_ops: tuple[PostOp, ...] = (),
) -> ConvTranspose:
    """Return a transposed convolution without dilation."""
    return ConvTranspose(kernel, strides, (1,) * len(kernel), before, extents, group, post_ops)


spread("transposed_3x3_s2", (1, 5, 3, 4), 9, transposed((3, 3), (2, 2), (1, 1), (5, 7)))
spread(
    "transposed_2x2_s2", (2, 3, 3, 4), 17, transposed((2, 2), (2, 2), (0, 0), (6, 8)), bias=False
)
spread("transposed_whole_tiles", (1, 3, 2, 4), 8, transposed((2, 2), (2, 2), (0, 0), (4, 8)))
spread("transposed_groups", (1, 4, 3, 3), 3, transposed((3, 2), (1, 2), (0, 0), (5, 6), group=2))
spread(
    "transposed_steps",
    (1, 3, 3, 3),
    9,
    transposed((3, 3), (2, 2), (1, 1), (5, 5), post_ops=HEAVY),
    extra=(1, 9, 5, 5),
)
spread(
    "transposed_residual",
    (1, 3, 3, 3),
    9,
    transposed((4, 4), (2, 2), (1, 1), (6, 6), post_ops=RESIDUAL),
    extra=(1, 9, 6, 6),
)
spread("transposed_far", (1, 3, 2, 2), 4, transposed((2, 2), (3, 3), (0, 0), (9, 10)))
spread("transposed_lines", (1, 3, 5), 4, transposed((3,), (2,), (1,), (9,)))
spread(
    "transposed_dynamic",
    (1, 3, 3, 3),
    4,
    transposed((3, 3), (2, 2), (1, 1), (5, 5), post_ops=RESIDUAL),
    extra=(1, 4, 5, 5),
    dynamic=True,
)
spread("transposed_depthwise", (1, 9, 3, 4), 1, transposed((3, 3), (2, 2), (1, 1), (5, 7), group=9))
spread(
    "transposed_few_channels",
    (1, 7, 3, 3),
    1,
    transposed((4, 4), (2, 2), (1, 1), (6, 6)),
    bias=False,
)
spread(
    "transposed_two_groups", (1, 10, 3, 3), 1, transposed((2, 3), (1, 2), (0, 1), (4, 5), group=2)
)
for _k, _s, _oc in itertools.product((1, 2, 3, 4), (1, 2, 3), (1, 9, 17)):
    _out = (2 * _s + _k, 3 * _s + _k)
    spread(
        f"transposed_k{_k}_s{_s}_oc{_oc}",
        (1, 3, 3, 4),
        _oc,
        transposed((_k, _k), (_s, _s), (0, 0), _out),
        long=True,
    )

# Resizing

LINEAR, CUBIC = Sampling("linear"), Sampling("cubic")
add("resize_linear", Resize((1, 3, 5, 9), (1, 1, 1.67, 1.8), LINEAR), [normal((1, 3, 3, 5))])
add(
    "resize_channels",
    Resize((1, 7, 5, 4), (1, 1, 1.67, 2.0), LINEAR),
    [normal((1, 7, 3, 2))],
    orders={"i0": NHWC},
)
add(
    "resize_steps",
    Resize((1, 5, 4, 4), (1, 1, 1.34, 2.0), LINEAR, (), (PostOp("mul", operand=1),)),
    [normal((1, 5, 3, 2)), normal((1, 5, 4, 4), 1)],
    orders={"i0": NHWC, "i1": NHWC},
)
add("resize_nearest", Resize((1, 2, 4, 8), (1, 1, 1.4, 1.6)), [normal((1, 2, 3, 5))])
add("resize_cubic", Resize((1, 2, 4, 8), (1, 1, 1.34, 1.6), CUBIC), [normal((1, 2, 3, 5))])
add(
    "resize_many_taps",
    Resize((1, 1, 2, 2), (1, 1, 0.25, 0.3), Sampling("linear", antialias=True)),
    [normal((1, 1, 8, 7))],
)
add(
    "resize_crop",
    Resize(
        (1, 2, 3, 4),
        (1, 1, 1.0, 0.8),
        Sampling("linear", "tf_crop_and_resize", extrapolation=7.0),
        ((0.0, 1.0), (0.0, 1.0), (0.2, 1.3), (-0.2, 0.8)),
    ),
    [normal((1, 2, 3, 5))],
)
add(
    "resize_bytes",
    Resize((1, 3, 5, 9), (1, 1, 1.67, 1.8), LINEAR),
    [rng().integers(0, 255, (1, 3, 3, 5)).astype(np.uint8)],
)
add(
    "resize_bytes_channels_last",
    Resize((1, 5, 9, 3), (1, 1.67, 1.8, 1), Sampling("linear", bits=10)),
    [rng().integers(0, 255, (1, 3, 5, 3)).astype(np.uint8)],
)
add(
    "resize_bytes_many_taps",
    Resize((1, 3, 4, 5), (1, 1.5, 1.34, 1.67), CUBIC),
    [rng().integers(0, 255, (1, 2, 3, 3)).astype(np.uint8)],
)
add(
    "resize_half",
    Resize((1, 3, 5, 4), (1, 1, 1.67, 2.0), LINEAR),
    [normal((1, 3, 3, 2)).astype(np.float16)],
    tolerance=2e-3,
)
add(
    "resize_half_channels",
    Resize((1, 9, 5, 4), (1, 1, 1.67, 2.0), LINEAR),
    [normal((1, 9, 3, 2)).astype(np.float16)],
    tolerance=2e-3,
    orders={"i0": NHWC},
)
add(
    "resize_double",
    Resize((1, 2, 5, 4), (1, 1, 1.67, 2.0), LINEAR),
    [normal((1, 2, 3, 2)).astype(np.float64)],
)
REPEATS = {
    "plain": (Resize((1, 5, 6, 10), (1, 1, 2, 2)), (), {}),
    "channels": (Resize((1, 7, 6, 4), (1, 1, 2, 2)), (), {"i0": NHWC}),
    "even_channels": (Resize((1, 8, 4, 9), (1, 1, 2, 3)), (), {"i0": NHWC}),
    "relu": (Resize((1, 3, 4, 10), (1, 1, 2, 2), post_ops=steps_of(["relu"])), (), {}),
    "add": (
        Resize((1, 3, 4, 10), (1, 1, 2, 2), post_ops=(PostOp("add", operand=1),)),
        (1, 3, 4, 10),
        {},
    ),
    "add_channels": (
        Resize((1, 5, 4, 6), (1, 1, 2, 2), post_ops=(PostOp("add", operand=1),)),
        (1, 5, 4, 6),
        {"i0": NHWC, "i1": NHWC},
    ),
    "gaps": (Resize((1, 2, 4, 6), (1, 1, 2, 2)), (), {"i0": NHWC, "o0": (0, 1, 2, 3)}),
}
for _name, (_spec, _extra, _orders) in REPEATS.items():
    _shape = [round(d / s) for d, s in zip(_spec.shape, _spec.scales, strict=True)]
    add(
        f"resize_repeat_{_name}",
        _spec,
        [normal(_shape), *([normal(_extra, 1)] if _extra else [])],
        orders=_orders,
    )

REGIONS = np.array([[-1, 0, 3, 4], [2, 2, 2, 2], [1, -2, 9, 3]], np.float32)
for mode, channels, half in (("avg", 4, True), ("max", 3, False)):
    add(
        f"roi_align_{mode}",
        RoiAlign((2, 2), mode, half_pixel=half),
        [normal((2, channels, 4, 5)), REGIONS, np.array([0, 1, 0])],
    )


def store_between(pitch: int) -> None:
    """Check convolutions by vectors of 16 whose channels lie between those of other tensors.

    Vectors made of another's elements are arrays here: Oclgrind takes the upper half of one of 16 for uninitialised.
    """
    target, render = replace(planning.target_of(None), vector=16), codegen.render

    def rendered(template: str, params: Any) -> str:
        return re.sub(
            r"const float16 lanes_ = (\w+)\.s(\w{16});", in_array, render(template, params)
        )

    def in_array(found: re.Match[str]) -> str:
        return (
            f"const float lanes_[16] = {{{', '.join(f'{found[1]}.s{lane}' for lane in found[2])}}};"
        )

    given = normal((1, 3, 4, pitch)), normal((21, 3, 1, 1), 1), normal((21,), 2)
    with (
        mock.patch.object(codegen, "render", rendered),
        mock.patch.object(runtime_numbers, "render", rendered),
        mock.patch.object(planning, "target_of", lambda info: target),
    ):
        point, orders = Conv2d(window((1, 1))), {"o0": (0, 2, 1, 3)}
        check_op(DEVICE, point, given, consts=(1, 2), orders=orders, only="direct")


for _pitch in (2, 3):
    put(f"stored_between_{_pitch}", lambda pitch=_pitch: store_between(pitch), targets=("cpu",))

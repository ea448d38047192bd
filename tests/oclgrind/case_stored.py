"""Cases of float32 values that lie in 16 bits, and of products that ops give to tensor cores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
from harness import check_op, normal, rng
from simulator import DEVICE
from table import add, orders_of, put

from clnn.arith.quantised import Requantised
from clnn.ops.conv import mma as conv_mma
from clnn.ops.conv.spec import Conv2d
from clnn.ops.conv.transpose import ConvTranspose
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.elementwise.storage import Convert
from clnn.ops.gemm import mma as _gemm_mma
from clnn.ops.gemm.spec import Gemm
from clnn.ops.movement.gather import Gather
from clnn.ops.pool.spec import Pool
from clnn.ops.resize.sampling import Sampling
from clnn.ops.resize.spec import Resize
from clnn.ops.rows.norm import Normalise
from clnn.ops.rows.reduce import Reduce
from clnn.ops.rows.softmax import Softmax
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.tensor_cores import MmaTile
from clnn.ops.shared.window import Window
from clnn.ops.spec import OpSpec
from clnn.runtime.run import planning
from clnn.target import Target
from clnn.types import I8, U8

CPU, GPU = ("cpu",), ("gpu",)
RESIDUAL = (PostOp("add", operand=3), PostOp("relu"))
SAME = Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
ALONG = Window((1, 3), (1, 1), (1, 1), (0, 1), (0, 1))
POINT = Window((1, 1), (1, 1), (1, 1), (0, 0), (0, 0))


def inputs_of(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    """Return arrays of these shapes."""
    return [normal(shape, k) for k, shape in enumerate(shapes)]


_conv = inputs_of((1, 5, 3, 4), (9, 5, 3, 3), (9,), (1, 9, 3, 4))
add(
    "stored_conv",
    Conv2d(SAME, post_ops=RESIDUAL),
    _conv,
    consts=(1, 2),
    dtype="f16",
    orders=orders_of(_conv, (3,)),
)
add(
    "stored_norm",
    Normalise((1,), post_ops=(PostOp("mul", operand=1),)),
    inputs_of((3, 19), (19,)),
    dtype="bf16",
)
add(
    "stored_transposed",
    ConvTranspose((2, 2), (2, 2), (1, 1), (0, 0), (6, 8), post_ops=RESIDUAL),
    inputs_of((1, 3, 3, 4), (3, 5, 2, 2), (5,), (1, 5, 6, 8)),
    consts=(1, 2),
    dtype="bf16",
)
add(
    "stored_depthwise",
    Conv2d(SAME, 5),
    inputs_of((1, 5, 3, 4), (5, 1, 3, 3), (5,)),
    consts=(1, 2),
    dtype="bf16",
)
add("stored_gemm", Gemm(trans_b=True), inputs_of((3, 9), (7, 9), (7,)), consts=(1, 2), dtype="bf16")
add("stored_gemm_moving", Gemm(), inputs_of((2, 3, 9), (2, 9, 5)), dtype="f16")
add(
    "stored_pool",
    Pool(Window((2, 2), (2, 2), (1, 1), (0, 0), (0, 0)), "average"),
    inputs_of((1, 5, 4, 4)),
    dtype="f16",
    quick=CPU,
)
add(
    "stored_eltwise",
    Eltwise((PostOp("mul", operand=1), PostOp("tanh"))),
    inputs_of((2, 3, 5), (1, 3, 1)),
    dtype="bf16",
    quick=GPU,
)
add("stored_reduce", Reduce("mean", (1,)), inputs_of((3, 37)), dtype="bf16", quick=CPU)
add("stored_softmax", Softmax((1,)), inputs_of((3, 19)), dtype="f16", quick=GPU)
add(
    "stored_resize",
    Resize((1, 3, 4, 6), (1.0, 1.0, 2.0, 2.0), Sampling("linear")),
    inputs_of((1, 3, 2, 3)),
    dtype="f16",
    quick=GPU,
)
add("stored_gather", Gather(0), [normal((6, 7)), np.array([4, 0])], dtype="bf16", quick=CPU)
for _dtype in ("f16", "bf16"):
    add(f"stored_convert_{_dtype}", Convert(), inputs_of((3, 19)), dtype=_dtype)


# Pairs of bfloat16 taken apart, as what lies in pairs and as floats first.
_pairs = inputs_of((1, 6, 3, 4), (9, 6, 3, 3), (9,), (1, 9, 3, 4))
add(
    "pairs_conv",
    Conv2d(SAME, post_ops=RESIDUAL),
    _pairs,
    consts=(1, 2),
    dtype="bf16",
    orders=orders_of(_pairs, (3,)),
    targets=CPU,
)
_wide = inputs_of((1, 16, 3, 4), (9, 16, 1, 1), (9,))
add("pairs_wide_conv", Conv2d(POINT), _wide, consts=(1, 2), dtype="bf16", targets=CPU)
add("pairs_wide_gemm", Gemm(), inputs_of((9, 16), (16, 18)), consts=(1,), dtype="bf16", targets=CPU)
add("pairs_gemm", Gemm(), inputs_of((2, 5, 7), (2, 7, 18)), dtype="bf16", targets=CPU)
add("pairs_turned", Gemm(trans_b=True), inputs_of((5, 37), (18, 37)), dtype="bf16", targets=CPU)
add("pairs_even", Gemm(trans_b=True), inputs_of((5, 34), (3, 34)), dtype="bf16", targets=CPU)
# A panel that does not stay in the nearest cache is read ahead.
add("pairs_ahead", Gemm(), inputs_of((5, 174), (174, 18)), consts=(1,), dtype="bf16", targets=CPU)
_streams = inputs_of((1, 512, 1, 3), (130, 512, 1, 1), (130,))
add(
    "pairs_streamed",
    Conv2d(POINT),
    _streams,
    consts=(1, 2),
    dtype="bf16",
    only="direct",
    targets=CPU,
)
_winograd = inputs_of((1, 16, 4, 5), (16, 16, 3, 3), (16,), (1, 16, 4, 5))
add(
    "stored_winograd",
    Conv2d(SAME, post_ops=RESIDUAL),
    _winograd,
    consts=(1, 2),
    dtype="bf16",
    only="winograd_f32",
    orders=orders_of(_winograd, (3,)),
    targets=CPU,
)


@contextmanager
def emulated(tile: MmaTile) -> Iterator[None]:
    """Give the device emulated tensor cores, and one tile to use them with."""
    plain = planning.target_of

    def target(info: Any) -> Target:
        return replace(plain(info), tensor="emulated")

    with (
        mock.patch.object(planning, "target_of", target),
        mock.patch.object(conv_mma, "mma_tiles", lambda *_: [(0.0, tile)]),
        mock.patch.object(_gemm_mma, "mma_tiles", lambda *_: [(0.0, tile)]),
    ):
        yield


def on_tensor_cores(
    name: str, spec: OpSpec, inputs: Sequence[np.ndarray | None], dtype: str, **how: Any
) -> None:
    """Add a case of the kernel that an op chooses where a device has (emulated) tensor cores."""

    def run() -> None:
        with emulated(MmaTile(32, 32, 16, 32, 16, 2, 1)):
            check_op(DEVICE, spec, list(inputs), dtype=dtype, only="_mma_", **how)

    put(f"tensor_{name}", run, targets=GPU)


def bytes_on_tensor_cores(kind: str) -> None:
    """Check a convolution of bytes with a residual sum, 20 of 32 channels of a pixel being real."""
    ends = np.iinfo(kind)
    random = rng(1)
    shapes = {"x": (1, 20, 3, 4), "w": (9, 20, 1, 3), "y": (1, 9, 3, 4)}
    x, y = (random.integers(ends.min, ends.max, shapes[n], kind, endpoint=True) for n in "xy")
    w = random.integers(-128, 127, shapes["w"], "i1", endpoint=True)
    out = (I8 if kind == "i1" else U8, 3, int(ends.min), int(ends.max))
    arith = Requantised(-5 if kind == "i1" else 77, False, 255, False, (0.0123,), *out)
    step = PostOp("byte_sum", (0.61, 0.83, -41.5, 0, 255), 3)
    inputs = [x, w, random.integers(-999, 999, 9, np.int32), y]
    with emulated(MmaTile(32, 32, 32, 32, 16, 2, 1)):
        spec = Conv2d(ALONG, post_ops=(step,), arith=arith)
        check_op(DEVICE, spec, inputs, consts=(1, 2), only="_mma_", orders=orders_of(inputs, (3,)))


for _kind in ("i1", "u1"):
    put(f"tensor_conv_{_kind}", partial(bytes_on_tensor_cores, _kind), targets=GPU)
_odd = inputs_of((2, 5, 3, 4), (9, 5, 1, 3), (9,), (2, 9, 3, 4))
on_tensor_cores(
    "conv_odd",
    Conv2d(ALONG, post_ops=RESIDUAL),
    _odd,
    "f16",
    consts=(1, 2),
    orders=orders_of(_odd, (3,)),
    border=1,
)
on_tensor_cores(
    "conv_point", Conv2d(POINT), inputs_of((1, 8, 3, 3), (6, 8, 1, 1)), "bf16", consts=(1,)
)
on_tensor_cores("gemm", Gemm(0.5, 2.0), inputs_of((9, 16), (16, 18), (18,)), "tf32", consts=(1, 2))
on_tensor_cores("gemm_moving", Gemm(), inputs_of((2, 9, 16), (2, 16, 24)), "f16")

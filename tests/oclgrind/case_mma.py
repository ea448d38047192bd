"""Cases of products on tensor cores and of warp instructions: their bodies in plain OpenCL C."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
from fragments import shuffled
from launch import run
from mma_cases import BIAS, Case, check
from mma_conv_cases import ConvCase
from mma_conv_cases import check as check_conv
from simulator import DEVICE
from table import put

from clnn.codegen import render as room
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.tensor_cores import MmaTile
from clnn.ops.shared.window import Window

KINDS = {"f16": 16, "bf16": 16, "tf32": 8, "s8": 32}  # bk


def multiply(
    name: str, kind: str, m: int, n: int, k: int, stages: int, long: bool = False, **how: object
) -> None:
    """Add a product in tiles of 32 x 32 by two warps."""
    tile = MmaTile(32, 32, KINDS[kind], 32, 16, stages, 1)
    case = Case(kind, m, n, k, tile, **how)  # type: ignore[arg-type]
    put(f"gemm_mma_{name}", lambda: check(DEVICE, case), targets=("gpu",), long=long)


multiply("f16", "f16", 18, 19, 21, 2, post_ops=BIAS, bias="row")
multiply("bf16", "bf16", 33, 20, 40, 3, b_rows="n", dst_type="bf16")
multiply("tf32", "tf32", 18, 20, 13, 2, rounded=True, batch=2)
multiply(
    "tf32_rows", "tf32", 18, 19, 20, 1, b_rows="n", dst_type="half", post_ops=(PostOp("relu"),)
)
multiply("s8", "s8", 9, 18, 34, 2, b_rows="n", dst_type="int")
multiply(
    "s8_float",
    "s8",
    9,
    18,
    34,
    2,
    b_rows="n",
    post_ops=(PostOp("mul", (0.5,)), *BIAS),
    bias="all",
    scale=2.0,
)
multiply("whole", "f16", 32, 32, 16, 3)
put(
    "gemm_mma_few_rows",
    lambda: check(DEVICE, Case("f16", 9, 20, 20, MmaTile(16, 32, 16, 16, 16, 2, 1), "n")),
    targets=("gpu",),
)
put(
    "gemm_mma_sliced",
    lambda: check(DEVICE, Case("f16", 18, 20, 70, MmaTile(32, 32, 32, 32, 16, 2, 1, 2), "n")),
    targets=("gpu",),
)
for _kind in KINDS:
    for _stages in (1, 2, 3, 4):
        multiply(
            f"{_kind}_{_stages}",
            _kind,
            35,
            37,
            41,
            _stages,
            long=True,
            b_rows="n",
            dst_type="int" if _kind == "s8" else "float",
        )

_SAME = Window((3, 2), (2, 1), (1, 1), (1, 1), (1, 0))
_POINT = Window((1, 1), (1, 1), (1, 1), (0, 0), (0, 0))
for _name, _conv in {
    "same": ConvCase(
        "f16", (1, 8, 5, 3), 18, _SAME, MmaTile(32, 32, 16, 32, 16, 2, 1), bias=True, dst_border=1
    ),
    "point": ConvCase(
        "s8", (1, 16, 3, 3), 17, _POINT, MmaTile(32, 32, 32, 32, 16, 1, 1), "n", "int"
    ),
}.items():
    put(f"conv2d_mma_{_name}", lambda conv=_conv: check_conv(DEVICE, conv), targets=("gpu",))

WARP = """<%namespace name="pt" file="_common/ptx.cl.mako"/>
${pt.declare(body, ["s8"])}
${group_size(wg)}
__kernel void ${name}(__global const uint *src, __global uint *out)
{
    __local uint none[4];
    const int id = get_local_id(0);
    ${pt.prepare(body, 32, 2, "none", 16)}
    uint d;
    int sum = id;
    ${pt.shuffle(body, "d", "src[id]", "bfly", "3")}
    ${pt.dp4a(body, "sum", "src[id]", "d")}
    out[id] = as_uint(sum);
}
"""


def warp_alone() -> None:
    """Run the instructions that no product uses."""
    params = {"name": "t", "wg": (64,), "body": "emulated"}
    src = np.random.default_rng(1).integers(0, 1 << 32, 64, np.uint32)
    other = np.concatenate([shuffled(part, "bfly", 3) for part in src.reshape(2, 32)])
    products = src.view(np.int8).astype(np.int32) * other.view(np.int8).astype(np.int32)
    with tempfile.TemporaryDirectory(prefix="clnn-warp-") as folder:
        Path(folder, "t.cl.mako").write_text(WARP, "utf-8")
        with mock.patch.dict(os.environ, CLNN_KERNEL_PATH=folder):
            room.render("t.cl.mako", params | {"body": "ptx"})
            got = run(DEVICE, "t.cl.mako", params, [src, np.zeros(64, np.uint32)], (64,))[-1]
    np.testing.assert_array_equal(
        got.view(np.int32), np.arange(64) + products.reshape(-1, 4).sum(1)
    )


put("warp", warp_alone, targets=("gpu",))

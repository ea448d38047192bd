"""Cases of products by tiles of registers: what x86's instructions do in plain OpenCL C."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
from harness import check_op, normal, rng
from simulator import DEVICE
from table import put

from clnn.arith.quantised import Requantised
from clnn.codegen import render as codegen
from clnn.ops.conv.spec import Conv2d
from clnn.ops.conv.transpose import ConvTranspose
from clnn.ops.gemm.spec import Gemm
from clnn.ops.shared import amx
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.ops.transformer.attend import Attention
from clnn.runtime.run import planning
from clnn.types import U8

NHWC = {"i0": (0, 2, 3, 1), "o0": (0, 2, 3, 1)}
SAME3 = Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
COLUMN = Window((3, 1), (1, 1), (1, 1), (1, 0), (1, 0))
ADD = (PostOp("add", operand=3),)
STRIDED = Window((1, 1), (2, 2), (1, 1), (0, 0), (0, 0))
BYTES = Requantised(7, False, 255, False, (0.0031,), kind=U8, zero_out=11, low=3, high=240)


@contextmanager
def tiles(*sums: tuple[int, int]) -> Iterator[None]:
    """Plan for a processor with tiles of registers, and these tiles of sums; render its instructions, too."""
    target, render = planning.target_of(None), codegen.render
    target = replace(target, vector=16, features=target.features | {"plain_amx"})

    def rendered(template: str, params: Any) -> str:
        if "how" in params:
            assert "__asm__" in render(template, {**params, "how": "x86"})
        return render(template, params)

    with (
        mock.patch.object(codegen, "render", rendered),
        mock.patch.object(planning, "target_of", lambda info: target),
        mock.patch.object(amx, "SUMS", sums),
        mock.patch.object(amx, "CANDIDATES", 64),
    ):
        yield


def convolution() -> None:
    """Check windows in rows and over borders, of bfloat16 and of bytes."""
    given = [normal((1, 6, 4, 9)), normal((17, 6, 3, 3), 1), normal((17,), 2)]
    with tiles((2, 1)):
        how = {"dtype": "bf16", "orders": NHWC, "every": True, "only": "_amx_"}
        given.append(normal((1, 17, 4, 9), 3))
        check_op(DEVICE, Conv2d(SAME3, post_ops=ADD), given, consts=(1, 2), **how)
        strided = [normal((1, 4, 3, 5)), normal((9, 4, 1, 1), 1)]
        check_op(DEVICE, Conv2d(STRIDED), strided, consts=(1,), **how)
        for order in ((0, 1, 2, 3), (0, 2, 3, 1)):
            first = [normal((1, 3, 3, 6)), normal((5, 3, 3, 3), 1)]
            how["orders"] = NHWC | {"i0": order}
            check_op(DEVICE, Conv2d(SAME3), first, consts=(1,), **how)
        how["orders"] = NHWC | {"i0": (0, 1, 2, 3)}
        column = [normal((1, 2, 4, 6)), normal((5, 2, 3, 1), 1)]
        check_op(DEVICE, Conv2d(COLUMN), column, consts=(1,), **how)
    given = [
        rng(0).integers(0, 256, (1, 4, 4, 9), np.uint8),
        rng(1).integers(-128, 128, (17, 4, 1, 1), np.int8),
        rng(2).integers(-99, 99, 17, np.int32),
    ]
    with tiles((1, 2)):
        point = Window((1, 1), (1, 1), (1, 1), (0, 0), (0, 0))
        spec = Conv2d(point, 1, (), BYTES)
        check_op(DEVICE, spec, given, consts=(1, 2), every=True, only="_amx_")


def product() -> None:
    """Check products with a constant, and with what is packed on the device."""
    with tiles((1, 2)):
        for consts in ((1,), ()):
            given = [normal((7, 12)), normal((12, 20), 1)]
            check_op(DEVICE, Gemm(), given, consts=consts, dtype="bf16", only="gemm_amx")
        given += [normal((20,), 2), normal((7, 20), 3)]
        spec = Gemm(post_ops=ADD)
        check_op(DEVICE, spec, given, consts=(1, 2), dtype="bf16", only="gemm_amx")


def shared_product() -> None:
    """Check matrices that meet the same panels, of which the next one is asked for."""
    with tiles((2, 1)):
        given = [normal((3, 10, 12)), normal((12, 20), 1)]
        how: dict[str, Any] = {"orders": {"o0": (1, 0, 2)}, "every": True, "only": "gemm_amx"}
        check_op(DEVICE, Gemm(), given, consts=(1,), dtype="bf16", **how)


def attention() -> None:
    """Check scores of keys and columns that are left over, with masks, and weights that are NaN."""
    mask = np.where(np.arange(35) > 20, -np.inf, 0).astype(np.float32)
    with tiles((2, 2)):
        for rows, keys, columns in ((33, 35, 40), (5, 32, 20), (5, 32, 64)):
            q, k = normal((2, rows, 6)), normal((2, keys, 6), 1)
            given = [q, k, None, mask[:keys], normal((2, keys, columns), 2)]
            spec = Attention(Gemm(0.3, trans_b=True, post_ops=ADD), zeros_for_nan=rows == 5)
            check_op(DEVICE, spec, given, dtype="bf16", only="attention_amx")


def transposed() -> None:
    """Check a convolution of each tap."""
    with tiles((1, 2)):
        given = [normal((1, 4, 2, 9)), normal((4, 17, 2, 2), 1), normal((17,), 2)]
        spec = ConvTranspose((2, 2), (2, 2), (1, 1), (0, 0), (4, 18))
        check_op(DEVICE, spec, given, consts=(1, 2), dtype="bf16", orders=NHWC, only="_amx_")


put("conv_amx", convolution, targets=("cpu",))
put("gemm_amx", product, targets=("cpu",))
put("gemm_amx_shared", shared_product, targets=("cpu",))
put("attention_amx", attention, targets=("cpu",))
put("transposed_amx", transposed, targets=("cpu",))

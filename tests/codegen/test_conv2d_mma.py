"""Convolutions on tensor cores: the loop of gemm/mma with the addresses of padded images."""

from __future__ import annotations

from dataclasses import replace

import pytest
from mma_conv_cases import TEMPLATE, ConvCase, check

from clnn.codegen.render import render
from clnn.errors import TemplateError
from clnn.layout import TensorLayout, channels_last
from clnn.ops.shared.tensor_cores import MmaTile, mma_conv_params
from clnn.ops.shared.window import Window

pytestmark = pytest.mark.dealt  # kernels that are slow to build

SAME = Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
POINT = Window((1, 1), (1, 1), (1, 1), (0, 0), (0, 0))
WIDE = Window((2, 3), (2, 1), (1, 2), (1, 2), (0, 2))
TILE = MmaTile(32, 32, 32, 32, 16, 2, 2)
BYTES = MmaTile(32, 32, 64, 32, 16, 3, 1)
CASES = {
    "same": ConvCase("f16", (1, 8, 7, 9), 20, SAME, TILE, bias=True, dst_border=1),
    "two_images": ConvCase("f16", (2, 24, 5, 4), 35, SAME, TILE, "n", "half", dst_border=2),
    "point": ConvCase("bf16", (1, 40, 6, 7), 34, POINT, TILE),
    "wide": ConvCase(
        "tf32", (2, 12, 9, 8), 18, WIDE, MmaTile(32, 32, 16, 32, 16, 2, 1), rounded=True, bias=True
    ),
    "bytes": ConvCase("s8", (1, 16, 6, 6), 33, SAME, BYTES, "n", "int"),
    "sliced": ConvCase("f16", (2, 24, 5, 4), 35, SAME, replace(TILE, bk=64, slices=4), "n", "half"),
    "sliced_bytes": ConvCase("s8", (1, 16, 6, 6), 33, SAME, replace(BYTES, slices=2), "n", "int"),
}


@pytest.mark.parametrize("name", CASES)
def test_convolutions(device, name):
    check(device, CASES[name])


@pytest.mark.parametrize(
    "change",
    [
        {"ic": 4},
        {"pads": (2, 1)},
        {"dilations": (2, 1)},
        {"b": 20},
        {"src": TensorLayout.make((1, 8, 7, 9), None, (0, 0, 1, 1), (0, 0, 1, 1))},
        {"src": TensorLayout.make((1, 4, 7, 9), channels_last(4), (0, 0, 1, 1), (0, 0, 1, 1))},
    ],
)
def test_what_lies_otherwise_is_refused(change):
    params = mma_conv_params(CASES["same"].make(), TILE, "emulated")
    render(TEMPLATE, params)
    with pytest.raises(TemplateError):
        render(TEMPLATE, params | change)

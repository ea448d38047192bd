"""Cases of fixed-point arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
from harness import rng
from table import add

from clnn.arith._base import Arithmetic
from clnn.arith.mli import MliAffine, MliFixed
from clnn.ops.conv.spec import Conv2d
from clnn.ops.shared.window import Window

SAME3 = Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
SCALES = {"in_scale": 24494, "in_frac": 21, "out_scale": 20291, "out_frac": 16, "zero_in": -43}


def convolve(
    name: str,
    arith: Arithmetic,
    types: str,
    channels: tuple[int, int],
    group: int = 1,
    **how: Any,
) -> None:
    """Add a padded 3x3 convolution; types: of input, weights and bias; channels: in and out."""
    ic, oc = channels
    shapes = ((1, ic, 3, 5), (oc, ic // group, 3, 3), (oc,))
    data = [
        rng(k).integers(-99, 99, shape).astype(dtype)
        for k, (shape, dtype) in enumerate(zip(shapes, types.split(), strict=True))
    ]
    add(name, Conv2d(SAME3, group, (), arith), data, consts=(1, 2), border=1, **how)


def affine(count: int, full: bool, up: bool) -> MliAffine:
    """Return sa8 parameters for `count` output channels."""
    fracs = tuple(int(f) for f in np.arange(count) % 3 + 22)
    return MliAffine(w_scale=(17000,) * count, w_frac=fracs, full=full, up=up, **SCALES)


convolve("mli_fx16", MliFixed(16, 4, 9), "int16 int16 int16", (3, 9))
for _channels in (14, 34, 130, 258):  # limbs of weights joined after all, a row, a tap, a part
    convolve(
        f"mli_fx16_limbs_{_channels}",
        MliFixed(16, 4, 9),
        "int16 int16 int16",
        (_channels, 4),
        only="direct",
    )
convolve("mli_fx16_small", MliFixed(16, 0, 64), "int16 int16 int16", (2, 4))
convolve("mli_fx8_left", MliFixed(8, 0, -3, up=True), "int16 int8 int8", (2, 5))
convolve("mli_fx8_depthwise", MliFixed(8, 2, 7, up=True), "int16 int8 int8", (8, 8), group=8)
convolve("mli_sa8_lots", affine(9, False, True), "int8 int8 int32", (8, 9))
convolve("mli_sa8_full", affine(9, True, False), "int8 int8 int32", (3, 9))

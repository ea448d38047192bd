"""Transposed convolution of MLI."""

from __future__ import annotations

import numpy as np

from clnn.apis.mli.checks import CONFIG, SHAPE, SPECIAL, need
from clnn.apis.mli.config import MliConv2dCfg
from clnn.apis.mli.mac import (
    arithmetic,
    convolution_checks,
    convolve_image,
    family,
)
from clnn.apis.mli.tensor import MliTensor
from clnn.ops.conv.transpose import ConvTranspose


def _transpose_conv2d(
    fmt: str,
    kind: str,
    fixed: tuple[int, ...],
    in_: MliTensor,
    weights: MliTensor,
    bias: MliTensor,
    cfg: MliConv2dCfg,
    out: MliTensor,
) -> None:
    """Let each input pixel add weights (kh, kw, channels, filters) to the outputs it reaches.

    Padding is cut off the result: output (y, x) takes input i at tap k where y = i * stride + k -
    padding.
    """
    relu = convolution_checks(fmt, in_, weights, bias, cfg, out, fixed)
    need(
        weights.shape[2] == in_.shape[2],
        SHAPE,
        f"weights take {weights.shape[2]} channels, in has {in_.shape[2]}.",
    )
    strides = (cfg.stride_height, cfg.stride_width)
    if fixed:
        need(
            strides == fixed[2:], SPECIAL, f"strides are {strides}, the kernel is for {fixed[2:]}."
        )
    spec = ConvTranspose(
        weights.shape[:2],
        strides,
        (1, 1),
        _cut(cfg, in_, weights, out),
        out.shape[:2],
        arith=arithmetic(in_, weights, bias, out, relu),
    )
    kernel = np.ascontiguousarray(weights.view().transpose(2, 3, 0, 1))
    y = convolve_image(spec, in_.view(), kernel, np.ascontiguousarray(bias.view()))
    out.view()[...] = y


def _cut(cfg: MliConv2dCfg, in_: MliTensor, weights: MliTensor, out: MliTensor) -> tuple[int, int]:
    """Return what is cut off in front; refuse a geometry that cannot be."""
    strides = (cfg.stride_height, cfg.stride_width)
    need(min(strides) >= 1, CONFIG, f"strides {strides} must be at least 1.")
    need((cfg.dilation_height, cfg.dilation_width) == (1, 1), CONFIG, "dilation must be 1.")
    before, after = (cfg.padding_top, cfg.padding_left), (cfg.padding_bottom, cfg.padding_right)
    kernel = weights.shape[:2]
    inside = all(0 <= p < k for p, k in zip((*before, *after), (*kernel, *kernel), strict=True))
    need(
        inside, CONFIG, f"padding {before}, {after} must be within 0..kernel - 1, kernel {kernel}."
    )
    for axis, name in ((0, "height"), (1, "width")):
        whole = (in_.shape[axis] - 1) * strides[axis] + kernel[axis]
        most = whole - before[axis] - after[axis]
        need(
            1 <= out.shape[axis] <= max(most, 1),
            SHAPE,
            f"out has {name} {out.shape[axis]}, the input gives {most}.",
        )
    return before


_SPECIAL = (("_k2x2_str2", (2, 2, 2, 2)), ("_k4x4_str2", (4, 4, 2, 2)))
globals().update(family("mli_krn_transpose_conv2d_hwcn", _transpose_conv2d, "transpose", _SPECIAL))

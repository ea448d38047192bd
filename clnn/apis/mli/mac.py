"""Kernels of MLI that multiply and accumulate: fully connected and convolutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from clnn.apis.images import digest, from_image, to_image
from clnn.apis.mli import checks
from clnn.apis.mli.checks import CONFIG, FORMATS, SHAPE, SPECIAL, TENSORS, need
from clnn.apis.mli.config import MliConv2dCfg, MliFullyConnectedCfg
from clnn.apis.mli.engine import compute, named, status_of
from clnn.apis.mli.enums import MliStatus
from clnn.apis.mli.modes import modes
from clnn.apis.mli.tensor import MliTensor
from clnn.arith._base import Arithmetic
from clnn.arith.mli import MliAffine, MliFixed
from clnn.arith.mli_primitives import wrap
from clnn.arith.mli_quant import relu_limits
from clnn.graph.builder import GraphBuilder
from clnn.ops.conv.spec import Conv2d
from clnn.ops.shared.window import Window
from clnn.ops.spec import OpSpec
from clnn.records import dataclass
from clnn.types import Array


def arithmetic(
    in_: MliTensor,
    weights: MliTensor,
    bias: MliTensor,
    out: MliTensor,
    relu: int,
    zero_in: int | None = None,
) -> Arithmetic:
    """Return the arithmetic of a call. zero_in: instead of the input's zero point."""
    x, y, mode = in_.quant(), out.quant(), modes()
    low, high = relu_limits(relu, y)
    if not in_.affine:
        total = x.frac + weights.quant().frac
        bits = weights.quant().bits
        return MliFixed(bits, total - bias.quant().frac, total - y.frac, low, high, mode.up)
    scales = weights.quants()
    channels = bias.count
    if len(scales) == 1:
        scales = scales * channels
    return MliAffine(
        x.scale,
        x.frac,
        y.scale,
        y.frac,
        tuple(q.scale for q in scales),
        tuple(q.frac for q in scales),
        x.zero if zero_in is None else zero_in,
        y.zero,
        low,
        high,
        mode.full_accu,
        mode.up,
    )


def typed(fmt: str, in_: MliTensor, weights: MliTensor, bias: MliTensor, out: MliTensor) -> None:
    """Refuse operands that are not valid or not of the kernel's formats."""
    data, coefficients, biases = FORMATS[fmt]
    for tensor, name, el_type in (
        (in_, "in", data),
        (weights, "weights", coefficients),
        (bias, "bias", biases),
        (out, "out", data),
    ):
        checks.typed(tensor, name, el_type)


def fully_connected_checks(
    fmt: str, in_: MliTensor, weights: MliTensor, bias: MliTensor, cfg: Any, out: MliTensor
) -> int:
    """Refuse what the document of fully connected kernels excludes; return the kind of ReLU."""
    checks.config(cfg, MliFullyConnectedCfg)
    typed(fmt, in_, weights, bias, out)
    checks.rank(weights, "weights", 2)
    checks.rank(bias, "bias", 1)
    checks.rank(out, "out", 1)
    inputs, units = weights.shape
    need(in_.count == inputs, SHAPE, f"in has {in_.count} elements, weights want {inputs}.")
    need(bias.shape == (units,), SHAPE, f"bias is {bias.shape}, must be ({units},).")
    need(out.shape == (units,), SHAPE, f"out is {out.shape}, must be ({units},).")
    checks.apart(in_, out, "in")
    for tensor, name in ((in_, "in"), (out, "out")):
        need(
            tensor.is_contiguous,
            TENSORS,
            f"{name} must be contiguous, mem_stride is {tensor.mem_stride}.",
        )
    checks.unit_stride(weights, "weights")
    checks.unit_stride(bias, "bias")
    checks.products(in_, weights, bias, out, (1, 0))
    return checks.relu(cfg.relu)


def _fully_connected(
    fmt: str,
    ext_bias: bool,
    in_: MliTensor,
    weights: MliTensor,
    bias: MliTensor,
    cfg: MliFullyConnectedCfg,
    out: MliTensor,
) -> None:
    """Multiply the flattened input with weights (inputs, units), add the bias, clip.

    The _ext_bias form takes a bias that holds the input's zero point already: see
    mli_hlp_fully_connected_ext_bias.
    """
    relu = fully_connected_checks(fmt, in_, weights, bias, cfg, out)
    arith = arithmetic(in_, weights, bias, out, relu, 0 if ext_bias else None)
    inputs, units = weights.shape
    kernel = np.ascontiguousarray(weights.view().T).reshape(units, inputs, 1, 1)
    spec = Conv2d(Window((1, 1), (1, 1), (1, 1), (0, 0), (0, 0)), arith=arith)
    x = in_.view().reshape(1, inputs, 1, 1)
    y = convolve(spec, x, kernel, bias.view())
    out.view()[...] = y.reshape(units)


def convolve(spec: OpSpec, x: Array, weights: Array, bias: Array) -> Array:
    """Return the convolution of x (n, c, h, w)."""

    def ops(build: GraphBuilder, value: str) -> str:
        return build.add(spec, value, build.const(weights), build.const(bias))

    return compute(("mac", spec, digest(weights, bias)), ops, x)


def convolve_image(spec: OpSpec, x: Array, weights: Array, bias: Array) -> Array:
    """Return the convolution (h, w, c) of an image (h, w, c)."""

    def ops(build: GraphBuilder, image: str) -> str:
        value = from_image(build, image)
        result = build.add(spec, value, build.const(weights), build.const(bias))
        return to_image(build, result)

    return compute(("mac_image", spec, digest(weights, bias)), ops, x)


@status_of
def mli_hlp_fully_connected_ext_bias(
    in_: MliTensor, weights: MliTensor, bias: MliTensor, out: MliTensor
) -> None:
    """Write the bias for the _ext_bias kernel: bias - zero_in * sum of weights, as the vendor does.

    `in_`: the input tensor, of which only the zero point is used. `bias` and `out` are sa32 and
    may be the same tensor.
    """
    typed("sa8_sa8_sa32", in_, weights, bias, in_)
    checks.typed(out, "out", checks.SA32)
    checks.rank(weights, "weights", 2)
    need(
        bias.shape == out.shape == weights.shape[1:],
        SHAPE,
        f"bias is {bias.shape}, out {out.shape}: both must be ({weights.shape[1]},).",
    )
    sums = weights.view().sum(axis=0, dtype=np.int64)
    out.view()[...] = wrap(bias.view() - in_.quant().zero * sums, 32)


@dataclass(frozen=True)
class Placed:
    """Where windows lie: for (h, w) kernel, strides, dilations, padding in front and behind."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    before: tuple[int, int]
    after: tuple[int, int]

    def window(self, image: Sequence[int], outs: Sequence[int]) -> Window:
        """Return the window whose padding behind gives outputs of `outs`."""
        reach = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]
        after = [
            max(0, (o - 1) * s + r - e - b)
            for o, s, r, e, b in zip(outs, self.strides, reach, image, self.before, strict=True)
        ]
        short = [
            e + b + a - ((o - 1) * s + r)
            for o, s, r, e, b, a in zip(
                outs, self.strides, reach, image, self.before, after, strict=True
            )
        ]
        cut = all(0 <= n < s for n, s in zip(short, self.strides, strict=True))
        need(
            cut, SHAPE, f"out is {tuple(outs)}: the window leaves more of the input {tuple(image)}."
        )
        return Window(self.kernel, self.strides, self.dilations, self.before, (after[0], after[1]))


def placed(cfg: MliConv2dCfg, kernel: Sequence[int]) -> Placed:
    """Return the geometry of a configuration; refuse an impossible one."""
    numbers = (cfg.stride_height, cfg.stride_width, cfg.dilation_height, cfg.dilation_width)
    need(min(numbers) >= 1, CONFIG, f"strides and dilations {numbers} must be at least 1.")
    pads = (cfg.padding_top, cfg.padding_left, cfg.padding_bottom, cfg.padding_right)
    need(min(pads) >= 0, CONFIG, f"padding {pads} must not be negative.")
    kh, kw = kernel
    reach = ((kh - 1) * numbers[2] + 1, (kw - 1) * numbers[3] + 1)
    inside = max(pads[0], pads[2]) < reach[0] and max(pads[1], pads[3]) < reach[1]
    need(inside, CONFIG, f"padding {pads} must be below the window's extent {reach}.")
    return Placed((kh, kw), numbers[:2], numbers[2:], pads[:2], pads[2:])


def convolution_checks(
    fmt: str,
    in_: MliTensor,
    weights: MliTensor,
    bias: MliTensor,
    cfg: Any,
    out: MliTensor,
    fixed: tuple[int, ...],
) -> int:
    """Refuse what all convolutions exclude; return the kind of ReLU. fixed: kernel, of special ones."""
    checks.config(cfg, MliConv2dCfg)
    typed(fmt, in_, weights, bias, out)
    checks.rank(in_, "in", 3)
    checks.rank(weights, "weights", 4)
    checks.rank(bias, "bias", 1)
    checks.rank(out, "out", 3)
    checks.apart(in_, out, "in")
    for tensor, name in ((in_, "in"), (out, "out"), (weights, "weights"), (bias, "bias")):
        checks.unit_stride(tensor, name)
    channels = weights.shape[3]
    need(bias.shape == (channels,), SHAPE, f"bias is {bias.shape}, must be ({channels},).")
    need(
        out.shape[2] == channels,
        SHAPE,
        f"out has {out.shape[2]} channels, weights make {channels}.",
    )
    if fixed:
        kernel = weights.shape[:2]
        need(kernel == fixed[:2], SPECIAL, f"weights are {kernel}, the kernel is for {fixed[:2]}.")
    checks.products(in_, weights, bias, out, (3, 0))
    return checks.relu(cfg.relu)


def outs_of(place: Placed, in_: MliTensor, out: MliTensor) -> None:
    """Refuse an output size that the padded input does not give."""
    for axis, name in ((0, "height"), (1, "width")):
        reach = (place.kernel[axis] - 1) * place.dilations[axis] + 1
        room = in_.shape[axis] + place.before[axis] + place.after[axis] - reach
        most = room // place.strides[axis] + 1
        need(
            room >= 0 and 1 <= out.shape[axis] <= most,
            SHAPE,
            f"out has {name} {out.shape[axis]}, the padded input gives {most}.",
        )


def crop(place: Placed, in_: MliTensor, out: MliTensor) -> Array:
    """Return the part of the input that the output's windows reach."""
    stops = []
    for axis in (0, 1):
        reach = (place.kernel[axis] - 1) * place.dilations[axis] + 1
        stops.append((out.shape[axis] - 1) * place.strides[axis] + reach - place.before[axis])
    return in_.view()[: max(stops[0], 1), : max(stops[1], 1)]


def _conv2d(
    fmt: str,
    kind: str,
    fixed: tuple[int, ...],
    in_: MliTensor,
    weights: MliTensor,
    bias: MliTensor,
    cfg: MliConv2dCfg,
    out: MliTensor,
) -> None:
    """Convolve an image (h, w, c) with weights (kh, kw, channels, filters), add the bias, clip.

    depthwise: weights (kh, kw, 1, channels), one filter for each channel. group: filters are
    dealt to groups of input channels in turn.
    """
    relu = convolution_checks(fmt, in_, weights, bias, cfg, out, fixed)
    place = placed(cfg, weights.shape[:2])
    outs_of(place, in_, out)
    groups = _groups(kind, in_, weights)
    x = crop(place, in_, out)
    window = place.window(x.shape[:2], out.shape[:2])
    arith = arithmetic(in_, weights, bias, out, relu)
    kernel = np.ascontiguousarray(weights.view().transpose(3, 2, 0, 1))
    spec = Conv2d(window, groups, arith=arith)
    out.view()[...] = convolve_image(spec, x, kernel, np.ascontiguousarray(bias.view()))


def _groups(kind: str, in_: MliTensor, weights: MliTensor) -> int:
    channels, per, filters = in_.shape[2], weights.shape[2], weights.shape[3]
    if kind == "depthwise":
        need(
            per == 1 and filters == channels,
            SHAPE,
            f"weights are {weights.shape}: ({channels}) channels want (.., .., 1, {channels}).",
        )
        return channels
    if kind == "conv":
        need(per == channels, SHAPE, f"weights take {per} channels, in has {channels}.")
        return 1
    need(
        channels % per == 0 and filters % (channels // per) == 0,
        SHAPE,
        f"{channels} channels and {filters} filters do not divide into groups of {per} channels.",
    )
    return channels // per


def family(
    stem: str,
    function: Callable[..., None],
    kind: str,
    special: Sequence[tuple[str, tuple[int, ...]]],
) -> dict[str, Callable[..., MliStatus]]:
    """Return the functions of one kernel: every format, for any window and for special ones."""
    functions = {}
    for fmt in FORMATS:
        for suffix, fixed in (("", ()), *special):
            name = f"{stem}_{fmt}{suffix}"
            functions[name] = named(function, name, fmt, kind, fixed)
    return functions


K1, K3, K5 = ("_k1x1", (1, 1)), ("_k3x3", (3, 3)), ("_k5x5", (5, 5))
_FUNCTIONS = {
    **family("mli_krn_conv2d_hwcn", _conv2d, "conv", (K1, K3, K5)),
    **family("mli_krn_depthwise_conv2d_hwcn", _conv2d, "depthwise", (K3, K5)),
    **family("mli_krn_group_conv2d_hwcn", _conv2d, "group", (K3, K5)),
    **{
        f"mli_krn_fully_connected_{fmt}": named(
            _fully_connected, f"mli_krn_fully_connected_{fmt}", fmt, False
        )
        for fmt in FORMATS
    },
}
_EXT = "mli_krn_fully_connected_sa8_sa8_sa32_ext_bias"
_FUNCTIONS[_EXT] = named(_fully_connected, _EXT, "sa8_sa8_sa32", True)
globals().update(_FUNCTIONS)

"""Elementwise kernels of MLI: eltwise, ReLUs, sigmoid, tanh, conversion of formats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clnn.apis.images import digest
from clnn.apis.mli import checks
from clnn.apis.mli.checks import ELEMENTS, FP32, SHAPE, TENSORS, need
from clnn.apis.mli.config import MliAxisCfg, MliReluCfg
from clnn.apis.mli.engine import compute, named, status_of
from clnn.apis.mli.modes import modes
from clnn.apis.mli.tensor import FxParams, MliTensor, SaParams, valid
from clnn.arith.mli_convert import convert
from clnn.arith.mli_maps import MliMap, affine_leaky, binary, clip, fixed_leaky, normalised_slope
from clnn.arith.mli_quant import Quant, relu_limits
from clnn.arith.mli_tables import SIGMOID, TANH, Table, activation, activation_quant, tabled
from clnn.graph.builder import GraphBuilder
from clnn.ops.elementwise.fixed_map import FixedMap
from clnn.types import Array

MANY = 1 << 17  # elements from which on a table of all 16-bit results pays


def apply(
    function: MliMap, inputs: Sequence[Array], consts: Sequence[Array], out: MliTensor
) -> None:
    """Write the function of arrays and constants, broadcast, to out."""

    def ops(build: GraphBuilder, *values: str) -> str:
        return build.add(FixedMap(function), *values, *(build.const(c) for c in consts))

    arrays = [a.reshape(a.shape or (1,)) for a in inputs]
    result = compute(("map", function, digest(*consts)), ops, *arrays)
    out.view()[...] = result.reshape(out.shape)


def _eltwise(op: str, fmt: str, in1: MliTensor, in2: MliTensor, out: MliTensor) -> None:
    """Combine two tensors of one shape, or a tensor and a scalar (one element)."""
    for tensor, name in ((in1, "in1"), (in2, "in2"), (out, "out")):
        checks.typed(tensor, name, ELEMENTS[fmt])
        checks.per_tensor(tensor, name)
    larger = in1 if in1.count >= in2.count else in2
    for tensor, name in ((in1, "in1"), (in2, "in2")):
        fits = tensor.count == 1 or tensor.shape == larger.shape
        need(fits, SHAPE, f"{name} is {tensor.shape}: it must be {larger.shape} or one element.")
        if tensor.count > 1 or larger.count == 1:
            checks.same_place_or_apart(tensor, out, name)
    checks.same_shape(larger, out, "the larger input")
    function = binary(op, in1.quant(), in2.quant(), out.quant(), modes().up)
    views = [
        t.view() if t.count > 1 else t.view().reshape((1,) * max(larger.rank, 1))
        for t in (in1, in2)
    ]
    apply(function, views, (), out)


def _unary(fmt: str, in_: MliTensor, out: MliTensor) -> None:
    """Refuse operands that do not fit a function of one tensor."""
    for tensor, name in ((in_, "in"), (out, "out")):
        checks.typed(tensor, name, ELEMENTS[fmt])
        checks.per_tensor(tensor, name)
    checks.same_shape(in_, out, "in")
    checks.same_place_or_apart(in_, out, "in")


def _relu(fmt: str, in_: MliTensor, cfg: MliReluCfg, out: MliTensor) -> None:
    """Clip by a ReLU, whose limits follow from the input's quantisation. out gets that of in."""
    _unary(fmt, in_, out)
    kind = checks.relu(cfg)
    function = clip(in_.quant(), *relu_limits(kind, in_.quant()))
    apply(function, [in_.view()], (), out)
    out.el_params = in_.el_params


def _leaky_relu(fmt: str, in_: MliTensor, slope: MliTensor, out: MliTensor) -> None:
    """Scale what lies below zero by one slope."""
    _unary(fmt, in_, out)
    checks.typed(slope, "slope_coeff", ELEMENTS[fmt])
    need(slope.count == 1, SHAPE, f"slope_coeff is {slope.shape}: it must be one element.")
    _same_fraction(in_, out)
    value, up, ones = int(slope.view().reshape(-1)[0]), modes().up, (1,) * max(in_.rank, 1)
    if in_.affine:
        scaled, *rows = affine_leaky(in_.quant(), [(value, slope.quant())], out.quant(), up)
        apply(scaled, [in_.view()], [row.reshape(ones) for row in rows], out)
        return
    value, fixed = normalised_slope(in_.quant(), slope.quant(), value, out.quant(), up)
    apply(fixed, [in_.view()], [np.full(ones, value, in_.dtype)], out)


def _same_fraction(in_: MliTensor, out: MliTensor) -> None:
    fits = in_.affine or in_.quant().frac == out.quant().frac
    need(
        fits, TENSORS, "in and out must have the same frac_bits: what is above zero is not scaled."
    )


def _prelu(fmt: str, in_: MliTensor, slope: MliTensor, cfg: MliAxisCfg, out: MliTensor) -> None:
    """Scale what lies below zero by a slope for each index of an axis, or by one (axis -1)."""
    checks.config(cfg, MliAxisCfg)
    _unary(fmt, in_, out)
    checks.typed(slope, "slope_coeff", ELEMENTS[fmt])
    checks.axis(cfg.axis, in_.rank)
    count = in_.shape[cfg.axis] if cfg.axis >= 0 else 1
    need(
        slope.count == count, SHAPE, f"slope_coeff is {slope.shape}: it must have {count} elements."
    )
    _same_fraction(in_, out)
    shape = tuple(count if a == cfg.axis else 1 for a in range(max(in_.rank, 1)))
    values, up = slope.view().reshape(-1), modes().up
    if in_.affine:
        quants = slope.quants()
        slopes = [(int(v), quants[k % len(quants)]) for k, v in enumerate(values)]
        scaled, *rows = affine_leaky(in_.quant(), slopes, out.quant(), up)
        apply(scaled, [in_.view()], [row.reshape(shape) for row in rows], out)
        return
    fixed = fixed_leaky(in_.quant(), slope.quant(), out.quant(), up)
    apply(fixed, [in_.view()], [np.ascontiguousarray(values).reshape(shape)], out)


def _activation(table: Table, fmt: str, in_: MliTensor, out: MliTensor) -> None:
    """Look up sigmoid or tanh. out must have the quantisation that MLI gives the result."""
    _unary(fmt, in_, out)
    function = activation(table, in_.quant(), modes().up)
    if in_.count >= MANY:
        function = tabled(function)
    apply(function, [in_.view()], (), out)
    give_quant(out, activation_quant(table, in_.quant()))


def give_quant(out: MliTensor, quant: Quant) -> None:
    """Give a tensor a quantisation."""
    if out.affine:
        out.el_params = SaParams((quant.scale,), (quant.zero,), (quant.frac,))
    else:
        out.el_params = FxParams(quant.frac)


@status_of
def mli_hlp_convert_tensor(in_: MliTensor, out: MliTensor) -> None:
    """Convert a tensor to the format of another; one of them may be quantised along an axis."""
    valid(in_, "in")
    valid(out, "out")
    need(
        in_.count == out.count and in_.shape == out.shape,
        SHAPE,
        f"in is {in_.shape}, out is {out.shape}.",
    )
    checks.apart(in_, out, "in")
    real = [t.el_type == FP32 for t in (in_, out)]
    need(not all(real), checks.TYPE, "one of the tensors must have integers.")
    axes = [_axis(t) for t in (in_, out) if t.el_type != FP32]
    dims = {a for a in axes if a >= 0}
    need(
        len(dims) <= 1, TENSORS, f"tensors are quantised along axes {sorted(dims)}: one is allowed."
    )
    sides = [None if flag else t.quants() for flag, t in zip(real, (in_, out), strict=True)]
    function, rows = convert(sides[0], sides[1], modes().up)
    axis = max(axes)
    shape = tuple(-1 if a == axis else 1 for a in range(max(in_.rank, 1)))
    apply(
        function,
        [in_.view()],
        [row.reshape(shape if row.size > 1 else (1,) * len(shape)) for row in rows],
        out,
    )


def _axis(tensor: MliTensor) -> int:
    return int(getattr(tensor.el_params, "dim", -1))


def _all(stem: str, formats: Sequence[str], function: Any, *first: Any) -> list[Any]:
    return [named(function, f"mli_krn_{stem}_{f}", *first, f) for f in formats]


mli_krn_eltwise_add_fx8, mli_krn_eltwise_add_fx16, mli_krn_eltwise_add_sa8 = _all(
    "eltwise_add", ("fx8", "fx16", "sa8"), _eltwise, "add"
)
mli_krn_eltwise_sub_fx8, mli_krn_eltwise_sub_fx16, mli_krn_eltwise_sub_sa8 = _all(
    "eltwise_sub", ("fx8", "fx16", "sa8"), _eltwise, "sub"
)
mli_krn_eltwise_mul_fx8, mli_krn_eltwise_mul_fx16, mli_krn_eltwise_mul_sa8 = _all(
    "eltwise_mul", ("fx8", "fx16", "sa8"), _eltwise, "mul"
)
mli_krn_eltwise_min_fx8, mli_krn_eltwise_min_fx16, mli_krn_eltwise_min_sa8 = _all(
    "eltwise_min", ("fx8", "fx16", "sa8"), _eltwise, "min"
)
mli_krn_eltwise_max_fx8, mli_krn_eltwise_max_fx16, mli_krn_eltwise_max_sa8 = _all(
    "eltwise_max", ("fx8", "fx16", "sa8"), _eltwise, "max"
)
mli_krn_relu_fx8, mli_krn_relu_fx16, mli_krn_relu_sa8 = _all("relu", ("fx8", "fx16", "sa8"), _relu)
mli_krn_leaky_relu_fx8, mli_krn_leaky_relu_fx16, mli_krn_leaky_relu_sa8 = _all(
    "leaky_relu", ("fx8", "fx16", "sa8"), _leaky_relu
)
mli_krn_prelu_fx8, mli_krn_prelu_fx16, mli_krn_prelu_sa8 = _all(
    "prelu", ("fx8", "fx16", "sa8"), _prelu
)
mli_krn_sigm_fx8, mli_krn_sigm_fx16, mli_krn_sigm_sa8 = _all(
    "sigm", ("fx8", "fx16", "sa8"), _activation, SIGMOID
)
mli_krn_tanh_fx8, mli_krn_tanh_fx16, mli_krn_tanh_sa8 = _all(
    "tanh", ("fx8", "fx16", "sa8"), _activation, TANH
)

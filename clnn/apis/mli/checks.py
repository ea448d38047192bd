"""Conditions of MLI's functions, each with the status that it has where it does not hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clnn.apis.mli.config import MliReluCfg
from clnn.apis.mli.enums import MliElementType, MliReluType, MliStatus
from clnn.apis.mli.tensor import MliTensor, Refused, SaParams, valid, valid_but_scale

FX8, FX16 = MliElementType.MLI_EL_FX_8, MliElementType.MLI_EL_FX_16
SA8, SA32 = MliElementType.MLI_EL_SA_8, MliElementType.MLI_EL_SA_32
FP32 = MliElementType.MLI_EL_FP_32
ELEMENTS = {"fx8": FX8, "fx16": FX16, "sa8": SA8}  # by the end of a function's name
FORMATS = {  # of inputs and output, weights, bias
    "fx16": (FX16, FX16, FX16),
    "fx16_fx8_fx8": (FX16, FX8, FX8),
    "sa8_sa8_sa32": (SA8, SA8, SA32),
}
ROUNDED = 2.0**-13  # by which a product of two rounded scales may differ from a third rounded one
SHAPE = MliStatus.MLI_STATUS_SHAPE_MISMATCH
TENSORS = MliStatus.MLI_STATUS_INCOMPATEBLE_TENSORS
CONFIG = MliStatus.MLI_STATUS_BAD_FUNC_CFG
TYPE = MliStatus.MLI_STATUS_TYPE_MISMATCH
BAD = MliStatus.MLI_STATUS_BAD_TENSOR
SPECIAL = MliStatus.MLI_STATUS_SPEC_PARAM_MISMATCH


def need(ok: bool, status: MliStatus, why: str) -> None:
    """Raise Refused with `status` unless a condition holds."""
    if not ok:
        raise Refused(status, why)


def config(cfg: Any, wanted: type) -> None:
    """Refuse a configuration of another kind."""
    need(isinstance(cfg, wanted), CONFIG, f"cfg is {type(cfg).__name__}, not {wanted.__name__}.")


def typed(tensor: MliTensor, name: str, el_type: MliElementType) -> None:
    """Refuse an invalid tensor, or one of another format."""
    valid(tensor, name)
    _format(tensor, name, el_type)


def typed_but_scale(tensor: MliTensor, name: str, el_type: MliElementType) -> None:
    """Do what `typed` does for a tensor whose parameters of quantisation are not read."""
    valid_but_scale(tensor, name)
    _format(tensor, name, el_type)


def _format(tensor: MliTensor, name: str, el_type: MliElementType) -> None:
    own = tensor.el_type
    need(own == el_type, TYPE, f"{name} is {MliElementType(own).name}, must be {el_type.name}.")


def apart(tensor: MliTensor, out: MliTensor, name: str) -> None:
    """Refuse an input whose memory overlaps the output's."""
    need(not np.shares_memory(tensor.data, out.data), TENSORS, f"{name} and out overlap in memory.")


def same_place_or_apart(tensor: MliTensor, out: MliTensor, name: str) -> None:
    """Refuse an input that overlaps the output, unless each element lies where its result does."""
    if np.shares_memory(tensor.data, out.data):
        start = (
            tensor.data.__array_interface__["data"][0] == out.data.__array_interface__["data"][0]
        )
        same = start and tensor.mem_stride == out.mem_stride and tensor.dtype == out.dtype
        need(same, TENSORS, f"{name} and out overlap in memory and do not lie alike.")


def per_tensor(tensor: MliTensor, name: str) -> None:
    """Refuse an sa tensor with several scales, or with a zero point that its elements cannot have."""
    if not tensor.affine:
        return
    assert isinstance(tensor.el_params, SaParams)
    need(tensor.el_params.dim < 0, TENSORS, f"{name} must have one scale and one zero point.")
    zero = tensor.el_params.zero_point[0]
    need(-128 <= zero <= 127, TENSORS, f"{name} has zero point {zero}: -128 to 127 are allowed.")


def same_shape(tensor: MliTensor, out: MliTensor, name: str) -> None:
    """Refuse tensors of different shapes."""
    need(tensor.shape == out.shape, SHAPE, f"{name} is {tensor.shape}, out is {out.shape}.")


def relu(cfg: MliReluCfg) -> int:
    """Return the kind of ReLU; refuse an unknown one."""
    kind = getattr(cfg, "type", None)
    known = kind in [r.value for r in MliReluType]
    need(known, CONFIG, f"relu type {kind} is not one of MLI's.")
    return int(kind or 0)


def unit_stride(tensor: MliTensor, name: str) -> None:
    """Refuse a tensor whose innermost axis has gaps."""
    fits = not tensor.rank or tensor.mem_stride[-1] == 1 or tensor.shape[-1] == 1
    need(fits, TENSORS, f"{name}: mem_stride of the innermost axis must be 1.")


def rank(tensor: MliTensor, name: str, wanted: int) -> None:
    """Refuse another number of axes."""
    need(tensor.rank == wanted, SHAPE, f"{name} is {tensor.shape}: it must have {wanted} axes.")


def axis(value: int, count: int) -> None:
    """Refuse an axis that is not there; -1 stands for all."""
    need(-1 <= value < max(count, 1), CONFIG, f"axis {value} of a tensor with {count} axes.")


def products(
    in_: MliTensor,
    weights: MliTensor,
    bias: MliTensor | None,
    out: MliTensor,
    axes: Sequence[int],
) -> None:
    """Refuse quantisation with which sums of products cannot be scaled.

    axes: the axes of output channels in weights, and of bias.
    """
    if not in_.affine:
        total = in_.quant().frac + weights.quant().frac
        pairs = [(bias, "bias")] if bias is not None else []
        for tensor, name in [*pairs, (out, "out")]:
            frac = tensor.quant().frac
            need(
                frac <= total,
                TENSORS,
                f"{name} has {frac} fraction bits, the products only {total}.",
            )
        return
    per_tensor(in_, "in")
    per_tensor(out, "out")
    symmetric(weights, "weights", axes[0])
    if bias is not None:
        symmetric(bias, "bias", axes[1])
        bias_scales(in_, weights, bias)


def symmetric(tensor: MliTensor, name: str, channel_axis: int) -> None:
    """Refuse weights or a bias with zero points, or with scales along another axis."""
    p = tensor.el_params
    assert isinstance(p, SaParams)
    need(not any(p.zero_point), TENSORS, f"{name} must be symmetric: its zero points must be 0.")
    need(
        p.dim in (-1, channel_axis),
        TENSORS,
        f"{name} has scales along axis {p.dim}: -1 and {channel_axis} are allowed.",
    )


def bias_scales(in_: MliTensor, weights: MliTensor, bias: MliTensor) -> None:
    """Refuse bias scales other than the input's times the weights', as far as rounding lets them."""
    count = len(weights.quants())
    need(len(bias.quants()) == count, TENSORS, "weights and bias must be quantised at one level.")
    x = in_.quant()
    for k, (w, b) in enumerate(zip(weights.quants(), bias.quants(), strict=True)):
        exact = x.scale * w.scale * 2.0 ** (b.frac - x.frac - w.frac)
        need(
            abs(exact - b.scale) <= 1 + exact * ROUNDED,
            TENSORS,
            f"scale {k} of bias is {b.scale}, in times weights is {exact:.1f}.",
        )

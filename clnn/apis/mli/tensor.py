"""mli_tensor: a buffer of the caller with a shape, strides and an element format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np

from clnn.apis.mli.config import MAX_RANK
from clnn.apis.mli.enums import MliElementType, MliStatus
from clnn.arith.mli_quant import Quant
from clnn.records import dataclass
from clnn.types import Array

NUMPY: dict[MliElementType, np.dtype[Any]] = {
    MliElementType.MLI_EL_FX_8: np.dtype("int8"),
    MliElementType.MLI_EL_FX_16: np.dtype("int16"),
    MliElementType.MLI_EL_SA_8: np.dtype("int8"),
    MliElementType.MLI_EL_SA_32: np.dtype("int32"),
    MliElementType.MLI_EL_FP_32: np.dtype("float32"),
}
AFFINE = (MliElementType.MLI_EL_SA_8, MliElementType.MLI_EL_SA_32)


class Refused(Exception):
    """A condition that does not hold: the status that MLI has for it, and why."""

    def __init__(self, status: MliStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass
class FxParams:
    """el_params.fx: how many bits of an element are its fraction."""

    frac_bits: int = 0


@dataclass
class SaParams:
    """el_params.sa: (element - zero_point) * scale * 2**-scale_frac_bits is the real value.

    dim: the axis whose indices have a scale, zero point and fraction each; -1 for one of each.
    """

    scale: Sequence[int] = (1,)
    zero_point: Sequence[int] = (0,)
    scale_frac_bits: Sequence[int] = (0,)
    dim: int = -1


@dataclass
class MliTensor:
    """mli_tensor: data is a contiguous numpy array of any type, whose bytes are the memory.

    shape: up to 4 axes; () is a scalar. mem_stride: distance of neighbours on each axis, in
    elements; left out, the tensor is contiguous. Elements lie at sum(index * mem_stride) from the
    start of data; memory between them is never written.
    """

    data: Array
    shape: tuple[int, ...]
    el_type: MliElementType
    el_params: FxParams | SaParams | None = None
    mem_stride: tuple[int, ...] = field(default=())

    def __post_init__(self) -> None:
        self.shape = tuple(int(d) for d in self.shape)
        if not self.mem_stride:
            self.mem_stride = contiguous(self.shape)
        self.mem_stride = tuple(int(s) for s in self.mem_stride)

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def capacity(self) -> int:
        """Bytes of the memory."""
        return int(self.data.nbytes)

    @property
    def count(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def dtype(self) -> np.dtype[Any]:
        """numpy's type of the elements."""
        return NUMPY[self.el_type]

    @property
    def affine(self) -> bool:
        """Whether the format has scales and zero points."""
        return self.el_type in AFFINE

    @property
    def is_contiguous(self) -> bool:
        """Whether there are no gaps between elements."""
        shaped = [
            (d, s, c)
            for d, s, c in zip(self.shape, self.mem_stride, contiguous(self.shape), strict=True)
        ]
        return all(d == 1 or s == c for d, s, c in shaped)

    def quant(self, index: int = 0) -> Quant:
        """Return the quantisation of index `index` of the axis that has several, else of all."""
        bits = 8 * self.dtype.itemsize
        if isinstance(self.el_params, SaParams):
            p = self.el_params
            k = index if p.dim >= 0 else 0
            zeros = p.zero_point
            zero = zeros[k] if k < len(zeros) else zeros[0]
            return Quant(bits, int(p.scale_frac_bits[k]), int(p.scale[k]), int(zero), True)
        assert isinstance(self.el_params, FxParams)
        return Quant(bits, self.el_params.frac_bits)

    def quants(self) -> list[Quant]:
        """Return the quantisation of each index of the axis that has several, else one."""
        p = self.el_params
        count = len(p.scale) if isinstance(p, SaParams) and p.dim >= 0 else 1
        return [self.quant(k) for k in range(count)]

    def view(self) -> Array:
        """Return the elements as a numpy view of the memory, in the tensor's shape."""
        raw = self.data.reshape(-1).view(np.uint8)
        size = self.dtype.itemsize
        strides = tuple(s * size for s in self.mem_stride)
        return np.ndarray(self.shape, self.dtype, raw.data, 0, strides)


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a tensor without gaps."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def valid(tensor: MliTensor, name: str, bad: MliStatus = MliStatus.MLI_STATUS_BAD_TENSOR) -> None:
    """Raise Refused unless a tensor's fields agree with each other and with its memory."""
    valid_but_scale(tensor, name, bad)
    _params(tensor, name, bad)


def valid_but_scale(
    tensor: MliTensor, name: str, bad: MliStatus = MliStatus.MLI_STATUS_BAD_TENSOR
) -> None:
    """Do what `valid` does for a tensor whose parameters of quantisation are not read."""
    if not isinstance(tensor, MliTensor) or not isinstance(tensor.data, np.ndarray):
        raise Refused(bad, f"{name} is {type(tensor).__name__}, must be an MliTensor with data.")
    if tensor.el_type not in NUMPY:
        raise Refused(bad, f"{name} has element type {tensor.el_type}, which MLI does not have.")
    if tensor.rank > MAX_RANK or min(tensor.shape, default=1) < 1:
        raise Refused(
            bad, f"{name} has shape {tensor.shape}: 0 to 4 axes of at least 1 are allowed."
        )
    if len(tensor.mem_stride) != tensor.rank or min(tensor.mem_stride, default=1) < 0:
        raise Refused(bad, f"{name} has mem_stride {tensor.mem_stride} for shape {tensor.shape}.")
    if name == "out" and not tensor.data.flags.writeable:
        raise Refused(bad, "the memory of out cannot be written.")
    if not tensor.data.flags.c_contiguous:
        raise Refused(bad, f"the memory of {name} is not contiguous: pass its base array.")
    _ordered(tensor, name, bad)
    last = sum((d - 1) * s for d, s in zip(tensor.shape, tensor.mem_stride, strict=True))
    needed = (last + 1) * tensor.dtype.itemsize
    if needed > tensor.capacity:
        status = MliStatus.MLI_STATUS_NOT_ENGH_MEM if name == "out" else bad
        raise Refused(status, f"{name} needs {needed} bytes, its memory has {tensor.capacity}.")


def _ordered(tensor: MliTensor, name: str, bad: MliStatus) -> None:
    """Refuse strides with which two indices share an element."""
    room = 0
    for extent, stride in sorted(
        zip(tensor.shape, tensor.mem_stride, strict=True), key=lambda pair: pair[1]
    ):
        if extent > 1 and stride <= room:
            raise Refused(
                bad,
                f"{name}: mem_stride {tensor.mem_stride} lets elements of {tensor.shape} overlap.",
            )
        room += (extent - 1) * stride


def _params(tensor: MliTensor, name: str, bad: MliStatus) -> None:
    p = tensor.el_params
    if tensor.el_type == MliElementType.MLI_EL_FP_32:
        return
    if not tensor.affine:
        if not isinstance(p, FxParams):
            raise Refused(bad, f"{name} is fx and has no frac_bits.")
        return
    if not isinstance(p, SaParams):
        raise Refused(bad, f"{name} is sa and has no scale and zero point.")
    if not -1 <= p.dim < max(tensor.rank, 1):
        raise Refused(bad, f"{name}: quantisation axis {p.dim} of {tensor.rank} axes.")
    count = tensor.shape[p.dim] if p.dim >= 0 and tensor.rank else 1
    if len(p.scale) < count or len(p.scale_frac_bits) < count or not len(p.zero_point):
        raise Refused(bad, f"{name} needs {count} scales and fractions, and a zero point.")
    if any(not 0 < s < 1 << 15 for s in p.scale[:count]):
        raise Refused(bad, f"{name} has scales {tuple(p.scale)}: each must be 1..32767.")

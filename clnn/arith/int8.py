"""Quantised networks: sums of products of bytes, scaled to float32.

Input and weights are symmetric, without zero points: a byte q stands for q times a scale, one for the
input and one per output channel for weights. Sums are exact in 32 bits and begin with the bias in
their own steps; one multiplication makes a result of float32.
"""

from __future__ import annotations

import math
from dataclasses import field, replace

import numpy as np

from clnn.arith._base import Arithmetic, Array
from clnn.arith.mli import dot, per_channel
from clnn.errors import DTypeError
from clnn.records import dataclass
from clnn.types import F32, I8, S8_LARGEST, DType, narrow, stored_s8

EXACT = 2**24  # up to here float32 holds every integer
LARGEST_SUM = 2**31 - 1
AT_ONCE = 2**18  # weights that are widened at once


def magnitudes(weights: Array) -> Array:
    """Return what the magnitudes of each output channel's weights come to, int64. Few are widened at once."""
    each = math.prod(weights.shape[1:])
    flat, rows = weights.reshape(len(weights), each), max(1, AT_ONCE // max(each, 1))
    parts = (flat[k : k + rows].astype(np.int64) for k in range(0, len(flat), rows))
    return np.concatenate([np.zeros(0, np.int64), *(np.abs(part).sum(1) for part in parts)])


@dataclass(frozen=True)
class Int8(Arithmetic):
    """Bytes in steps of `scale` times bytes in steps of `w_scale` of each output channel.

    floats: no sum leaves the integers that float32 holds, so that it may be kept in float32.
    """

    scale: float = field(metadata={"data": True})
    w_scale: tuple[float, ...] = field(metadata={"data": True})
    floats: bool = False

    library = "_arith/int8.cl.mako"
    name = "s8"
    wraps = True
    strict = True

    @property
    def acc(self) -> str:
        """OpenCL type of the accumulator."""
        return "float" if self.floats else "int"

    @property
    def product(self) -> str:  # type: ignore[override]
        """OpenCL type of the operands of a product."""
        return self.acc

    @property
    def step(self) -> float:
        """What a step of the input is worth."""
        return self.scale

    @property
    def factors(self) -> Array:
        """What a step of the sum is worth, of each output channel."""
        return np.float32(self.scale) * np.array(self.w_scale, np.float32)

    def output(self, x: DType, w: DType) -> DType:
        """Return float32. Raises DTypeError for other operands."""
        if x != F32 or w != I8:
            raise DTypeError(
                f"quantised product of {x.name} with {w.name}: it takes float32 with int8."
            )
        return F32

    def bias(self, x: DType, w: DType) -> DType:
        """Return float32."""
        return F32

    def steps(self, count: int, bias: Array | None) -> Array:
        """Return the bias in steps of the sums, as int64."""
        given = np.zeros(count) if bias is None else bias.astype(np.float64)
        return np.rint(given / self.factors.astype(np.float64)).astype(np.int64)

    def refine(self, weights: Array, bias: Array | None) -> Arithmetic:
        """Return the arithmetic with what is known of its sums."""
        largest = S8_LARGEST * np.abs(weights.reshape(len(weights), -1).astype(np.int64)).sum(1)
        sums = largest + np.abs(self.steps(len(weights), bias))
        return replace(self, floats=bool((sums <= EXACT).all()))

    def packed_products(self) -> Arithmetic:
        """Return the arithmetic with sums of integers."""
        return replace(self, floats=False)

    def table(self, weights: Array, bias: Array | None) -> Array | None:
        """Return rows: what sums begin with, bits of the factor."""
        start = self.steps(len(weights), bias)
        return np.stack([start.astype(np.int32), self.factors.view(np.int32)])

    def reference(self, columns: Array, weights: Array, bias: Array | None) -> Array:
        """Return results as float32 for real inputs, which are rounded to their steps first."""
        sums = dot(narrow(columns, stored_s8(self.scale)), weights)
        sums = sums + per_channel(self.steps(weights.shape[0] * weights.shape[1], bias), sums)
        return np.asarray(sums.astype(np.float32) * per_channel(self.factors, sums))

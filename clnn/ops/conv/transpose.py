"""Transposed convolution over one or two spatial axes, with fused post-ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clnn.arith._base import FLOAT, Arithmetic
from clnn.arith.real_taps import RealTaps
from clnn.errors import DTypeError, ShapeError
from clnn.ops.conv.packing import by_output
from clnn.ops.conv.problem import BIAS
from clnn.ops.conv.transpose_amx import amx_variants
from clnn.ops.conv.transpose_phases import (
    LEAST_TERMS,
    TransposeProblem,
    candidates,
    phase_border,
    variants,
)
from clnn.ops.launch import Variant
from clnn.ops.problem import Border, Problem
from clnn.ops.shared.functions import PostOp, apply_post_ops
from clnn.ops.shared.window import Window
from clnn.ops.spec import OpSpec, batched
from clnn.records import dataclass
from clnn.types import Array, TensorType

FEW_OUTPUTS = 4  # of a group, whose sums are of vectors of inputs on CPUs


@dataclass(frozen=True)
class ConvTranspose(OpSpec):
    """Inputs: x (n, c, spatial...), weights (c, oc / group, kernel...), bias (oc) or None, others.

    Output (n, oc, extents...): input pixel i adds to output pixels i * stride + k * dilation -
    before. `before` is cut off in front; `extents` are given, since attributes leave them free.
    An arithmetic other than float32 needs constant weights and bias, and takes no post-ops.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    extents: tuple[int, ...]
    group: int = 1
    post_ops: tuple[PostOp, ...] = ()
    arith: Arithmetic = FLOAT

    kind = "conv_transpose"
    layout_rule = "image"
    fuses_post_ops = True
    supports_narrow_storage = True
    first_operand = 3

    def __post_init__(self) -> None:
        if min((*self.kernel, *self.strides, *self.dilations, self.group)) < 1:
            raise ShapeError(f"kernel, strides, dilations and group must be at least 1: {self}.")
        if min((*self.before, *self.extents)) < 0:
            raise ShapeError(f"pads and output extents must not be negative: {self}.")

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the output type. Raises ShapeError or DTypeError where inputs do not fit."""
        x, w = inputs[0], inputs[1]
        if x is None or w is None:
            raise ShapeError("transposed convolution needs an input and weights.")
        result = self.arith.output(x.dtype, w.dtype)
        if x.rank != len(self.kernel) + 2 or w.rank != x.rank:
            raise ShapeError(
                f"transposed convolution of {x.shape} with weights {w.shape}: ranks must match."
            )
        if x.shape[1] != w.shape[0] or w.shape[0] % self.group:
            raise ShapeError(
                f"transposed convolution of {x.shape} with weights {w.shape} in {self.group} "
                f"groups: weights want {w.shape[0]} input channels, input has {x.shape[1]}."
            )
        if w.shape[2:] != self.kernel:
            raise ShapeError(f"weights {w.shape} do not have kernel {self.kernel}.")
        channels = w.shape[1] * self.group
        bias = inputs[BIAS] if len(inputs) > BIAS else None
        if bias is not None and bias.shape != (channels,):
            raise ShapeError(f"bias is {bias.shape}, must be ({channels},).")
        if bias is not None and bias.dtype != self.arith.bias(x.dtype, w.dtype):
            raise DTypeError(f"bias is {bias.dtype.name}, which {self.arith.name} does not take.")
        return (TensorType((x.shape[0], channels, *self.extents), result),)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return the sum of scattered products, in the arrays' own precision."""
        x, w = inputs[0], inputs[1]
        assert x is not None and w is not None
        if self.arith is not FLOAT:
            return (self._exact(x, w, inputs[BIAS] if len(inputs) > BIAS else None),)
        n, ic, spatial = x.shape[0], x.shape[1], x.shape[2:]
        rank, per = len(spatial), w.shape[1]
        reach = [
            max((i - 1) * s + d * (k - 1) + 1, b + e)
            for i, s, d, k, b, e in zip(
                spatial,
                self.strides,
                self.dilations,
                self.kernel,
                self.before,
                self.extents,
                strict=True,
            )
        ]
        full = np.zeros((n, self.group, per, *reach), x.dtype)
        grouped = x.reshape(n, self.group, ic // self.group, *spatial)
        weights = w.reshape(self.group, ic // self.group, per, *self.kernel)
        for tap in np.ndindex(*self.kernel if x.size else (0,)):
            hit: tuple[Any, ...] = tuple(
                slice(t * d, t * d + (i - 1) * s + 1, s)
                for t, d, i, s in zip(tap, self.dilations, spatial, self.strides, strict=True)
            )
            part = weights[(..., *tap)]
            full[(..., *hit)] += np.einsum("ngc...,gco->ngo...", grouped, part)
        cut = tuple(slice(b, b + e) for b, e in zip(self.before, self.extents, strict=True))
        y = full.reshape(n, self.group * per, *reach)[(slice(None), slice(None), *cut)]
        bias = inputs[BIAS] if len(inputs) > BIAS else None
        if bias is not None:
            y = y + bias.reshape(1, -1, *(1,) * rank)
        return (apply_post_ops(y, self.post_ops, inputs),)

    def _exact(self, x: Array, w: Array, bias: Array | None) -> Array:
        """Return what the arithmetic's own reference makes of each output's taps."""
        n, per = x.shape[0], w.shape[1]
        taps = list(np.ndindex(*self.kernel))
        columns = np.full((len(taps), n, x.shape[1], *self.extents), self.arith.fill, x.dtype)
        for place, tap in enumerate(taps):
            hits = [self._hits(axis, t, x.shape[2 + axis]) for axis, t in enumerate(tap)]
            outs, ins = zip(*hits, strict=True)
            taken = x[(slice(None), slice(None), *np.ix_(*ins))]
            columns[place][(slice(None), slice(None), *np.ix_(*outs))] = taken
        grouped = columns.reshape(len(taps), n, self.group, x.shape[1] // self.group, *self.extents)
        weights = by_output(w, self.group).reshape(self.group, per, -1, len(taps))
        y = self.arith.reference(np.moveaxis(grouped, 0, 3), weights, bias)
        return y.reshape(n, self.group * per, *self.extents)

    def _hits(self, axis: int, tap: int, extent: int) -> tuple[Array, Array]:
        """Return the output indices that a tap reaches along an axis, and the inputs they take."""
        ins = np.arange(extent)
        outs = ins * self.strides[axis] + tap * self.dilations[axis] - self.before[axis]
        inside = (outs >= 0) & (outs < self.extents[axis])
        return outs[inside], ins[inside]

    def padding_needs(self, inputs: Sequence[TensorType | None]) -> dict[int, Border]:
        """Return a border as wide as taps reach, of what the arithmetic takes for zero."""
        assert inputs[0] is not None
        border = phase_border(self.window, inputs[0].shape, self.extents, self.arith.fill)
        return {} if border is None else {0: border}

    def needs_neighbours(self, inputs: Sequence[TensorType | None]) -> tuple[int, ...]:
        """Return the input of filters, sums of few outputs and bytes, whose vectors are of its channels."""
        weights = inputs[1]
        assert weights is not None
        ic, oc = weights.shape[0] // max(self.group, 1), weights.shape[1]
        filters = ic == oc == 1 < self.group
        taken = filters or isinstance(self.arith, RealTaps)
        return (0,) if taken or (ic >= LEAST_TERMS and oc <= FEW_OUTPUTS) else ()

    @property
    def window(self) -> Window:
        """The kernel's taps; `before` is cut off in front of the output."""
        return Window(
            self.kernel, self.strides, self.dilations, self.before, (0,) * len(self.kernel)
        )

    def split_batch(
        self, inputs: Sequence[TensorType | None], count: int
    ) -> tuple[OpSpec, tuple[int, ...]] | None:
        """Return the op as it is, for some images of x and of operands that have as many."""
        return self, (0, *batched(inputs, len(self.kernel) + 2, self.first_operand))

    def flops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        """Two operations per multiply-add: each input element meets each of its weights."""
        x, w = inputs[0], inputs[1]
        assert x is not None and w is not None
        return 2 * x.size * int(np.prod(w.shape[1:]))

    def variants(self, problem: Problem) -> list[Variant]:
        """Return the phase kernels where weights are constant, and the reference kernel."""
        seen = self.problem(problem)
        return [*amx_variants(seen), *variants(seen)]

    def candidates(self, problem: Problem) -> list[Variant]:
        """Return the variants, and kernels of smaller tiles."""
        seen = self.problem(problem)
        return [*amx_variants(seen), *candidates(seen)]

    def repeat(self, problem: Problem, variant: Variant) -> Variant | None:
        """Return a kernel of the same tile."""
        return super().repeat(self.problem(problem) if variant.again else problem, variant)

    def problem(self, problem: Problem) -> TransposeProblem:
        """Return a node as kernels see it."""
        node = (problem.inputs, problem.outputs, problem.target)
        return TransposeProblem(*node, self.window, self.group, self.post_ops, self.arith)

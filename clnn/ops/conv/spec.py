"""Convolution over one or two spatial axes (more: volumes.py), grouped or depthwise, with fused post-ops."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from clnn.arith._base import FLOAT, Arithmetic
from clnn.errors import DTypeError, ShapeError
from clnn.ops.conv import families
from clnn.ops.conv.problem import BIAS, ConvProblem, takes_any_order
from clnn.ops.conv.row_packing import takes_rows, wide_border
from clnn.ops.conv.volumes import IMAGE, Taps, over_images
from clnn.ops.launch import Variant
from clnn.ops.onnx_registry import Emit, OnnxNode, Source, Unsupported, onnx_op
from clnn.ops.problem import Border, Problem
from clnn.ops.shared.functions import PostOp, apply_post_ops
from clnn.ops.shared.window import Window, window_of
from clnn.ops.spec import OpSpec, batched
from clnn.records import dataclass
from clnn.types import Array, TensorType


@dataclass(frozen=True)
class Conv2d(OpSpec):
    """Inputs: x (n, c, spatial...), weights (oc, c / group, kernel...), bias (oc) or None, operands.

    Output (n, oc, spatial...). `post_ops` are applied to each result. A bias may also be (oc,
    spatial...) of the output, where the arithmetic takes it as it is.
    """

    window: Window
    group: int = 1
    post_ops: tuple[PostOp, ...] = ()
    arith: Arithmetic = FLOAT

    kind = "conv2d"
    layout_rule = "image"
    fuses_post_ops = True
    supports_narrow_storage = True
    first_operand = 3

    def infer(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Return the output type. Raises ShapeError where shapes do not fit."""
        x, w = inputs[0], inputs[1]
        if x is None or w is None:
            raise ShapeError("convolution needs an input and weights.")
        if x.rank != len(self.window.kernel) + 2 or w.rank != x.rank:
            raise ShapeError(f"convolution of {x.shape} with weights {w.shape}: ranks must match.")
        if x.shape[1] != w.shape[1] * self.group or w.shape[0] % self.group:
            raise ShapeError(
                f"convolution of {x.shape} with weights {w.shape} in {self.group} groups: weights "
                f"want {w.shape[1] * self.group} input channels, input has {x.shape[1]}."
            )
        if w.shape[2:] != self.window.kernel:
            raise ShapeError(f"weights {w.shape} do not have kernel {self.window.kernel}.")
        result = self.arith.output(x.dtype, w.dtype)
        shape = (x.shape[0], w.shape[0], *self.window.output(x.shape[2:]))
        self._check_bias(inputs[BIAS] if len(inputs) > BIAS else None, x, w, shape)
        return (TensorType(shape, result),)

    def _check_bias(
        self, bias: TensorType | None, x: TensorType, w: TensorType, shape: tuple[int, ...]
    ) -> None:
        if bias is None:
            return
        allowed = [(shape[1],), shape[1:]] if self.arith.plain_bias else [(shape[1],)]
        if bias.shape not in allowed:
            raise ShapeError(f"bias is {bias.shape}, must be {' or '.join(map(str, allowed))}.")
        wanted = self.arith.bias(x.dtype, w.dtype)
        if bias.dtype != wanted:
            raise DTypeError(f"bias is {bias.dtype.name}, must be {wanted.name}.")

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Return the convolution; of floats as shifted products, in the arrays' own precision.

        Pads add nothing, not even where a weight is infinite.
        """
        x, w = inputs[0], inputs[1]
        assert x is not None and w is not None
        if self.arith is not FLOAT:
            y = self._exact(x, w, inputs[BIAS] if len(inputs) > BIAS else None)
            single = [a if a is None or a.dtype.kind != "f" else a.astype(y.dtype) for a in inputs]
            return (apply_post_ops(y, self.post_ops, single),)
        win, rank = self.window, len(self.window.kernel)
        outs = win.output(x.shape[2:])
        extra = win.needed_after(x.shape[2:])
        pads = tuple(zip(win.before, extra, strict=True))
        inside = np.pad(np.ones(x.shape[2:], bool), pads)
        x = np.pad(x, [(0, 0), (0, 0), *pads])
        n, oc, icg = x.shape[0], w.shape[0], w.shape[1]
        y = np.zeros((n, self.group, oc // self.group, *outs), x.dtype)
        grouped = w.reshape(self.group, oc // self.group, icg, *win.kernel)
        finite = np.isfinite(w).all()
        for tap in np.ndindex(*win.kernel):
            begin = [t * d for t, d in zip(tap, win.dilations, strict=True)]
            cut = tuple(
                slice(b, b + (o - 1) * s + 1, s)
                for b, o, s in zip(begin, outs, win.strides, strict=True)
            )
            part = x[(slice(None), slice(None), *cut)].reshape(n, self.group, icg, *outs)
            product = np.einsum("ngc...,goc->ngo...", part, grouped[(..., *tap)])
            y += product if finite else np.where(inside[cut], product, 0)
        y = y.reshape(n, oc, *outs)
        bias = inputs[BIAS] if len(inputs) > BIAS else None
        if bias is not None:
            y = y + bias.reshape(1, oc, *(bias.shape[1:] or (1,) * rank))
        return (apply_post_ops(y, self.post_ops, inputs),)

    def _exact(self, x: Array, w: Array, bias: Array | None) -> Array:
        """Return the convolution as the arithmetic's own reference computes it."""
        win, n, oc, icg = self.window, x.shape[0], w.shape[0], w.shape[1]
        outs, taps = win.output(x.shape[2:]), int(np.prod(win.kernel))
        extra = win.needed_after(x.shape[2:])
        pads = [(0, 0), (0, 0), *zip(win.before, extra, strict=True)]
        x = np.pad(x, pads, constant_values=self.arith.fill)
        axes = tuple(range(2, x.ndim))
        reach = tuple(win.reach(a) for a in range(len(outs)))
        windows = np.lib.stride_tricks.sliding_window_view(x, reach, axes)
        origins = [slice(0, (o - 1) * s + 1, s) for o, s in zip(outs, win.strides, strict=True)]
        at = (slice(None), slice(None), *origins, *(slice(None, None, d) for d in win.dilations))
        windows = windows[at].reshape(n, self.group, icg, *outs, taps)
        columns = np.moveaxis(windows, -1, 3)
        y = self.arith.reference(columns, w.reshape(self.group, oc // self.group, icg, taps), bias)
        return y.reshape(n, oc, *outs)

    def padding_needs(self, inputs: Sequence[TensorType | None]) -> dict[int, Border]:
        """Return a border as wide as the windows reach, of what the arithmetic takes for zero."""
        x = inputs[0]
        assert x is not None
        if self.arith.wraps and takes_rows(x, self.window, self.group):
            return {0: wide_border(self.window, x, float(self.arith.fill))}
        return {0: self.window.border(x.shape, float(self.arith.fill))}

    def needs_border(self, inputs: Sequence[TensorType | None]) -> tuple[int, ...]:
        """Return the input of filters of one channel each, which only such a border makes fast."""
        weights = inputs[1]
        assert weights is not None
        alone = self.group > 1 and weights.shape[:2] == (self.group, 1)
        return (0,) if alone else ()

    def needs_neighbours(self, inputs: Sequence[TensorType | None]) -> tuple[int, ...]:
        """Return the input, unless strides leave elements out: a copy of all costs less than the reference."""
        weights, strides = inputs[1], math.prod(self.window.strides)
        assert weights is not None
        used = math.prod(weights.shape) // max(weights.shape[1] * self.group, 1)
        return () if self.accepts_nchw(inputs) or used < strides else (0,)

    def accepts_nchw(self, inputs: Sequence[TensorType | None]) -> bool:
        """Whether there are so few channels that a tile's reads are the same either way."""
        assert inputs[0] is not None
        return takes_any_order(inputs[0].shape[1], self.group, self.arith)

    def split_batch(
        self, inputs: Sequence[TensorType | None], count: int
    ) -> tuple[OpSpec, tuple[int, ...]] | None:
        """Return the op as it is, for some images of x and of operands that have as many."""
        return self, (0, *batched(inputs, len(self.window.kernel) + 2, self.first_operand))

    def flops(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        """Two operations per multiply-add."""
        w = inputs[1]
        assert w is not None
        return 2 * outputs[0].size * int(np.prod(w.shape[1:]))

    def variants(self, problem: Problem) -> list[Variant]:
        """Return the choice of each family of kernels that fits, then the reference kernel."""
        return families.variants(self.problem(problem))

    def candidates(self, problem: Problem) -> list[Variant]:
        """Return all that is worth a measurement of each family."""
        return families.candidates(self.problem(problem))

    def named(self, problem: Problem, name: str) -> Variant | None:
        """Return the kernel of a name."""
        return families.named(self.problem(problem), name)

    def repeat(self, problem: Problem, variant: Variant) -> Variant | None:
        """Return a kernel of the same family and tile."""
        conv = self.problem(problem)
        if variant.again is None:
            return super().repeat(problem, variant)
        return variant.again(conv) if conv.fits_fast else None

    def costs(self, problem: Problem, variants: Sequence[Variant]) -> list[float | None]:
        """Return what kernels of the same families and tiles would cost."""
        conv = self.problem(problem)
        if not conv.fits_fast:
            return [v.cost_at and math.inf for v in variants]
        return [v.cost_at and v.cost_at(conv) for v in variants]

    def problem(self, problem: Problem) -> ConvProblem:
        """Return a node as kernels see it."""
        node = (problem.inputs, problem.outputs, problem.target)
        return ConvProblem(*node, self.window, self.group, self.post_ops, self.arith)


@onnx_op("Conv")
def _conv(node: OnnxNode) -> Source:
    x, w = node.type(0), node.type(1)
    if x.rank < 3:
        raise Unsupported(f"convolution of {x.rank} axes; it needs batch, channels and an image")
    kernel = node.attr("kernel_shape", w.shape[2:])
    window = window_of(node, kernel, x.shape[2:])
    group = int(node.attr("group", 1))
    depths = max(0, x.rank - IMAGE)
    spec = Conv2d(window.axes(depths), group)
    bias = 2 if node.has(2) else None
    if not depths:
        return Emit(spec, [0, 1, bias])
    return over_images(
        node,
        window.kernel,
        [Taps.of(window.axes(axis, axis + 1), x.shape[2 + axis]) for axis in range(depths)],
        group,
        lambda image, weights: Emit(spec, [image, weights, bias]),
    )

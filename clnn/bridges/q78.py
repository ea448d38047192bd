"""OpenVX in Q7.8: every tensor is int16 with 8 fraction bits, and layers are those of clnn.openvx.

Products are rounded to nearest even and clamped, sums have 32 bits, the bias is added behind their
conversion. A convolution in groups is one for each group, as OpenVX has to be given it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clnn.arith.openvx import Format, Scale, activation_table
from clnn.arith.openvx_device import VxAverage, VxClamp, VxMac, VxProduct, VxSum, VxTable
from clnn.bridges.layers import RELU6, Grid, Products
from clnn.bridges.target import Made, Target
from clnn.graph.builder import GraphBuilder
from clnn.ops.conv.spec import Conv2d
from clnn.ops.elementwise.cast import Cast
from clnn.ops.elementwise.eltwise import Eltwise
from clnn.ops.elementwise.fixed_map import FixedMap
from clnn.ops.movement.pad import Pad
from clnn.ops.pool.spec import Pool
from clnn.ops.rows.openvx_softmax import OpenVxSoftmax
from clnn.ops.shared.functions import PostOp
from clnn.ops.shared.window import Window
from clnn.types import F32, I16, Array

FRACTION = 8
ONE = float(2**FRACTION)
Q78 = Format(I16, FRACTION)
GRID = Grid(I16, 1 / ONE)
SUM_BITS = 32  # of the accumulator
NAMES = {"sigmoid": "logistic", "tanh": "tanh"}


def elements(values: Array) -> Array:
    """Return real numbers in Q7.8: rounded to nearest, ties to even, and clamped."""
    return np.clip(np.rint(values.astype(np.float64) * ONE), Q78.low, Q78.high).astype(np.int16)


class Q78Target(Target):
    """OpenVX's neural-network layers."""

    name = "openvx-q78"
    bits = 16

    def grid(self, low: float, high: float) -> Grid:
        """Return the one grid that there is."""
        return GRID

    def quantise(self, build: GraphBuilder, value: str, grid: Grid) -> str:
        """Round to nearest, ties to even, and clamp."""
        limits = float(Q78.low), float(Q78.high)
        steps = PostOp("mul", (ONE,)), PostOp("round"), PostOp("clip", limits)
        return build.add(Cast(I16), build.add(Eltwise(steps), value))

    def dequantise(self, build: GraphBuilder, value: str, grid: Grid) -> str:
        """Divide by 256."""
        return build.add(Eltwise((PostOp("mul", (1 / ONE,)),)), build.add(Cast(F32), value))

    def products(self, build: GraphBuilder, x: str, grid: Grid, layer: Products) -> Made | None:
        """Convolve, then apply the activation as a layer of its own."""
        weights = elements(layer.weights)
        bias = elements(layer.settled(weights / ONE)).astype(np.int32)
        sums = (np.abs(weights.astype(np.int64)).reshape(len(weights), -1) << 15 >> FRACTION) + 1
        wide = int(sums.sum(1).max(initial=0)) + 2**16 >= 2**31
        rule = VxMac(Q78, FRACTION, "even", False, SUM_BITS, bias_first=False, wide=wide)
        spec = Conv2d(layer.window, layer.group, arith=rule)
        made = build.add(spec, x, build.const(weights), build.const(bias))
        data = {"weights": weights, "bias": bias, "activation": layer.activation}
        if layer.activation:
            made = build.add(FixedMap(_clamp(layer.activation)), made)
        return made, GRID, data

    def clip(self, build: GraphBuilder, x: str, grid: Grid, activation: str) -> Made | None:
        """Clamp as RELU or BRELU."""
        return build.add(FixedMap(_clamp(activation)), x), GRID, {"activation": activation}

    def maximum(self, build: GraphBuilder, x: str, grid: Grid, window: Window) -> Made | None:
        """Take the largest elements; padding is zeros."""
        around = window
        if any((*window.before, *window.after)):
            x = build.add(Pad((0, 0, *window.before), (0, 0, *window.after)), x)
            around = Window(window.kernel, window.strides, window.dilations, (0, 0), (0, 0))
        return build.add(Pool(around, "max"), x), GRID, {"window": window}

    def average(
        self,
        build: GraphBuilder,
        x: str,
        grid: Grid,
        window: Window,
        limits: tuple[float, float],
    ) -> Made | None:
        """Divide sums by the whole window, padding included, cut towards zero."""
        n, c, h, w = build.shape(x)
        taps = int(np.prod(window.kernel))
        met = min(window.kernel[0], h) * min(window.kernel[1], w)
        rule = VxAverage(Q78, taps, met * 2**15 >= 2**31)
        ones = build.const(np.ones((1, 1, *window.kernel), np.int8))
        planes = build.reshape(x, (n * c, 1, h, w))
        made = build.add(Conv2d(window, arith=rule), planes, ones)
        made = build.reshape(made, (n, c, *build.shape(made)[2:]))
        return made, GRID, {"window": window}

    def combine(
        self,
        build: GraphBuilder,
        fn: str,
        values: Sequence[str],
        grids: Sequence[Grid],
        limits: tuple[float, float],
    ) -> Made | None:
        """Add and subtract with clamping; products round to nearest even."""
        if fn == "mul":
            rule: VxSum | VxProduct = VxProduct(Q78, Scale.of(1.0), FRACTION, False, True)
        else:
            rule = VxSum(Q78, False, 1 if fn == "add" else -1)
        return build.add(FixedMap(rule), *values), GRID, {"fn": fn}

    def function(self, build: GraphBuilder, fn: str, x: str, grid: Grid) -> Made | None:
        """Look an activation up; its values are cut towards zero."""
        if fn not in NAMES:
            return None
        table = activation_table(NAMES[fn], 1.0, 1.0, Q78, Q78, False)
        made = build.add(FixedMap(VxTable.of(I16, I16, Q78.low, table)), x)
        return made, GRID, {"fn": fn}

    def softmax(self, build: GraphBuilder, x: str, grid: Grid, axis: int) -> Made | None:
        """Compute softmax in float32 of Q7.8, cut towards zero."""
        return build.add(OpenVxSoftmax(axis, Q78, Q78, False), x), GRID, {"axis": axis}


def _clamp(activation: str) -> VxClamp:
    return VxClamp(Q78, 0, int(6 * ONE) if activation == RELU6 else Q78.high)


OPENVX_Q78 = Q78Target()

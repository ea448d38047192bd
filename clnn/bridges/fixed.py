"""MLI and TIDL: integers with a scale for each tensor, or for each output channel of the weights.

MLI's arithmetic is that of clnn.mli. TIDL's documents give no arithmetic of layers; what is computed here is
its mode of power-of-two scales: sums of 32 (for 16 bits 64) bits with the bias in them, one shift, ties up,
saturation. That is MLI's with scales of powers of two, in which no other rounding occurs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from clnn.arith._base import Arithmetic
from clnn.arith.mli import MliAffine, MliFixed
from clnn.arith.mli_convert import convert
from clnn.arith.mli_maps import BY_BITS, binary, clip
from clnn.arith.mli_pool import AverageRule
from clnn.arith.mli_quant import RELU_6, RELU_GEN, RELU_NONE, Quant, relu_limits
from clnn.arith.mli_rows import SoftmaxFinish, SoftmaxPower, SoftmaxRule, SoftmaxScale
from clnn.arith.mli_tables import SIGMOID, TANH, activation, activation_quant
from clnn.bridges.layers import RELU, RELU6, Grid, Products, integers
from clnn.bridges.target import Made, Target
from clnn.graph.builder import GraphBuilder
from clnn.ops.conv.spec import Conv2d
from clnn.ops.elementwise.fixed_map import FixedMap
from clnn.ops.pool.spec import Pool
from clnn.ops.rows.reduce import Reduce
from clnn.ops.shared.window import Window
from clnn.records import dataclass
from clnn.types import Array

Constants = tuple[Arithmetic, Array, Array, dict[str, Any]]  # what a product is computed from
LEAST = 2.0**-20  # the smallest range that a grid is made for
SCALE_BITS = 14  # a scale of MLI is 2**14 to 2**15 - 1, with a fraction
KINDS = {"": RELU_NONE, RELU: RELU_GEN, RELU6: RELU_6}
TABLES = {"sigmoid": SIGMOID, "tanh": TANH}
BIAS = 2**31 - 1


def grid_of(quant: Quant) -> Grid:
    """Return the grid that a quantisation is."""
    step = math.ldexp(quant.scale, -quant.frac)
    return Grid(BY_BITS[quant.bits], step, quant.zero, quant)


def scaled(step: float) -> tuple[int, int]:
    """Return the nearest (scale, fraction) to a step, as MLI's own test quantiser rounds it."""
    frac = SCALE_BITS - math.floor(math.log2(step))
    scale = int(math.ldexp(step, frac) + 0.5)
    return (scale >> 1, frac - 1) if scale >> (SCALE_BITS + 1) else (scale, frac)


def fraction(bits: int, largest: float) -> int:
    """Return the most fraction bits with which a magnitude fits integers of so many bits."""
    limit = 2 ** (bits - 1) - 1
    return min(max(math.floor(math.log2(limit / max(largest, LEAST))), 0), 30)


@dataclass(frozen=True)
class FixedTarget(Target):
    """A system of MLI's arithmetic, or one that is a case of it.

    bits, w_bits: of elements and weights. affine: scales and zero points (sa8). powers: scales are
    powers of two, one for all weights of a layer. up: ties go up. full: products are kept in full.
    tables: softmax, sigmoid and tanh are computed by MLI's tables. per_channel: powers of two, for weights
    one for each output channel.
    """

    name: str = "mli-sa8"
    bits: int = 8
    w_bits: int = 8
    affine: bool = True
    powers: bool = False
    up: bool = False
    full: bool = False
    tables: bool = True
    per_channel: bool = False

    @property
    def equalise(self) -> bool:
        """Whether weights have 8 bits and one scale for a layer."""
        return self.w_bits == 8 and (self.powers or not self.affine) and not self.per_channel

    def by_channel(self) -> FixedTarget | None:
        """Return the target with a scale for each output channel of the weights."""
        if self.affine:
            return replace(self, per_channel=True)
        return None

    def grid(self, low: float, high: float) -> Grid:
        """Return the grid that holds low..high and 0."""
        low, high = min(low, 0.0), max(high, 0.0)
        largest = max(-low, high, LEAST)
        if not self.affine:
            return grid_of(Quant(self.bits, fraction(self.bits, largest)))
        if self.powers:
            steps, zero = (255, -128) if low >= 0 else (127, 0)
            exponent = math.ceil(math.log2(largest / steps))
            return grid_of(Quant(8, SCALE_BITS - exponent, 2**SCALE_BITS, zero, True))
        scale, frac = scaled(max(high - low, LEAST) / 255)
        zero = round(-low / math.ldexp(scale, -frac)) - 128
        return grid_of(Quant(8, frac, scale, min(max(zero, -128), 127), True))

    def quantise(self, build: GraphBuilder, value: str, grid: Grid) -> str:
        """Convert as mli_hlp_convert_tensor does."""
        return self._converted(build, value, None, grid.quant)

    def dequantise(self, build: GraphBuilder, value: str, grid: Grid) -> str:
        """Convert as mli_hlp_convert_tensor does."""
        return self._converted(build, value, grid.quant, None)

    def regrid(self, build: GraphBuilder, x: str, grid: Grid, wanted: Grid) -> str | None:
        """Convert as mli_hlp_convert_tensor does."""
        return x if grid == wanted else self._converted(build, x, grid.quant, wanted.quant)

    def _converted(
        self, build: GraphBuilder, x: str, given: Quant | None, wanted: Quant | None
    ) -> str:
        sides = [None if q is None else [q] for q in (given, wanted)]
        function, rows = convert(sides[0], sides[1], self.up)
        ones = (1,) * max(len(build.shape(x)), 1)
        return build.add(FixedMap(function), x, *(build.const(r.reshape(ones)) for r in rows))

    def products(self, build: GraphBuilder, x: str, grid: Grid, layer: Products) -> Made | None:
        """Convolve with integer weights."""
        out = self.grid(*layer.limits)
        made_of = self._affine if self.affine else self._fixed
        arith, weights, bias, data = made_of(grid, out, layer)
        spec = Conv2d(layer.window, layer.group, arith=arith)
        made = build.add(spec, x, build.const(weights), build.const(bias))
        found = {"weights": weights, "bias": bias, "activation": layer.activation, **data}
        return made, out, found

    def _affine(self, x: Grid, out: Grid, layer: Products) -> Constants:
        assert x.quant is not None and out.quant is not None
        count = len(layer.weights)
        largest = np.abs(layer.weights).reshape(count, -1).max(1).astype(np.float64)
        if self.powers:
            ends = largest if self.per_channel else np.repeat(largest.max(), count)
            powers = [math.ceil(math.log2(max(float(m), LEAST) / 127)) for m in ends]
            pairs = [(2**SCALE_BITS, SCALE_BITS - power) for power in powers]
        else:
            pairs = [scaled(max(float(m), LEAST) / 127) for m in largest]
        steps = np.array([math.ldexp(scale, -frac) for scale, frac in pairs])
        weights = integers(layer.weights / steps.reshape(-1, 1, 1, 1), 127).astype(np.int8)
        settled = layer.settled(weights * steps.reshape(-1, 1, 1, 1))
        bias = integers(settled / (steps * x.step), BIAS).astype(np.int32)
        low, high = relu_limits(KINDS[layer.activation], out.quant)
        given, wanted = x.quant, out.quant
        scales = tuple(s for s, _ in pairs), tuple(f for _, f in pairs)
        zeros = given.zero, wanted.zero, low, high
        ends = given.scale, given.frac, wanted.scale, wanted.frac
        arith = MliAffine(*ends, *scales, *zeros, full=self.full, up=self.up)
        return arith, weights, bias, {"scales": pairs}

    def _fixed(self, x: Grid, out: Grid, layer: Products) -> Constants:
        assert x.quant is not None and out.quant is not None
        kind, limit = BY_BITS[self.w_bits].numpy, 2 ** (self.w_bits - 1) - 1
        frac = fraction(self.w_bits, float(np.abs(layer.weights).max()))
        total = x.quant.frac + frac
        weights = integers(layer.weights * 2.0**frac, limit).astype(kind)
        settled = layer.settled(weights * 2.0**-frac)
        bias_frac = min(fraction(self.w_bits, float(np.abs(settled).max())), total)
        bias = integers(settled * 2.0**bias_frac, limit).astype(kind)
        low, high = relu_limits(KINDS[layer.activation], out.quant)
        shifts = total - bias_frac, total - out.quant.frac
        arith = MliFixed(self.w_bits, *shifts, low, high, self.up)
        return arith, weights, bias, {"fractions": (frac, bias_frac)}

    def clip(self, build: GraphBuilder, x: str, grid: Grid, activation: str) -> Made | None:
        """Clip by MLI's limits, which follow from the tensor's grid."""
        assert grid.quant is not None
        function = clip(grid.quant, *relu_limits(KINDS[activation], grid.quant))
        return build.add(FixedMap(function), x), grid, {"activation": activation}

    def maximum(self, build: GraphBuilder, x: str, grid: Grid, window: Window) -> Made | None:
        """Take the largest integers."""
        return build.add(Pool(window, "max"), x), grid, {"window": window}

    def average(
        self,
        build: GraphBuilder,
        x: str,
        grid: Grid,
        window: Window,
        limits: tuple[float, float],
    ) -> Made | None:
        """Average what lies inside of the image, by MLI's reciprocals."""
        assert grid.quant is not None
        out = self.grid(*limits)
        assert out.quant is not None
        rule = AverageRule(grid.quant, out.quant, self.powers, self.up)
        return build.add(Pool(window, "average", rule=rule), x), out, {"window": window}

    def combine(
        self,
        build: GraphBuilder,
        fn: str,
        values: Sequence[str],
        grids: Sequence[Grid],
        limits: tuple[float, float],
    ) -> Made | None:
        """Add, subtract or multiply as MLI's eltwise kernels do."""
        out, (one, two) = self.grid(*limits), grids
        assert one.quant is not None and two.quant is not None and out.quant is not None
        function = binary(fn, one.quant, two.quant, out.quant, self.up)
        return build.add(FixedMap(function), *values), out, {"fn": fn}

    def function(self, build: GraphBuilder, fn: str, x: str, grid: Grid) -> Made | None:
        """Look a function up in MLI's table."""
        if not self.tables or fn not in TABLES or grid.quant is None:
            return None
        made = build.add(FixedMap(activation(TABLES[fn], grid.quant, self.up)), x)
        return made, grid_of(activation_quant(TABLES[fn], grid.quant)), {"fn": fn}

    def softmax(self, build: GraphBuilder, x: str, grid: Grid, axis: int) -> Made | None:
        """Compute MLI's softmax."""
        if not self.tables or grid.quant is None:
            return None
        rule = SoftmaxRule(grid.quant, self.up)
        power = build.add(FixedMap(SoftmaxPower(rule)), x, build.add(Reduce("max", (axis,)), x))
        scale = build.add(FixedMap(SoftmaxScale(rule)), build.add(Reduce("sum", (axis,)), power))
        made = build.add(FixedMap(SoftmaxFinish(rule)), power, scale)
        return made, grid_of(rule.out), {"axis": axis}


MLI_SA8 = FixedTarget()
MLI_FX16 = FixedTarget("mli-fx16", 16, 16, affine=False)
MLI_FX16_FX8 = FixedTarget("mli-fx16-fx8", 16, 8, affine=False)
TIDL_8 = FixedTarget("tidl-8", powers=True, up=True, full=True, tables=False)
TIDL_16 = FixedTarget("tidl-16", 16, 16, affine=False, up=True, tables=False)
